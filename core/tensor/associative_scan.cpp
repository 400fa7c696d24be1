// Each round halves the list: neighbours are combined, the list of pairs is scanned by
// the same function, which gives every odd place its result, and an even place takes
// the result before it and its own value. Values of a round are stored, since two
// later ones read them. In reverse, the list is turned around. A linear recurrence is
// the scan of maps h -> a * h + b: first p, then q, is (p0 * q0, p1 * q0 + q1).
#include "core/tensor/associative_scan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {
namespace {

// Each `step`-th place along the dim, from `begin` to before `end`.
Tensor places(const Tensor& x, int64_t dim, int64_t begin, int64_t end, int64_t step = 1) {
  std::vector<Index> index(static_cast<size_t>(dim), Slice());
  index.emplace_back(Slice(begin, end, step));
  return x.at(index);
}
Tensors places(const Tensors& list, int64_t dim, int64_t begin, int64_t end, int64_t step = 1) {
  Tensors out;
  for (const Tensor& x : list) out.push_back(places(x, dim, begin, end, step));
  return out;
}

// a0 b0 a1 b1 ...; `even` has as many places as `odd` or one more.
Tensor interleaved(const Tensor& even, const Tensor& odd, int64_t dim) {
  const int64_t pairs = odd.shape(dim), left = even.shape(dim) - pairs;
  Dims joined = odd.shape();
  joined[static_cast<size_t>(dim)] *= 2;
  const Tensor both = stack({places(even, dim, 0, pairs), odd}, dim + 1).reshape(joined);
  return left == 0 ? both : both.cat(places(even, dim, pairs, pairs + left), dim);
}

class Scan {
 public:
  Scan(const Combine& combine, int64_t dim) : combine_(combine), dim_(dim) {}

  Tensors of(const Tensors& list) const {
    const int64_t n = list[0].shape(dim_);
    if (n < 2) return list;
    // Values of each round are read by two others.
    const Tensors pairs =
        kept(combined(places(list, dim_, 0, n - 1, 2), places(list, dim_, 1, n, 2)));
    const Tensors odd = of(pairs);
    Tensors even = places(list, dim_, 0, 1);
    if (n > 2) {
      const Tensors behind =
          combined(places(odd, dim_, 0, (n - 1) / 2), places(list, dim_, 2, n, 2));
      for (size_t i = 0; i < even.size(); ++i) even[i] = even[i].cat(behind[i], dim_);
    }
    Tensors out;
    for (size_t i = 0; i < list.size(); ++i) out.push_back(interleaved(even[i], odd[i], dim_));
    return kept(out);
  }

 private:
  static Tensors kept(Tensors list) {
    for (Tensor& x : list) x = x.contiguous();
    return list;
  }

  Tensors combined(const Tensors& left, const Tensors& right) const {
    Tensors out = combine_(left, right);
    if (out.size() != left.size())
      fail(fmt::format("combine() was given {} tensors and gave {}", left.size(), out.size()));
    for (size_t i = 0; i < out.size(); ++i) {
      if (!out[i].defined() || out[i].shape() != left[i].shape() ||
          out[i].dtype() != left[i].dtype()) {
        fail(fmt::format("combine() was given {} as tensor {} and gave {}", left[i].describe(), i,
                         out[i].defined() ? out[i].describe() : "nothing"));
      }
    }
    return out;
  }

  const Combine& combine_;
  int64_t dim_;
};

}  // namespace

Tensors associative_scan(const Combine& combine, const Tensors& elements, int64_t dim, bool reverse,
                         Caller caller) {
  Call call("associative_scan", caller);
  if (!combine) fail("there is no operation to combine by");
  if (elements.empty()) fail("there are no elements to combine");
  const int64_t rank = elements[0].ndim();
  const int64_t axis = dim < 0 ? dim + rank : dim;
  if (axis < 0 || axis >= rank)
    fail(fmt::format("dim {} of {}, which has {} dims", dim, elements[0].describe(), rank));
  for (const Tensor& x : elements) {
    if (x.ndim() <= axis || x.shape(axis) != elements[0].shape(axis))
      fail(fmt::format("{} and {} are not of one size along dim {}", elements[0].describe(),
                       x.describe(), axis));
  }
  Tensors list = elements;
  const auto turned = [&](Tensors all) {
    for (Tensor& x : all) x = reverse ? x.flip(axis) : x;
    return all;
  };
  return turned(Scan(combine, axis).of(turned(std::move(list))));
}

Tensor linear_recurrence(const Tensor& decay, const Tensor& input, int64_t dim,
                         const Tensor& initial, bool reverse, Caller caller) {
  Call call("linear_recurrence", caller);
  if (!decay.is_floating_point() || !input.is_floating_point())
    fail(fmt::format("decay is {}, input is {}: both must be floats", decay.describe(),
                     input.describe()));
  // Products of decays would lose most of 16 bits.
  const DType result = promote(decay.dtype(), input.dtype()), wide = accumulator(result);
  const Dims shape = value::broadcast_shape(decay.shape(), input.shape());
  const int64_t rank = static_cast<int64_t>(shape.size()), axis = dim < 0 ? dim + rank : dim;
  if (axis < 0 || axis >= rank) fail(fmt::format("dim {} of {} dims", dim, rank));
  const Tensor a = decay.cast(wide).expand(shape);
  Tensor b = input.cast(wide).expand(shape);
  if (initial.defined()) {
    // The first place takes it in: h[0] = a[0] * initial + b[0].
    Dims one = shape;
    one[static_cast<size_t>(axis)] = 1;
    const int64_t n = shape[static_cast<size_t>(axis)], first = reverse ? n - 1 : 0;
    if (n == 0) return b.cast(result);
    const Tensor start =
        initial.cast(wide).unsqueeze(axis - (rank - 1 - initial.ndim())).expand(one);
    const Tensor taken =
        places(b, axis, first, first + 1) + places(a, axis, first, first + 1) * start;
    b = reverse ? places(b, axis, 0, n - 1).cat(taken, axis)
                : taken.cat(places(b, axis, 1, n), axis);
  }
  const Combine step = [](const Tensors& p, const Tensors& q) {
    return Tensors{p[0] * q[0], p[1] * q[0] + q[1]};
  };
  return associative_scan(step, {a, b}, axis, reverse)[1].cast(result);
}

}  // namespace tinyshard
