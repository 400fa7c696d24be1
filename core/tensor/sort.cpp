// Order and running totals along a dim.
#include <functional>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/state.h"
#include "core/tensor/sizes_internal.h"
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

// --- scans ---------------------------------------------------------------------------------------

namespace {

// Every element is combined with all of its chunk before it: short chunks compute little, and long
// ones make few rounds. Where a kernel costs more than what it computes, a million elements take four.
constexpr int64_t kChunk = 32;
// CPUs are slow at that, and quick to begin a kernel.
constexpr int64_t kChunkOfManyOnCpu = 8, kMany = 1 << 12, kLongRow = 1 << 14;
// Parts whose sums one tree adds.
constexpr int64_t kLeaves = 32;
// A scan that has rounds of its own inside is one chunk.
constexpr int64_t kOneChunk = std::numeric_limits<int64_t>::max();

// Tells of each pair of places of a chunk whether the second is not behind the first.
Value up_to_each(int64_t rank, int64_t n) {
  return value::iota_along(rank, rank + 1, n, DType::I32) <=
         value::iota_along(rank - 1, rank + 1, n, DType::I32);
}

// out[i] = reduction of x[0..i] over the last dim, from all pairs of one chunk.
Value scan_by_pairs(ReduceOp op, const Value& x, const Scalar& identity) {
  int64_t n = x.shape().back(), rank = x.rank();
  return value::reduce(op,
                       value::where(up_to_each(rank, n), value::unsqueeze(x, rank - 1), identity),
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
    case ReduceOp::Min:
      return value::minimum(a, b);
  }
  throw InternalError("scan: no reduction of this number");
}

// The ways to combine two neighbouring parts of a row, inside a chunk and of chunks.
struct Running {
  std::function<Value(const Value&)> inside;  // over the last dim
  std::function<Value(const Value&, const Value&)> combine;
  Scalar identity;
  int64_t chunk = kChunk;
  int64_t long_row = kOneChunk;  // of at least so many parts the scanned totals are stored
  bool careful = false;          // totals of what is not negative must not fall
};

Value filled_to(const Value& x, int64_t size, const Running& running) {
  Pairs padding(x.rank(), {0, 0});
  padding.back() = {0, size - x.shape().back()};
  return value::pad(x, padding, running.identity);
}

// [.., n] as [.., groups, each], with zeros behind the last one.
Value in_groups(const Value& x, int64_t each) {
  const int64_t last = x.rank() - 1, n = x.size(last), groups = (n + each - 1) / each;
  Pairs padding(x.rank(), {0, 0});
  padding.back() = {0, groups * each - n};
  Dims shape = x.dims();
  shape.back() = groups;
  shape.push_back(each);
  return value::reshape(value::pad(x, padding), shape);
}

// The sums of neighbours along the last dim.
Value sum_of_pairs(const Value& x) {
  const int64_t last = x.rank() - 1;
  const Value pairs = in_groups(x, 2);
  return value::squeeze(
      value::shrink_axis(pairs, last + 1, 0, 1) + value::shrink_axis(pairs, last + 1, 1, 2),
      last + 1);
}

// Each of [.., m] so many times, up to n of them.
Value repeated(const Value& x, int64_t times, int64_t n) {
  const int64_t last = x.rank() - 1;
  Dims shape = x.dims(), flat = shape;
  shape.push_back(times);
  flat.back() *= times;
  const Value all = value::broadcast_to(value::unsqueeze(x, last + 1), shape);
  return value::shrink_axis(value::reshape(all, flat), last, 0, n);
}

// Running sums in floats that never fall where nothing is negative: each is the sum of one tree over
// the whole row, in which what comes later is 0. A tree over parts adds neighbours, then neighbours of
// these sums:
//
//   parts 0 to 5, of the last of which the first elements sum up to s:
//   ((t0 + t1) + (t2 + t3)) + (t4 + s)      before the last part: t4, then (t0 + t1) + (t2 + t3)
//
// Returns what the parts [.., n] have before them: several [.., n], to be added in this order.
std::vector<Value> sums_before(const Value& parts) {
  const int64_t last = parts.rank() - 1, n = parts.size(last);
  if (n > kLeaves) {
    const Value groups = in_groups(parts, kLeaves);
    std::vector<Value> before;
    for (const Value& x : sums_before(groups)) {
      Dims flat = parts.dims();
      flat.back() = groups.size(last) * kLeaves;
      const Value line = value::reshape(x, flat);
      before.push_back(value::contiguous(value::shrink_axis(line, last, 0, n)));
    }
    Value totals = groups;
    for (int64_t size = 1; size < kLeaves; size *= 2) totals = sum_of_pairs(totals);
    totals = value::contiguous(value::squeeze(totals, last + 1));
    for (const Value& x : sums_before(totals)) before.push_back(repeated(x, kLeaves, n));
    return before;
  }
  std::vector<Value> before;
  Value sums = parts;
  for (int64_t size = 1; size < n; size *= 2) {
    const Value left = value::shrink_axis(in_groups(sums, 2), last + 1, 0, 1);
    Pairs behind(parts.rank() + 1, {0, 0});
    behind.back() = {1, 0};  // right ones come behind the left ones
    Dims line = left.dims();
    line.pop_back();
    line.back() *= 2;
    before.push_back(repeated(value::reshape(value::pad(left, behind), line), size, n));
    sums = sum_of_pairs(sums);
  }
  return before;
}

Value scan_on_device(const Running& running, const Value& x);

// Parts [.., parts, n] that follow each other as one row [.., size], each after what is the total of
// those before it; `inside` are the scans of the parts, and `at_hand` brings their totals to where
// they are scanned.
template <class AtHand>
Value joined(const Running& running, const Value& inside, int64_t size, AtHand at_hand) {
  const int64_t rank = inside.rank() - 1, parts = inside.size(rank - 1), n = inside.size(rank);
  const Value totals = at_hand(value::squeeze(value::shrink_axis(inside, rank, n - 1, n), rank));
  Value out = inside;
  if (running.careful) {
    for (const Value& before : sums_before(totals)) out = value::unsqueeze(before, rank) + out;
  } else {
    Pairs padding(rank, {0, 0});
    padding.back() = {1, 0};
    Value scanned = scan_on_device(running, totals);
    // The rounds of a long row would be computed once for each element of a part.
    if (parts >= running.long_row) scanned = value::contiguous(scanned);
    Value before =
        value::pad(value::shrink_axis(scanned, rank - 1, 0, parts - 1), padding, running.identity);
    out = running.combine(value::unsqueeze(before, rank), inside);
  }
  Dims flat = inside.dims();
  flat.pop_back();
  flat.back() = parts * n;
  return value::shrink_axis(value::reshape(out, flat), rank - 1, 0, size);
}

Value in_parts(const Value& x, int64_t parts, int64_t each, const Running& running) {
  Dims shape = x.dims();
  shape.back() = parts;
  shape.push_back(each);
  return value::reshape(filled_to(x, parts * each, running), shape);
}

// Long rows in chunks: a scan inside each, and a scan of the totals before it.
Value scan_on_device(const Running& running, const Value& x) {
  const int64_t n = x.shape().back(), chunk = running.chunk;
  if (n <= chunk) return running.inside(x);
  Value inside = running.inside(in_parts(x, (n + chunk - 1) / chunk, chunk, running));
  return joined(running, inside, n, [](const Value& totals) { return value::contiguous(totals); });
}

// A row that lies in parts, and where the totals of these are scanned: on all devices.
struct Division {
  Sharding totals;
  int64_t parts = 1;
};

// Nothing where each device has whole rows along the last dim, or has them brought to it.
std::optional<Division> division_of(const Value& x) {
  const int64_t n = x.shape().back(), last = x.rank() - 1;
  if (!value::placed_on_several() || n == 0) return {};
  Division division{sharding_of(x.node())};
  Sharding& where = division.totals;
  int axes = 0;
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!(where.placements[a] == Shard(static_cast<int>(last)))) continue;
    division.parts *= where.mesh.axes()[a].size;
    where.placements[a] = Replicate;
    ++axes;
  }
  // Where parts differ in size on nested axes, they are no parts of one row of a reshape.
  if (division.parts == 1 || (axes > 1 && n % division.parts != 0)) return {};
  return division;
}

