// The index of a scatter that is made of a count and constants alone is computed here. If it never falls,
// the entries of place i are those from start(i) to start(i + 1), and a place can read them itself, side
// by side with all others and without an index in memory:
//
//   index (iota [6] * 4) / 6          0 0 1 2 2 3       of six entries into four places
//   start(i) (12 i + 4) / 8           0 2 3 5 6         a formula that fits, tried on all of them
//   scatter_add index x               sum over k < 2 of where(start(i) + k < start(i + 1), x[start(i) + k], 0)
//
// Formulas are (a i + b) / c. Their slope is that of the interpolations that there are: entries by places,
// or one less of both. An offset b fits i if c start(i) <= a i + b < c start(i) + c, so those that fit all
// i lie between two bounds. Places at both ends, which start at 0 or behind all entries, need no formula:
// interpolations give the first and the last place what lies beyond the ends.
#include "core/passes/known_scatters.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

using Numbers = std::vector<int64_t>;

constexpr int64_t kMostEntries = 1 << 16;  // of an index that is computed here

int64_t wrapped(DType dtype, uint64_t x) {
  if (dtype == DType::Bool) return x != 0 ? 1 : 0;
  if (itemsize(dtype) == 8) return static_cast<int64_t>(x);
  const int64_t bits = 8 * int64_t(itemsize(dtype));
  const auto low = static_cast<int64_t>(x << (64 - bits));
  return is_unsigned_int(dtype) ? static_cast<int64_t>(uint64_t(low) >> (64 - bits))
                                : low >> (64 - bits);
}

// The result of an op on integers; nothing where this does not know it.
std::optional<int64_t> computed(const UOp& x, const int64_t* of) {
  const auto a = static_cast<uint64_t>(of[0]), b = static_cast<uint64_t>(of[1]);
  const bool is_undefined = of[1] == 0 || (of[1] == -1 && of[0] == INT64_MIN);
  switch (x.op()) {
    case Op::Cast:
      return wrapped(x.dtype(), a);
    case Op::Neg:
      return wrapped(x.dtype(), -a);
    case Op::Not:
      return x.dtype() == DType::Bool ? int64_t(a == 0) : wrapped(x.dtype(), ~a);
    case Op::Add:
      return wrapped(x.dtype(), a + b);
    case Op::Sub:
      return wrapped(x.dtype(), a - b);
    case Op::Mul:
      return wrapped(x.dtype(), a * b);
    case Op::IDiv:
      return is_undefined ? std::nullopt : std::optional(of[0] / of[1]);
    case Op::Mod:
      return is_undefined ? std::nullopt : std::optional(of[0] % of[1]);
    case Op::Max:
      return std::max(of[0], of[1]);
    case Op::And:
      return of[0] & of[1];
    case Op::Or:
      return of[0] | of[1];
    case Op::CmpLt:
      return of[0] < of[1];
    case Op::CmpEq:
      return of[0] == of[1];
    case Op::CmpNe:
      return of[0] != of[1];
    case Op::Where:
      return of[0] != 0 ? of[1] : of[2];
    default:
      return std::nullopt;
  }
}

// Integers that a line of graph nodes computes without reading memory; empty where it is none.
class Lines {
 public:
  const Numbers& operator()(const UOp& x, int depth = 0) {
    if (const Numbers* known = known_.find(x)) return *known;
    Numbers numbers = compute(x, depth);
    return known_[x] = std::move(numbers);
  }

 private:
  Numbers compute(const UOp& x, int depth) {
    constexpr int kMostSteps = 64;  // far more than an interpolation has
    if (depth > kMostSteps) return {};
    // Unsigned 64-bit integers compare and divide otherwise.
    if (!(is_int(x.dtype()) || x.dtype() == DType::Bool) || x.dtype() == DType::U64) return {};
    const int64_t n = x->numel();
    if (n > kMostEntries) return {};
    Numbers numbers(static_cast<size_t>(n));
    if (is_const(x)) {
      std::ranges::fill(numbers, const_as_int(x));
      return numbers;
    }
    if (x.op() == Op::Iota) {
      for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = int64_t(i);
      return numbers;
    }
    if (x.op() == Op::Reshape) return (*this)(x.src(0), depth + 1);
    if (!is_elementwise(x.op()) || x->sources > 3) return {};
    const Numbers* sources[3] = {};
    for (size_t s = 0; s < size_t(x->sources); ++s) {
      if ((*this)(x.src(s), depth + 1).size() != numbers.size()) return {};
    }
    for (size_t s = 0; s < size_t(x->sources); ++s) sources[s] = known_.find(x.src(s));
    for (size_t i = 0; i < numbers.size(); ++i) {
      int64_t of[3] = {};
      for (size_t s = 0; s < size_t(x->sources); ++s) of[s] = (*sources[s])[i];
      const std::optional<int64_t> number = computed(x, of);
      if (!number) return {};
      numbers[i] = *number;
    }
    return numbers;
  }

  NodeMap<Numbers> known_;
};

// start(i) of the entries of each place, behind the last place their number; and the most of one place.
struct Stretches {
  int64_t a = 0, b = 0, c = 1;
  int64_t first = 0,
          last = 0;  // places with a formula: from the first one up to before the last one
  int64_t most = 0;
};

