// Pad, Shrink and Flip. Along a dim that is split, each device receives what it lacks of its part
// of the result (multi/window.h); what is left of a dim that is too small to split is brought to
// all devices.
//
// A chain of pads and shrinks is one movement: x.roll(1, 0) pads x.shrink({{0, n - 1}}) and
// x.shrink({{n - 1, n}}), and each row of both goes from where it is in x to where it belongs.
#include <algorithm>

#include "core/base/error.h"
#include "core/uop/args.h"
#include "multi/collective.h"
#include "multi/device_number.h"
#include "multi/strategies/rows.h"
#include "multi/strategies/strategies.h"
#include "multi/strategies/unfold.h"
#include "multi/window.h"

namespace tinyshard {

std::vector<Rows> rows_through(const UOp& x, UOp& source) {
  struct Limit {
    int64_t shift, size;  // of the source of a pad
  };
  const size_t rank = x.shape().size();
  std::vector<Rows> rows(rank);
  std::vector<std::vector<Limit>> limits(rank);
  for (size_t i = 0; i < rank; ++i) rows[i].size = x.shape()[i];
  for (source = x; source.op() == Op::Pad || source.op() == Op::Shrink; source = source.src(0)) {
    const bool pads = source.op() == Op::Pad;
    for (size_t i = 0; i < rank; ++i) {
      const int64_t low = bounds_arg(*source).low(i);
      rows[i].shift += pads ? -low : low;
      if (pads) limits[i].push_back({rows[i].shift, source.src(0).shape()[i]});
    }
  }
  for (size_t i = 0; i < rank; ++i) {
    for (const Limit& l : limits[i]) {
      const int64_t low = rows[i].shift - l.shift;
      rows[i].low = std::max(rows[i].low, low);
      rows[i].high = std::min(rows[i].high, low + l.size);
    }
    rows[i].low = std::max<int64_t>(rows[i].low, 0);
    rows[i].high = std::min(rows[i].high, source.shape()[i]);
  }
  return rows;
}

namespace {

// Brings v to placements in which `dim` is split by its outermost axis only, as windows need it.
LocalValue split_once(LocalValue v, DimSpan global, int dim) {
  const int outer = axis_of(v, dim);
  std::vector<Placement> wanted = v.place;
  for (int a = outer + 1; a < int(wanted.size()); ++a) {
    if (wanted[size_t(a)] == Shard(dim)) wanted[size_t(a)] = Replicate;
  }
  const Mesh mesh = *v.mesh;
  return redistribute(std::move(v), global, mesh, wanted);
}

// Rows of a result with less of them than devices, on all devices: each part that has some
// broadcasts them.
UOp brought_to_all(const LocalValue& v, int dim, const Rows& rows) {
  const int axis = axis_of(v, dim);
  const int64_t part = v.local.shape()[size_t(dim)];
  const int64_t first = std::max(rows.low, rows.shift),
                end = std::min(rows.high, rows.shift + rows.size);
  UOp all;
  for (int64_t at = first; at < end;) {
    const int64_t owner = at / part, stop = std::min(end, (owner + 1) * part);
    const UOp piece = broadcast(rows_of(v.local, dim, at - owner * part, stop - at, 0, part),
                                *v.mesh, axis, owner, v.origin);
    const UOp placed = rows_of(piece, dim, rows.shift - at, rows.size, 0, stop - at);
    if (!all) {
      all = placed;
    } else {
      const DeviceNumber seam(at - rows.shift);
      all = where(rows_before(placed.shape(), dim, seam), all, placed);
    }
    at = stop;
  }
  return all ? all : rows_of(v.local, dim, 0, rows.size, 0, 0);
}

// Moves rows along a dim that is split.
LocalValue moved(LocalValue v, Dims& global, int dim, const Rows& rows) {
  v = split_once(std::move(v), global, dim);
  const int axis = axis_of(v, dim);
  const int64_t devices = v.mesh->axes()[size_t(axis)].size;
  global[size_t(dim)] = rows.size;
  if (rows.size < devices) {
    v.local = brought_to_all(v, dim, rows);
    v.place[size_t(axis)] = Replicate;
    return v;
  }
  const int64_t part = (rows.size + devices - 1) / devices;
  v.local = window(v, dim, {part, rows.shift, part, rows.low, rows.high});
  return v;
}

// Row i is the last but i.
LocalValue reversed(LocalValue v, DimSpan global, int dim) {
  v = split_once(std::move(v), global, dim);
  const int64_t part = v.local.shape()[size_t(dim)], size = global[size_t(dim)];
  v.local = window(v, dim, {-part, size - part, part, 0, size});
  return v;
}

LocalValue flipped(const UOp& x, LocalValue v) {
  const std::vector<Placement> wanted = v.place;
  for (int64_t dim : x->arg()) {
    if (parts_of(v, int(dim)) > 1 && x.shape()[size_t(dim)] > 0)
      v = reversed(std::move(v), x.shape(), int(dim));
  }
  v.local = flip(v.local, x->arg());
  const Mesh mesh = *v.mesh;
  return redistribute(std::move(v), x.shape(), mesh, wanted);
}

// Returns whether a pad or shrink from x down to `source` changes a dim that `v` splits.
bool crosses(const UOp& x, const UOp& source, const LocalValue& v) {
  for (UOp step = x; !(step == source); step = step.src(0)) {
    for (size_t i = 0; i < x.shape().size(); ++i) {
      const int64_t high = step.op() == Op::Pad ? 0 : step.src(0).shape()[i];
      const bool whole = bounds_arg(*step).low(i) == 0 && bounds_arg(*step).high(i) == high;
      if (!whole && parts_of(v, int(i)) > 1) return true;
    }
  }
  return false;
}

// Where no split dim changes, each part does the same.
UOp by_itself(const UOp& x, const LocalValue& v) {
  Dims arg(x->arg().begin(), x->arg().end());
  if (x.op() == Op::Pad) return pad(v.local, arg);
  for (size_t i = 0; i < x.shape().size(); ++i) {
    if (parts_of(v, int(i)) > 1) arg[2 * i + 1] = v.local.shape()[i];
  }
  return shrink(v.local, arg);
}

// A pad adds zeros to each term of a sum, but may not add them to those of a maximum.
LocalValue padded_once(LocalValue v, DimSpan global) {
  const bool other = std::ranges::any_of(
      v.place, [](const Placement& p) { return p.is_partial() && p.op != ReduceOp::Sum; });
  return other ? settled(std::move(v), global) : v;
}

}  // namespace

LocalValue windows(const UOp& x, LocalValues& values) {
  LocalValue v = values.of(x.src(0));
  if (!v.mesh) return rebuilt(x, {v}, v);
  if (x.op() == Op::Flip) return flipped(x, std::move(v));
  UOp source;
  const std::vector<Rows> rows = rows_through(x, source);
  if (auto cut = cut_of_windows_summed(x, source, rows, values)) return *cut;
  const LocalValue& from = values.of(source);
  if (!from.mesh || !crosses(x, source, from)) {
    if (x.op() == Op::Pad) v = padded_once(std::move(v), x.src(0).shape());
    return {by_itself(x, v), v.mesh, v.place};
  }
  Dims global(source.shape().begin(), source.shape().end());
  v = padded_once(from, global);
  std::vector<Placement> wanted = v.place;
  if (is_const(v.local)) {
    v.local = reshaped_const(v.local, global);
    for (Placement& p : v.place) p = p.is_shard() ? Replicate : p;
  }
  for (int i = 0; i < int(rows.size()); ++i) {
    const Rows& r = rows[size_t(i)];
    if (all_there(r, global[size_t(i)])) continue;
    if (parts_of(v, i) > 1) {
      v = moved(std::move(v), global, i, r);
    } else {
      v.local = rows_of(v.local, i, r.shift, r.size, r.low, r.high);
      global[size_t(i)] = r.size;
    }
  }
  for (size_t a = 0; a < wanted.size(); ++a) {
    const bool few = wanted[a].is_shard() &&
                     global[size_t(wanted[a].dim)] < v.mesh->axes()[a].size &&
                     !(v.place[a] == wanted[a]);
    if (few) wanted[a] = Replicate;
  }
  const Mesh mesh = *v.mesh;
  return redistribute(std::move(v), x.shape(), mesh, wanted);
}

}  // namespace tinyshard
