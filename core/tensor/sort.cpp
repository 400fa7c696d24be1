// Order and running totals along a dim.
#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

// Rank of every element among its row (the last dim): how many come before it. Compares all pairs,
// in one kernel without memory of its own; for rows of up to some ten thousand elements.
Value ranks(const Value& x, bool descending) {
  int64_t n = x.shape().back(), last = x.rank();
  Value mine = value::unsqueeze(x, last), other = value::unsqueeze(x, last - 1);
  Value before = descending ? mine < other : other < mine;
  if (is_float(x.dtype())) {  // NaN is larger than everything
    Value less = value::isnan(descending ? other : mine) & !value::isnan(descending ? mine : other);
    before = before | less;
  }
  Value same = (mine == other) | (value::isnan(mine) & value::isnan(other));
  Value earlier = value::iota_along(last, last + 1, n, DType::I32) <
                  value::iota_along(last - 1, last + 1, n, DType::I32);
  return value::sum(value::cast(before | (same & earlier), DType::I32), {last});
}

// The permutation that sorts the last dim, as i32.
Value order_of(const Value& x, bool descending) {
  Value rank = ranks(x, descending);
  Value place = value::broadcast_to(value::iota(x.shape().back(), DType::I32), x.shape());
  return value::scatter_add(rank, place, x.rank() - 1, x.shape().back());
}

struct Sorted {
  Value values, order;  // the sorted dim is last
  int64_t axis;
};

Sorted sorted(const Tensor& tensor, int64_t dim, bool descending) {
  Value x(tensor);
  int64_t axis = value::resolve_axis(dim, x.rank());
  if (x.rank() == 0) x = value::reshape(x, {1});
  Value last = value::move_axis(x, axis, x.rank() - 1);
  if (last.shape().back() <= 1) return {last, value::constant(DType::I32, 0, last.shape()), axis};
  Value order = value::contiguous(order_of(value::detach(last), descending));
  return {value::gather(last, last.rank() - 1, order), order, axis};
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
  Sorted s = sorted(*this, dim, largest);
  auto first = [&](const Value& v) {
    return value::move_axis(value::shrink_axis(v, v.rank() - 1, 0, k), v.rank() - 1, axis).tensor();
  };
  return {first(s.values), first(s.order)};
}

// --- scans
// -----------------------------------------------------------------------------------------