std::optional<Stretches> fitted(const Numbers& starts, int64_t entries) {
  const auto places = int64_t(starts.size()) - 1;
  Stretches s;
  s.first = std::ranges::upper_bound(starts, 0) - starts.begin();
  s.last = std::ranges::lower_bound(starts, entries) - starts.begin();
  for (int64_t i = 0; i < places; ++i)
    s.most = std::max(s.most, starts[size_t(i) + 1] - starts[size_t(i)]);
  if (s.first >= s.last) return s;
  for (int64_t less : {0, 1}) {
    s.a = entries - less, s.c = places - less;
    if (s.a <= 0 || s.c <= 0) continue;
    s.a *= 2, s.c *= 2;  // halves of an element may be where a place begins
    int64_t low = INT64_MIN, high = INT64_MAX;
    for (int64_t i = s.first; i < s.last; ++i) {
      const int64_t begin = s.c * starts[size_t(i)] - s.a * i;
      low = std::max(low, begin), high = std::min(high, begin + s.c - 1);
    }
    s.b = low;
    if (low <= high) return s;
  }
  return std::nullopt;
}

std::optional<Stretches> stretches(const Numbers& index, int64_t places) {
  if (index.empty() || !std::ranges::is_sorted(index) || index.front() < 0 ||
      index.back() >= places || places > kMostEntries)
    return std::nullopt;
  Numbers starts(size_t(places) + 1);
  for (int64_t i = 0; i <= places; ++i)
    starts[size_t(i)] = std::ranges::lower_bound(index, i) - index.begin();
  const auto entries = int64_t(index.size());
  const std::optional<Stretches> found = fitted(starts, entries);
  // Places with fewer entries than others look at some that are not theirs.
  if (!found || found->most * places > 2 * (entries + places)) return std::nullopt;
  return found;
}

// The line along the axis of which the index is made; null where it is another view.
UOp line_of(const UOp& index, size_t axis) {
  const auto lies_along = [&](const UOp& x) {
    return x.shape().size() > axis && x->numel() == x.shape()[axis];
  };
  UOp x = index.op() == Op::Expand ? index.src(0) : index;
  if (!lies_along(x) || x.shape()[axis] != index.shape()[axis]) return UOp();
  return x;
}

UOp constant(const UOp& like, int64_t value) {
  return const_int(like.dtype(), value, like.shape());
}
UOp smaller(const UOp& a, const UOp& b) { return where(binary(Op::CmpLt, a, b), a, b); }

UOp start_of(const UOp& place, const Stretches& s, int64_t entries) {
  UOp at = binary(Op::Add, binary(Op::Mul, place, constant(place, s.a)), constant(place, s.b));
  at = binary(Op::IDiv, binary(Op::Max, at, constant(at, 0)), constant(at, s.c));
  at = where(binary(Op::CmpLt, place, constant(place, s.last)), at, constant(at, entries));
  return where(binary(Op::CmpLt, place, constant(place, s.first)), constant(at, 0), at);
}

UOp gathered(const UOp& x, size_t axis, const Stretches& s) {
  const UOp& source = x.src(1);
  const DimSpan from = source.shape();
  const int64_t places = scatter_arg(*x).size, entries = from[axis];
  const Dims pairs = {places, s.most};
  const UOp place = iota_along(pairs, 0), number = iota_along(pairs, 1);
  UOp entry = binary(Op::Add, start_of(place, s, entries), number);
  const UOp end = start_of(binary(Op::Add, place, constant(place, 1)), s, entries);
  const UOp is_mine = binary(Op::CmpLt, entry, end);
  entry = cast(smaller(entry, constant(entry, entries - 1)), DType::I32);

  Dims line(from.size(), 1), all(from.begin(), from.end());
  line[axis] = all[axis] = places * s.most;
  UOp read = UOp::make(Op::Gather, source.dtype(), {source, expand(reshape(entry, line), all)},
                       Dims{int64_t(axis)});
  const auto apart = [&](Dims shape) {  // [.., place, number, ..]
    shape[axis] = places;
    shape.insert(shape.begin() + int64_t(axis) + 1, s.most);
    return shape;
  };
  const DType wide = accumulator(x.dtype());
  read = cast(reshape(read, apart(all)), wide);
  const UOp mine = expand(reshape(is_mine, apart(line)), read.shape());
  UOp sum = where(mine, read, const_like(read, 0));
  if (s.most > 1) sum = reduce(ReduceOp::Sum, sum, Dims{int64_t(axis) + 1});
  return cast(reshape(sum, x.shape()), x.dtype());
}

}  // namespace

std::vector<UOp> gather_known_scatters(const Graph& graph) {
  Lines lines;
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::ScatterAdd || x->sources != 2 || scatter_arg(*x).writes ||
        scatter_arg(*x).op != ReduceOp::Sum || x->numel() == 0)
      return UOp();
    const auto axis = size_t(scatter_arg(*x).axis);
    if (!std::ranges::equal(x.src(0).shape(), x.src(1).shape())) return UOp();
    const UOp line = line_of(x.src(0), axis);
    if (!line) return UOp();
    const std::optional<Stretches> s = stretches(lines(line), scatter_arg(*x).size);
    return s ? gathered(x, axis, *s) : UOp();
  });
}

}  // namespace tinyshard
