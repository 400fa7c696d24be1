// Order along a dim.
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tensor/value_internal.h"
#include "core/uop/sort_keys.h"

namespace tinyshard {

using value::Value;

namespace value {

Value sort_order(const Value& keys, int64_t k) {
  if (keys.shape().back() > INT32_MAX)
    fail(fmt::format("{} elements along the dim are more than i32 counts", keys.shape().back()));
  return UOp::make(Op::Sort, DType::I32, {keys.node()}, Dims{k});
}

}  // namespace value

namespace {

struct Sorted {
  Value values, order;  // the sorted dim is last
  int64_t axis;
};

// The first k of the sorted dim; all of them without k.
Sorted sorted(const Tensor& tensor, int64_t dim, bool descending, std::optional<int64_t> k = {}) {
  Value x(tensor);
  int64_t axis = value::resolve_axis(dim, x.rank());
  if (x.rank() == 0) x = value::reshape(x, {1});
  Value last = value::move_axis(x, axis, x.rank() - 1);
  int64_t n = last.shape().back(), count = k.value_or(n);
  if (n <= 1) {
    Value places = value::constant(DType::I32, 0, last.shape());
    return {value::shrink_axis(last, last.rank() - 1, 0, count),
            value::shrink_axis(places, last.rank() - 1, 0, count), axis};
  }
  const Sorting sorting = descending ? Sorting::Falling : Sorting::Rising;
  Value order = value::sort_order(sort_keys(value::detach(last).node(), sorting), count);
  Value values = UOp::make(Op::Gather, last.dtype(), {last.node(), order.node()},
                           sorting_gather(last.rank() - 1, sorting));
  return {values, order, axis};
}

}  // namespace

std::pair<Tensor, Tensor> Tensor::sort(int64_t dim, bool descending, Caller caller) const {
  Call call("sort", caller);
  Sorted s = sorted(*this, dim, descending);
  auto back = [&](const Value& v) {
    return value::reshape(value::move_axis(v, v.rank() - 1, s.axis), shape()).tensor();
  };
  return {back(s.values), back(s.order)};
}

Tensor Tensor::argsort(int64_t dim, bool descending, Caller caller) const {
  Call call("argsort", caller);
  return sort(dim, descending, caller).second;
}

std::pair<Tensor, Tensor> Tensor::topk(int64_t k, int64_t dim, bool largest, bool sorted_result,
                                       Caller caller) const {
  Call call("topk", caller);
  if (!sorted_result) fail("only the sorted form exists: leave out sorted = false");
  int64_t axis = value::resolve_axis(dim, ndim());
  if (ndim() == 0 || k < 0 || k > shape(axis)) {
    fail(fmt::format("k = {} is not between 0 and the size of dim {} of {}", k, axis, describe()));
  }
  Sorted s = sorted(*this, dim, largest, k);
  auto back = [&](const Value& v) { return value::move_axis(v, v.rank() - 1, axis).tensor(); };
  return {back(s.values), back(s.order)};
}

}  // namespace tinyshard
