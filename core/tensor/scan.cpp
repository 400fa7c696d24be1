// Running totals along a dim. Each is one Scan (core/uop/scan.h), unless devices have parts of a row:
// then each of them scans its own, and what the parts before it come to is all that travels.
//
//   3 1 2 | 5 1 4 on two devices      inside 3 4 6 | 5 6 10      totals 6 10 to both
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/exec/state.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/scan_spelling.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::Value;

namespace {

// A row that lies in parts, and where the totals of these are scanned: on all devices.
struct Division {
  Sharding totals;
  int64_t parts = 1;
};

// Nothing where each device has whole rows along the axis, or has them brought to it.
std::optional<Division> division_of(const Value& x, int64_t axis) {
  const int64_t n = x.size(axis);
  if (!value::placed_on_several() || n == 0) return {};
  Division division{sharding_of(x.node())};
  Sharding& where = division.totals;
  int axes = 0;
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!(where.placements[a] == Shard(static_cast<int>(axis)))) continue;
    division.parts *= where.mesh.axes()[a].size;
    where.placements[a] = Replicate;
    ++axes;
  }
  // Where parts differ in size on nested axes, they are no parts of one row of a reshape.
  if (division.parts == 1 || (axes > 1 && n % division.parts != 0)) return {};
  return division;
}

ScanChunks chunks_for(const Value& x, ScanKind kind) {
  const Mesh mesh = value::placed_on_several() ? sharding_of(x.node()).mesh : default_mesh();
  return mesh.devices()[0].kind == "CPU" ? short_chunks(x.node(), kind) : ScanChunks();
}

bool is_best(ScanKind kind) { return kind == ScanKind::Max || kind == ScanKind::Min; }

// Makes a row of n elements of parts whose running maxima are `inside`. The totals' scan is an op as
// well, so that among equal ones the first has the gradient.
Value joined_best(const Value& inside, int64_t n, ScanKind kind, const Sharding& where) {
  const int64_t last = inside.rank() - 1, parts = inside.size(last - 1), each = inside.size(last);
  const Value ends = value::squeeze(value::shrink_axis(inside, last, each - 1, each), last);
  const Value totals = scan(place(ends.node(), where), {.kind = kind, .axis = last - 1});
  Pairs padding(last, {0, 0});
  padding.back() = {1, 0};
  const ReduceOp op = kind == ScanKind::Max ? ReduceOp::Max : ReduceOp::Min;
  const Value before = value::pad(value::shrink_axis(totals, last - 1, 0, parts - 1), padding,
                                  value::identity(op, inside.dtype()));
  const auto [b, own] = value::match(value::unsqueeze(before, last), inside);
  const Value better = kind == ScanKind::Max ? b < own : own < b;
  // Before the first part there is nothing, which is no better than an infinity.
  const Value first = value::iota_along(last - 1, last + 1, parts, DType::I32) == 0;
  const Value out = value::where(better | (value::isnan(own) & !value::isnan(b)) | first, own, b);
  Dims flat = inside.dims();
  flat.pop_back();
  flat.back() = parts * each;
  return value::shrink_axis(value::reshape(out, flat), last - 1, 0, n);
}

// The last dim of x, which lies in parts.
Value scanned_in_parts(const Value& x, ScanKind kind, const Division& division) {
  const int64_t n = x.shape().back(), parts = division.parts;
  const UOp rows = in_parts(x.node(), parts, (n + parts - 1) / parts, kind);
  const UOp inside = scan(rows, {.kind = kind, .axis = x.rank()});
  if (is_best(kind)) return joined_best(inside, n, kind, division.totals);
  return joined_scans(inside, n, kind, chunks_for(x, kind),
                      [&](const UOp& totals) { return place(totals, division.totals); });
}