// A row that is divided over devices is scanned where it lies, each part by its device. Of the parts
// only the totals travel, to all devices.
Value scan(const Running& running, const Value& x) {
  const auto division = division_of(x);
  if (!division) return scan_on_device(running, x);
  const int64_t n = x.shape().back(), parts = division->parts;
  Value inside = scan_on_device(running, in_parts(x, parts, (n + parts - 1) / parts, running));
  return joined(running, inside, n,
                [&](const Value& totals) { return Value(place(totals.node(), division->totals)); });
}

bool many_on_cpu(const Value& x) {
  if (x.node()->numel() < kMany) return false;
  const Mesh mesh = value::placed_on_several() ? sharding_of(x.node()).mesh : default_mesh();
  return mesh.devices()[0].kind == "CPU";
}

Running running_of(ReduceOp op, const Value& x, const Scalar& identity) {
  const bool many = many_on_cpu(x);
  return {.inside = [=](const Value& v) { return scan_by_pairs(op, v, identity); },
          .combine = [op](const Value& a, const Value& b) { return combine(op, a, b); },
          .identity = identity,
          .chunk = many ? kChunkOfManyOnCpu : kChunk,
          .long_row = many ? kLongRow : kOneChunk};
}

Value scan(ReduceOp op, const Value& x, const Scalar& identity) {
  Running running = running_of(op, x, identity);
  running.careful = op == ReduceOp::Sum && is_float(x.dtype());
  return scan(running, x);
}