namespace {

constexpr int64_t kChunk = 256;

// out[i] = reduction of x[0..i] over the last dim, from all pairs of one chunk.
Value scan_by_pairs(ReduceOp op, const Value& x, const Scalar& identity) {
  int64_t n = x.shape().back(), rank = x.rank();
  Value column = value::iota_along(rank, rank + 1, n, DType::I64),
        row = value::iota_along(rank - 1, rank + 1, n, DType::I64);
  return value::reduce(op, value::where(column <= row, value::unsqueeze(x, rank - 1), identity),
                       {rank}, false);
}

Value combine(ReduceOp op, const Value& a, const Value& b) {
  switch (op) {
    case ReduceOp::Sum:
      return a + b;
    case ReduceOp::Prod:
      return a * b;
    case ReduceOp::Max:
      return value::maximum(a, b);
    default:
      return value::minimum(a, b);
  }
}

// Long rows in chunks: a scan inside each, and a scan of the totals before it.
Value scan(ReduceOp op, const Value& x, const Scalar& identity) {
  int64_t n = x.shape().back(), rank = x.rank();
  if (n <= kChunk) return scan_by_pairs(op, x, identity);
  int64_t chunks = (n + kChunk - 1) / kChunk;
  Pairs padding(rank, {0, 0});
  padding.back() = {0, chunks * kChunk - n};
  Dims shape = x.dims();
  shape.back() = chunks;
  shape.push_back(kChunk);
  Value inside =
      scan_by_pairs(op, value::reshape(value::pad(x, padding, identity), shape), identity);
  Value totals = value::squeeze(value::shrink_axis(inside, rank, kChunk - 1, kChunk), rank);
  padding.back() = {1, 0};
  Value before = value::pad(
      value::shrink_axis(scan(op, value::contiguous(totals), identity), rank - 1, 0, chunks - 1),
      padding, identity);
  Value out = combine(op, value::unsqueeze(before, rank), inside);
  Dims flat = x.dims();
  flat.back() = chunks * kChunk;
  return value::shrink_axis(value::reshape(out, flat), rank - 1, 0, n);
}

// f over the last dim of x.
template <class F>
Tensor along(const Tensor& tensor, int64_t axis, F f) {
  Value x(tensor);
  int64_t a = value::resolve_axis(axis, x.rank());
  if (x.rank() == 0) return value::reshape(f(value::reshape(x, {1})), {});
  return value::move_axis(f(value::move_axis(x, a, x.rank() - 1)), x.rank() - 1, a);
}

// Where each running maximum was reached: the last place so far at which it changed. NaN, once
// reached, stays.
std::pair<Tensor, Tensor> running_best(ReduceOp op, const Tensor& x, int64_t axis) {
  int64_t a = value::resolve_axis(axis, x.ndim());
  Tensor best =
      along(x, axis, [op](const Value& v) { return scan(op, v, value::identity(op, v.dtype())); });
  if (x.ndim() == 0 || x.numel() == 0) return {best, value::constant(DType::I32, 0, x.shape())};
  int64_t n = x.shape(a);
  Pairs padding(x.ndim(), {0, 0});
  padding[a] = {1, 0};
  Value before = value::pad(value::shrink_axis(best, a, 0, std::max<int64_t>(0, n - 1)), padding);
  Value here = value::iota_along(a, x.ndim(), n, DType::I32);
  Value changed = Value(best) != before;
  if (is_float(best.dtype())) changed = changed & !(value::isnan(best) & value::isnan(before));
  Tensor reached = value::where(changed, here, 0);
  Tensor places = along(reached, a, [](const Value& v) { return scan(ReduceOp::Max, v, 0); });
  return {best, places};
}

Value accumulated(ReduceOp op, const Value& x, const Scalar& identity) {
  DType type = op == ReduceOp::Sum ? sum_type(x.dtype()) : x.dtype();
  return value::cast(scan(op, value::cast(x, accumulator(x.dtype())), identity), type);
}

}  // namespace

Tensor Tensor::cumsum(int64_t axis, Caller caller) const {
  Call call("cumsum", caller);
  return along(*this, axis, [](const Value& v) { return accumulated(ReduceOp::Sum, v, 0); });
}

Tensor Tensor::cumprod(int64_t axis, Caller caller) const {
  Call call("cumprod", caller);
  return along(*this, axis, [](const Value& v) { return accumulated(ReduceOp::Prod, v, 1); });
}

std::pair<Tensor, Tensor> Tensor::cummax(int64_t axis, Caller caller) const {
  Call call("cummax", caller);
  return running_best(ReduceOp::Max, *this, axis);
}

std::pair<Tensor, Tensor> Tensor::cummin(int64_t axis, Caller caller) const {
  Call call("cummin", caller);
  return running_best(ReduceOp::Min, *this, axis);
}

Tensor Tensor::logcumsumexp(int64_t axis, Caller caller) const {
  Call call("logcumsumexp", caller);
  return along(*this, axis, [](const Value& v) {
    Value x = value::cast(v, value::float_type(v.dtype()));
    // Over all pairs, each row shifted by its own maximum.
    int64_t n = x.shape().back(), rank = x.rank();
    Value column = value::iota_along(rank, rank + 1, n, DType::I64),
          row = value::iota_along(rank - 1, rank + 1, n, DType::I64);
    return value::logsumexp(value::where(column <= row, value::unsqueeze(x, rank - 1),
                                         value::identity(ReduceOp::Max, x.dtype())),
                            {rank}, false);
  });
}

}  // namespace tinyshard
