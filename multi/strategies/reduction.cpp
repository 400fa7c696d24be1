// A reduction over a divided dim leaves each device one term. Where what is reduced was cut out of a
// divided value, each device reduces what it has of it, and no row is sent. A single row is broadcast, and
// so are few rows of many: the part that a device has is read as a whole, whatever was cut off.
//
//   x[0:3].sum(0) of 8 rows over two devices    device 0: rows 0 1 2, and 0 for row 3    device 1: 0
//   f32[2^18, 64] over four, rows 0 to 16       16 MiB read by each: rows are sent
#include <algorithm>
#include <span>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "multi/moves.h"
#include "multi/strategies/rows.h"
#include "multi/strategies/strategies.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

bool is_among(DimSpan axes, int64_t dim) { return std::ranges::find(axes, dim) != axes.end(); }

// Tells whether reading all that each device has takes no longer than sending what is left of the cut.
bool is_worth_reading(const LocalValue& v, DimSpan global, std::span<const Rows> rows,
                      const LocalValues& values) {
  Dims left;
  double part = double(itemsize(v.local.dtype()));
  for (int d = 0; d < int(rows.size()); ++d) {
    left.push_back(rows[size_t(d)].size);
    part *= double(parts_of(v, d) == 1 ? left.back() : v.local.shape()[size_t(d)]);
  }
  std::vector<Placement> sent = v.place;
  for (Placement& p : sent) {
    if (p.is_shard() && !all_there(rows[size_t(p.dim)], global[size_t(p.dim)])) p = Replicate;
  }
  LinkModel& links = values.links();
  return links.seconds_to_copy(part, *v.mesh) <=
         seconds_moved(v.local.dtype(), left, *v.mesh, v.place, sent, links);
}

// The value that is cut, on its own devices, with the identity of the reduction in place of what is cut
// off and of padding. Nothing where no divided and reduced dim is cut, where one is that stays, where
// somebody else reads the cut value, which then is in memory anyway, or where sending it takes less time.
std::optional<LocalValue> with_cut_filled(const UOp& x, const LocalValues& values) {
  const auto [op, axes] = reduce_arg(*x);
  std::vector<DType> types;
  UOp cut = x.src(0), source;
  for (; cut.op() == Op::Cast && values.has_one_reader(cut); cut = cut.src(0))
    types.push_back(cut.dtype());
  if (cut.op() != Op::Shrink) return {};
  const std::vector<Rows> rows = rows_through(cut, source);
  for (UOp step = cut; !(step == source); step = step.src(0)) {
    if (step.op() != Op::Shrink || !values.has_one_reader(step)) return {};
  }
  LocalValue v = values.lying(source);
  if (!v.mesh || v.gather_on_use || std::ranges::any_of(v.place, &Placement::is_partial)) return {};
  Dims global(source.shape().begin(), source.shape().end());
  bool fills = false;
  for (int d = 0; d < int(rows.size()); ++d) {
    if (all_there(rows[size_t(d)], global[size_t(d)]) || parts_of(v, d) == 1) continue;
    if (!is_among(axes, d) || rows[size_t(d)].size == 1) return {};
    fills = true;
  }
  if (!fills || !is_worth_reading(v, global, rows, values)) return {};
  for (; !types.empty(); types.pop_back()) v.local = cast(v.local, types.back());
  const UOp identity = identity_of(op, x.dtype());
  for (int d = 0; d < int(rows.size()); ++d) {
    const Rows& r = rows[size_t(d)];
    int64_t& size = global[size_t(d)];
    if (parts_of(v, d) == 1) {
      v.local = rows_of(v.local, d, r.shift, r.size, r.low, r.high);
      size = r.size;
    } else if (!all_there(r, size)) {
      v.local = with_others_filled(v, global, d, r.shift, r.shift + r.size, identity);
    } else if (is_among(axes, d)) {
      v.local = with_padding_filled(v, global, d, identity);
    }
  }
  return v;
}

// Tells whether devices have an element each of longer sums: a sum of -0.0 and others is 0.0, but that
// of -0.0 alone is -0.0.
bool is_one_of_several(const UOp& x, const LocalValue& v) {
  const auto [op, axes] = reduce_arg(*x);
  if (op != ReduceOp::Sum || !is_float(x.dtype())) return false;
  int64_t here = 1, all = 1;
  for (const int64_t axis : axes) {
    here *= v.local.shape()[size_t(axis)];
    all *= x.src(0).shape()[size_t(axis)];
  }
  return here == 1 && all > 1;
}

}  // namespace

LocalValue reduction(const UOp& x, LocalValues& values) {
  const std::optional<LocalValue> filled = with_cut_filled(x, values);
  LocalValue v = filled ? *filled : values.lying(x.src(0));
  v.gather_on_use = nullptr;  // of parts, too, a sum leaves a term each
  const auto [op, axes] = reduce_arg(*x);
  if (!v.mesh) return rebuilt(x, {v}, v);
  for (const Placement& p : v.place) {
    if (p.is_partial() && p.op != op) {
      v = settled(std::move(v), x.src(0).shape());
      break;
    }
  }
  std::vector<Placement> placed = v.place;
  for (Placement& p : placed) {
    if (!p.is_shard() || !is_among(axes, p.dim)) continue;
    if (!filled)
      v.local = with_padding_filled(v, x.src(0).shape(), p.dim, identity_of(op, x.dtype()));
    p = Partial(op);
  }
  if (is_one_of_several(x, v))
    v.local = binary(Op::Add, v.local, const_float(x.dtype(), 0.0, v.local.shape()));
  LocalValue result = rebuilt(x, {v}, {UOp(), v.mesh, placed});
  const std::vector<Placement> completed = values.completed_at(x, placed);
  if (completed == placed) return result;
  result.origin = v.origin;
  return redistribute(std::move(result), x.shape(), *v.mesh, completed);
}

}  // namespace tinyshard