// f over the last dim of x.
template <class F>
Tensor along(const Tensor& tensor, int64_t axis, F f) {
  Value x(tensor);
  int64_t a = value::resolve_axis(axis, x.rank());
  if (x.rank() == 0) return value::reshape(f(value::reshape(x, {1})), {});
  return value::move_axis(f(value::move_axis(x, a, x.rank() - 1)), x.rank() - 1, a);
}

// The same of a dim whose size may be known when the step runs only: what lies behind the size comes
// after every total that counts.
template <class F>
Tensor along_size(const Tensor& tensor, int64_t axis, const Scalar& behind, F f) {
  const Value x(tensor);
  const int64_t a = value::resolve_axis(axis, x.rank());
  const auto size = x.rank() > 0 ? value::size_along(x, a) : std::nullopt;
  if (!size) return along(tensor, axis, f);
  return value::limited_to(along(value::filled(x, a, behind).tensor(), axis, f), a, *size);
}

// Where each running maximum along the last dim was reached: the last place so far at which it
// changed. NaN, once reached, stays.
template <class Scan>
Value places_of(const Value& best, Scan scanned) {
  const int64_t last = best.rank() - 1, n = best.shape().back();
  Pairs padding(best.rank(), {0, 0});
  padding.back() = {1, 0};
  Value before =
      value::pad(value::shrink_axis(best, last, 0, std::max<int64_t>(0, n - 1)), padding);
  Value changed = best != before;
  if (is_float(best.dtype())) changed = changed & !(value::isnan(best) & value::isnan(before));
  // A whole chunk reads each of them.
  return scanned(value::contiguous(
      value::where(changed, value::iota_along(last, best.rank(), n, DType::I32), 0)));
}

// The running maximum or minimum. Its gradient goes to the element at its place, the first of equal
// ones, however the row is cut into parts and chunks: each has that element of its own, and of two
// parts the first one counts unless the second has a better one.
//
//   3 1 3 3 | 3 5 4 5      places in the chunks 0 0 0 0 | 0 1 1 1, in the row 0 0 0 0 0 5 5 5
struct Best {
  Value values, places;
};

Best best_on_device(ReduceOp op, const Value& x) {
  const Running best = running_of(op, x, value::identity(op, x.dtype()));
  const Value places = places_of(scan_on_device(best, value::detach(x)), [](const Value& at) {
    return scan_on_device(running_of(ReduceOp::Max, at, 0), at);
  });
  return {value::gather(x, x.rank() - 1, places), places};
}

Best running_best(ReduceOp op, const Value& x) {
  const Scalar identity = value::identity(op, x.dtype());
  if (is_float(x.dtype()) && !division_of(x)) return best_on_device(op, x);
  auto combine = [op](const Value& before, const Value& v) {
    auto [b, own] = value::match(before, v);
    Value better = op == ReduceOp::Max ? b < own : own < b;
    // Before the first part there is nothing, which is no better than an infinity.
    Value first = value::iota_along(v.rank() - 2, v.rank(), v.size(v.rank() - 2), DType::I32) == 0;
    return value::where(better | (value::isnan(own) & !value::isnan(b)) | first, own, b);
  };
  auto inside = [op](const Value& v) { return best_on_device(op, v).values; };
  const Value best =
      is_float(x.dtype())
          ? scan({.inside = inside, .combine = combine, .identity = identity, .chunk = kOneChunk},
                 x)
          : scan(op, x, identity);
  return {best, places_of(value::detach(best),
                          [](const Value& at) { return scan(ReduceOp::Max, at, 0); })};
}