// f over the axis of x as its last dim, of which `division` tells.
template <class F>
Value along_last(const Value& x, int64_t axis, const F& f) {
  const int64_t last = x.rank() - 1;
  const Value line = value::move_axis(x, axis, last);
  const auto division = division_of(line, last);
  check_internal(division.has_value(), "a row that lies in parts stays in them as its axis moves");
  return value::move_axis(f(line, *division), last, axis);
}

// x has the type that accumulates.
Value scanned(const Value& x, ScanKind kind, int64_t axis) {
  if (x.node()->numel() == 0) return x;
  if (!division_of(x, axis)) return scan(x.node(), {.kind = kind, .axis = axis});
  return along_last(x, axis, [&](const Value& line, const Division& division) {
    return scanned_in_parts(line, kind, division);
  });
}

// f over the axis of a tensor that has one.
template <class F>
Tensor along(const Tensor& tensor, int64_t axis, F f) {
  const Value x(tensor);
  const int64_t a = value::resolve_axis(axis, x.rank());
  if (x.rank() == 0) return value::reshape(f(value::reshape(x, {1}), a), {});
  return f(x, a);
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

// The running maximum or minimum, and where it was reached. Its gradient goes to the element at its
// place, the first of equal ones, however the row is cut into parts: each has that element of its own,
// and of two parts the first one counts unless the second has a better one.
//
//   3 1 3 3 | 3 5 4 5      places in the parts 0 0 0 0 | 0 1 1 1, in the row 0 0 0 0 0 5 5 5
std::pair<Tensor, Tensor> running_best(ScanKind kind, const Tensor& tensor, int64_t axis) {
  const Value all(tensor);
  const int64_t a = value::resolve_axis(axis, all.rank());
  if (all.rank() == 0 || tensor.numel() == 0)
    return {all.tensor(), value::constant(DType::I32, 0, all.shape())};
  const Value x = value::cast(all, accumulator(all.dtype()));
  const Value best = scanned(x, kind, a);
  Value places = value::detach(best);
  if (!division_of(x, a)) {
    places = scan(value::detach(x).node(), {.kind = kind, .axis = a, .places = true});
  } else {
    // The result may lie in other parts than x, or whole.
    const int64_t last = all.rank() - 1;
    const Value found = places_of(value::move_axis(places, a, last).node(), [&](const UOp& at) {
      return scanned(at, ScanKind::Max, last).node();
    });
    places = value::move_axis(found, last, a);
  }
  return {value::cast(best, all.dtype()).tensor(), places.tensor()};
}

Value accumulated(ScanKind kind, const Value& x, int64_t axis) {
  const DType type = kind == ScanKind::Sum ? sum_type(x.dtype()) : x.dtype();
  return value::cast(scanned(value::cast(x, accumulator(x.dtype())), kind, axis), type);
}

}  // namespace

Tensor Tensor::cumsum(int64_t axis, Caller caller) const {
  Call call("cumsum", caller);
  return along_size(*this, axis, 0, [](const Value& v, int64_t a) {
    value::need_countable(v, {a});
    return accumulated(ScanKind::Sum, v, a);
  });
}

Tensor Tensor::cumprod(int64_t axis, Caller caller) const {
  Call call("cumprod", caller);
  return along_size(*this, axis, 1,
                    [](const Value& v, int64_t a) { return accumulated(ScanKind::Prod, v, a); });
}

std::pair<Tensor, Tensor> Tensor::cummax(int64_t axis, Caller caller) const {
  Call call("cummax", caller);
  return running_best(ScanKind::Max, *this, axis);
}

std::pair<Tensor, Tensor> Tensor::cummin(int64_t axis, Caller caller) const {
  Call call("cummin", caller);
  return running_best(ScanKind::Min, *this, axis);
}

Tensor Tensor::logcumsumexp(int64_t axis, Caller caller) const {
  Call call("logcumsumexp", caller);
  return along(*this, axis, [](const Value& v, int64_t a) {
    return value::in_floats(v, [&](const Value& x) { return scanned(x, ScanKind::LogSumExp, a); });
  });
}

}  // namespace tinyshard