std::pair<Tensor, Tensor> running_best(ReduceOp op, const Tensor& tensor, int64_t axis) {
  Value x(tensor);
  const int64_t a = value::resolve_axis(axis, x.rank()), last = x.rank() - 1;
  if (x.rank() == 0 || tensor.numel() == 0)
    return {x.tensor(), value::constant(DType::I32, 0, x.shape())};
  const Best best = running_best(op, value::move_axis(x, a, last));
  return {value::move_axis(best.values, last, a).tensor(),
          value::move_axis(best.places, last, a).tensor()};
}

Value accumulated(ReduceOp op, const Value& x, const Scalar& identity) {
  DType type = op == ReduceOp::Sum ? sum_type(x.dtype()) : x.dtype();
  return value::cast(scan(op, value::cast(x, accumulator(x.dtype())), identity), type);
}

}  // namespace

Tensor Tensor::cumsum(int64_t axis, Caller caller) const {
  Call call("cumsum", caller);
  return along_size(*this, axis, 0, [](const Value& v) {
    value::need_countable(v, {0});
    return accumulated(ReduceOp::Sum, v, 0);
  });
}

Tensor Tensor::cumprod(int64_t axis, Caller caller) const {
  Call call("cumprod", caller);
  return along_size(*this, axis, 1,
                    [](const Value& v) { return accumulated(ReduceOp::Prod, v, 1); });
}

std::pair<Tensor, Tensor> Tensor::cummax(int64_t axis, Caller caller) const {
  Call call("cummax", caller);
  return running_best(ReduceOp::Max, *this, axis);
}

std::pair<Tensor, Tensor> Tensor::cummin(int64_t axis, Caller caller) const {
  Call call("cummin", caller);
  return running_best(ReduceOp::Min, *this, axis);
}

namespace {

// Where the sums are zero, and their logarithm is -infinity, no gradient goes through it.
Value log_of_sums(const Value& sums) {
  Value none = sums == 0;
  return value::where(none, -std::numeric_limits<double>::infinity(),
                      value::log(value::where(none, 1, sums)));
}

// log(exp(a) + exp(b)), the larger one subtracted before.
Value log_of_both(const Value& a, const Value& b) {
  auto [x, y] = value::match(a, b);
  Value largest = value::detach(value::maximum(x, y));
  Value base = value::where(value::isinf(largest), 0.0, largest);
  return log_of_sums(value::exp(x - base) + value::exp(y - base)) + base;
}

}  // namespace

Tensor Tensor::logcumsumexp(int64_t axis, Caller caller) const {
  Call call("logcumsumexp", caller);
  Scalar nothing = -std::numeric_limits<double>::infinity();
  auto prefixes = [&](const Value& x) {
    const int64_t n = x.shape().back(), rank = x.rank();
    return value::where(up_to_each(rank, n), value::unsqueeze(x, rank - 1), nothing);
  };
  // Each row of a chunk's pairs is shifted by its own maximum. A pair costs an exponential.
  const bool many = many_on_cpu(*this);
  Running running{.inside =
                      [&](const Value& x) {
                        Value pairs = prefixes(x);
                        Value largest = value::detach(value::max(pairs, {x.rank()}, true));
                        Value base = value::where(value::isinf(largest), 0.0, largest);
                        Value sums = value::sum(value::exp(pairs - base), {x.rank()}, true);
                        return value::squeeze(log_of_sums(sums) + base, x.rank());
                      },
                  .combine = log_of_both,
                  .identity = nothing,
                  .chunk = many ? 4 : kChunk,
                  .long_row = many ? 4 : kOneChunk};
  return along(*this, axis, [&](const Value& v) {
    return value::in_floats(v, [&](const Value& x) { return scan(running, x); });
  });
}

}  // namespace tinyshard
