// Sorts of rows that may be divided, the way that takes least time:
//
//   whole rows     a divided row is gathered, and each device sorts it
//   other rows     an all-to-all gives each device some whole rows; so lies the result
//   candidates     of the k that are asked for, each device finds those of its part; they are
//                  gathered, and sorted again:
//
//     the 2 smallest of [5 1 | 4 0], two devices: 1 at 1, 5 at 0 and 0 at 3, 4 at 2; of these
//     [1 5 0 4] the third and the first, which are places 3 and 1
//   columns        parts are sorted and exchanged, twice (columnsort.h); the result is divided as
//                  the rows are
//
// Rows that are many and short are divided anew, a long one alone is sorted by columns, or gathered
// where it is short or devices are few, and topk has candidates. A row
// of which a reshape joined dims (joined.h) has candidates as it lay before. Their places follow each
// other no more from device to device, so they are sorted by place first.
//
// What is moved are keys. Where the values that these are made of are looked up in the order, which
// moves them as well, the values are moved alone, and the keys are made there. Columns are of values,
// if these are looked up by their own order, which is sent with them only where something else reads
// it: to each lookup the strategy of Gather gives the values that are sorted already.
//
// A scatter by the order of a sort by columns, such as the gradient of sorted values, takes the way of
// the sort back: the order names each place once, so nothing is added up.
#include <algorithm>
#include <memory>

#include "core/uop/args.h"
#include "core/uop/sort_keys.h"
#include "multi/moves.h"
#include "multi/strategies/columnsort.h"
#include "multi/strategies/held.h"
#include "multi/strategies/joined.h"
#include "multi/strategies/strategies.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

int last_dim(DimSpan global) { return int(global.size()) - 1; }

// The mesh axis that divides `dim`; -1 where none does, or several do.
int only_axis(const LocalValue& v, int dim) {
  int found = -1;
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (!(v.place[a] == Shard(dim))) continue;
    if (found >= 0) return -1;
    found = int(a);
  }
  return found;
}

// Returns the placements of v with whole rows: an axis that divides the last dim divides another
// dim instead, if one has room, and else none.
Places other_rows(const LocalValue& v, DimSpan global) {
  const int last = last_dim(global);
  Places place = v.place;
  for (size_t a = 0; a < place.size(); ++a) {
    if (!(place[a] == Shard(last))) continue;
    const int64_t parts = v.mesh->axes()[a].size;
    for (int d = 0; d < last && place[a] == Shard(last); ++d) {
      const bool taken =
          std::ranges::any_of(place, [&](const Placement& p) { return p == Shard(d); });
      if (!taken && global[size_t(d)] >= parts) place[a] = Shard(d);
    }
    if (place[a] == Shard(last)) place[a] = Replicate;
  }
  return place;
}

LocalValue gathered(UOp local, const LocalValue& like, DimSpan global, int axis) {
  Places whole = like.place;
  whole[size_t(axis)] = Replicate;
  return redistribute({std::move(local), like.mesh, like.place, current_origin()}, global,
                      *like.mesh, whole);
}

UOp sorted(const UOp& keys, int64_t k) { return UOp::make(Op::Sort, DType::I32, {keys}, Dims{k}); }
UOp picked(const UOp& x, const UOp& index) {
  return UOp::make(Op::Gather, x.dtype(), {x, index}, Dims{last_dim(x.shape())});
}

// Keys that are equal keep their order: candidates follow each other as their places do, and what
// pads the last parts, the largest key, comes after all that is real.
LocalValue by_candidates(LocalValue keys, DimSpan global, int axis, int64_t k, int64_t each) {
  const int last = last_dim(global);
  const UOp largest = unary(Op::Not, const_int(keys.local.dtype(), 0));
  keys.local = with_padding_filled(keys, global, last, largest);
  const UOp order = sorted(keys.local, each);
  const UOp first = cast(held_places(keys, global, last).low, DType::I32);
  const UOp place =
      binary(Op::Add, order, expand(reshape(first, Dims(global.size(), 1)), order.shape()));
  Dims all(global.begin(), global.end());
  all.back() = each * keys.mesh->axes()[size_t(axis)].size;
  const LocalValue candidates = gathered(picked(keys.local, order), keys, all, axis);
  const UOp places = gathered(place, keys, all, axis).local;
  return {picked(places, sorted(candidates.local, k)), keys.mesh, candidates.place};
}

// The candidates of each part of rows of which a reshape joined dims: the value before that, and as
// what its joined form would lie, if parts of the line were its parts.
struct JoinedRows {
  const Apart& apart;
  int axis;  // of the mesh, that divides the line
  Places place;
};

// Nothing where other dims were joined as well and are divided, several axes divide the line, or
// parts are padded: what pads them lies among what is real.
std::optional<JoinedRows> joined_rows(const LocalValue& keys, int last) {
  if (!keys.apart) return std::nullopt;
  const Apart& apart = *keys.apart;
  JoinedRows rows{apart, -1, Places(keys.place.size())};
  for (size_t a = 0; a < rows.place.size(); ++a) {
    const Placement p = apart.value.place[a];
    if (p.is_partial()) return std::nullopt;
    if (!p.is_shard()) continue;
    int d = 0;
    while (dims_of(apart, d).second <= p.dim) ++d;
    if (d == last) {
      if (rows.axis >= 0 || apart.shape[size_t(p.dim)] % keys.mesh->axes()[a].size != 0)
        return std::nullopt;
      rows.axis = int(a);
    } else if (apart.counts[size_t(d)] != 1) {
      return std::nullopt;
    }
    rows.place[a] = Shard(d);
  }
  return rows.axis >= 0 ? std::optional(rows) : std::nullopt;
}

LocalValue by_candidates(const JoinedRows& rows, DimSpan global, int64_t k, int64_t each) {
  const LocalValue& whole = rows.apart.value;
  const auto [first, last] = dims_of(rows.apart, last_dim(global));
  const UOp lines = in_lines(whole.local, rows.apart);
  const UOp order = sorted(lines, each);
  const UOp place = index_into_whole(order, whole, rows.apart.shape, Joined{first, last});
  Dims all(global.begin(), global.end());
  all.back() = each * whole.mesh->axes()[size_t(rows.axis)].size;
  const LocalValue like{UOp(), whole.mesh, rows.place};
  const LocalValue keys = gathered(picked(lines, order), like, all, rows.axis);
  const UOp places = gathered(place, like, all, rows.axis).local;
  const UOp by_place = sorted(cast(places, DType::U32), all.back());
  const UOp best = sorted(picked(keys.local, by_place), k);
  return {picked(picked(places, by_place), best), whole.mesh, keys.place};
}

// Keys made of `from`, and of constants, on what each device has of it after it moved. Null where
// they are made of anything else.
UOp made_again(const UOp& keys, const UOp& from, const UOp& moved, NodeMap<UOp>& made) {
  if (keys == from) return moved;
  if (const UOp* known = made.find(keys)) return *known;
  UOp result;
  if (is_const(keys)) {
    result = reshaped_const(keys, moved.shape());
  } else if (info(keys.op()).op_class == OpClass::Elementwise && made.size() < 64) {
    std::vector<UOp> src;
    for (const UOp& s : keys->src()) {
      src.push_back(made_again(s, from, moved, made));
      if (!src.back()) return {};
    }
    result = UOp::make(keys.op(), keys.dtype(), src, keys->arg(), keys->payload);
  }
  return made[keys] = result;
}

LocalValue moved_keys(const UOp& x, LocalValue keys, const Places& to, LocalValues& values) {
  const DimSpan global = x.src(0).shape();
  const UOp from = values.looked_up_by(x);
  if (from && !(from == x.src(0)) && from.shape().size() == global.size() &&
      std::ranges::equal(from.shape(), global) &&
      itemsize(from.dtype()) <= itemsize(keys.local.dtype())) {
    const LocalValue v = values.of(from);
    if (v.mesh && *v.mesh == *keys.mesh && v.place == keys.place) {
      NodeMap<UOp> made;
      const LocalValue there = values.moved(v, global, to);
      if (const UOp again = made_again(x.src(0), from, there.local, made))
        return {again, keys.mesh, to};
    }
  }
  return values.moved(std::move(keys), global, to);
}

// The time that devices take to sort rows by columns, or to put them back; each has `part` of them.
double seconds_by_columns(const UOp& part, const Columns& columns, size_t itemsize,
                          const Mesh& mesh, int axis, LinkModel& links) {
  const double rows = double(part->numel()) / double(columns.part);
  const auto took = [&](int64_t elements) {
    const double bytes = rows * double(elements) * double(itemsize);
    return links.seconds_of(CollectiveOp::AllToAll, bytes, mesh, axis);
  };
  return 2 * took(columns.dealt()) + took(columns.to_neighbours());
}

// A sort of whole rows by columns: of the values of which the keys are made, where these lie as the
// keys do, else of the keys.
class ByColumns {
 public:
  ByColumns(const UOp& x, const LocalValue& keys, int axis, LocalValues& values)
      : x_(x), keys_(keys), axis_(axis), values_(values) {
    const Mesh& mesh = *keys.mesh;
    const UOp& sorted_keys = x.src(0);
    columns_ = columns_of(sorted_keys.shape().back(), mesh.axes()[size_t(axis)].size);
    ordered_ = values.ordered_by(x);
    if (!ordered_) return;
    if (!std::ranges::equal(ordered_->value.shape(), sorted_keys.shape())) {
      ordered_.reset();
      return;
    }
    const LocalValue& v = values.of(ordered_->value);
    if (!v.mesh || !(*v.mesh == mesh) || !(v.place == keys.place)) ordered_.reset();
  }

  bool is_possible() const {
    return sorted_places(*x_) == columns_.length && columns_.suffice() && keys_.local->numel() > 0;
  }
  // Hashes what the time depends on besides the keys.
  uint64_t facts() const {
    return !ordered_ ? 0 : 1 + uint64_t(ordered_->value.dtype()) * 2 + uint64_t(ordered_->alone);
  }

  double seconds() const {
    double seconds = seconds_of(itemsize(lying().local.dtype()));
    if (!ordered_ || !ordered_->alone) seconds += seconds_of(itemsize(DType::I32));
    return seconds;
  }

  // The order; where only the values are wanted, and nobody reads it, zeros in its place.
  LocalValue run() const {
    const DimSpan global = x_.src(0).shape();
    const auto like = [&](UOp local) {
      return LocalValue{std::move(local), keys_.mesh, keys_.place};
    };
    ColumnKeys compared;
    if (ordered_) {
      const Sorting sorting = ordered_->sorting;
      compared = {[sorting](const UOp& v) { return sort_keys(v, sorting); },
                  last_in_order(lying().local.dtype(), sorting)};
    } else {
      compared = {[](const UOp& v) { return v; }, const_int(keys_.local.dtype(), -1)};
    }
    const bool with_order = !ordered_ || !ordered_->alone;
    const SortedColumns all = sorted_columns(lying(), global, axis_, compared, with_order);
    if (ordered_) values_.set_sorted(x_, ordered_->value, like(all.values));
    if (!with_order) return like(const_int(DType::I32, 0, keys_.local.shape()));
    values_.set_route(x_, std::make_shared<ColumnRoute>(all.route));
    return like(all.places);
  }

 private:
  const LocalValue& lying() const { return ordered_ ? values_.of(ordered_->value) : keys_; }

  double seconds_of(size_t itemsize) const {
    return seconds_by_columns(keys_.local, columns_, itemsize, *keys_.mesh, axis_, values_.links());
  }

  const UOp& x_;
  const LocalValue& keys_;
  int axis_;
  LocalValues& values_;
  Columns columns_;
  std::optional<LocalValues::Ordered> ordered_;
};

}  // namespace

LocalValue sort(const UOp& x, LocalValues& values) {
  DimSpan global = x.src(0).shape();
  const int last = last_dim(global);
  LocalValue keys = settled_in_both_forms(values.of(x.src(0)), global);
  if (const auto rows = keys.mesh ? joined_rows(keys, last) : std::nullopt) {
    const Apart& apart = rows->apart;
    const auto [first, end] = dims_of(apart, last);
    const int64_t each =
        std::min(sorted_places(*x),
                 product(apart.value.local.shape().subspan(size_t(first), size_t(end - first))));
    const auto devices = double(keys.mesh->axes()[size_t(rows->axis)].size);
    const auto size = double(itemsize(keys.local.dtype()));
    const auto elements = double(apart.value.local->numel());
    const double joined = elements * size * (devices - 1) / devices;
    const double line = double(global.back()) / devices;
    const double bytes =
        (devices - 1) * elements / line * double(each) * (size + itemsize(DType::I32));
    Question question(x);
    question.about(apart.value, apart.shape).about(uint64_t(keys.mesh->id()));
    Decisions::Choice choice = values.decisions().ask(question.hash());
    const auto seconds = [&](CollectiveOp op, double sent) {
      return values.links().seconds_of(op, sent, *keys.mesh, rows->axis);
    };
    choice.offer(seconds(CollectiveOp::AllToAll, joined));
    if (each > 0 && choice.offer(seconds(CollectiveOp::AllGather, bytes)))
      return by_candidates(*rows, global, sorted_places(*x), each);
  }
  if (!keys.mesh || parts_of(keys, last) == 1) return rebuilt(x, {keys}, keys);
  const DType type = keys.local.dtype();
  const int axis = only_axis(keys, last);
  std::optional<ByColumns> columns;
  if (axis >= 0) columns.emplace(x, keys, axis, values);
  if (columns && !columns->is_possible()) columns.reset();
  Question question(x);
  question.about(keys, global).about(uint64_t(keys.mesh->id()));
  question.about(columns ? columns->facts() : ~uint64_t{0});
  Decisions::Choice choice = values.decisions().ask(question.hash());
  auto offer = [&](const Places& to) {
    return choice.offer(seconds_moved(type, global, *keys.mesh, keys.place, to, values.links()));
  };
  Places whole = keys.place;
  for (Placement& p : whole) {
    if (p == Shard(last)) p = Replicate;
  }
  offer(whole);
  Places best = whole;
  if (const Places other = other_rows(keys, global); offer(other)) best = other;
  bool by_parts = false;
  int64_t each = 0;
  if (axis >= 0) {
    each = std::min(sorted_places(*x), keys.local.shape().back());
    const auto others = double(keys.mesh->axes()[size_t(axis)].size - 1);
    const double rows = double(keys.local->numel()) / double(keys.local.shape().back());
    const auto size = double(itemsize(type) + itemsize(DType::I32));
    const double bytes = others * rows * double(each) * size;
    auto seconds = [&] {
      return values.links().seconds_of(CollectiveOp::AllGather, bytes, *keys.mesh, axis);
    };
    by_parts = each > 0 && choice.offer(seconds());
  }
  if (columns && choice.offer(columns->seconds())) return columns->run();
  if (by_parts) return by_candidates(std::move(keys), global, axis, sorted_places(*x), each);
  keys = moved_keys(x, std::move(keys), best, values);
  return rebuilt(x, {keys}, keys);
}

std::optional<LocalValue> scattered_by_order(const UOp& x, LocalValues& values) {
  const UOp &order = x.src(0), &data = x.src(1);
  const std::shared_ptr<const ColumnRoute> route = values.route_of(order);
  const DimSpan global = order.shape();
  const int last = last_dim(global);
  const ScatterArg arg = scatter_arg(*x);
  if (!route || arg.axis != last || arg.size != global.back()) return std::nullopt;
  const LocalValue& lies = values.of(order);
  const Mesh& mesh = *lies.mesh;
  const int axis = axis_of(lies, last);
  const Columns columns = columns_of(global.back(), mesh.axes()[size_t(axis)].size);
  // Else each device scatters what it has, and what all of them made is added up.
  const auto split = values.split_by_user(x, mesh, size_t(axis));
  Places pending = lies.place, completed = lies.place;
  pending[size_t(axis)] = Partial(arg.op);
  if (split != Shard(last)) completed[size_t(axis)] = Replicate;
  Question question(x);
  question.about(lies, global).about(completed).about(uint64_t(mesh.id()));
  Decisions::Choice choice = values.decisions().ask(question.hash());
  LinkModel& links = values.links();
  choice.offer(seconds_moved(x.dtype(), global, mesh, pending, completed, links));
  if (!choice.offer(
          seconds_by_columns(lies.local, columns, itemsize(x.dtype()), mesh, axis, links)))
    return std::nullopt;
  const LocalValue there = values.brought(data, mesh, lies.place);
  UOp back = columns_put_back(there, global, axis, *route);
  // A sum begins with 0, which makes 0 of -0.
  if (arg.op == ReduceOp::Sum && is_float(x.dtype()))
    back = binary(Op::Add, back, const_like(back, 0));
  return LocalValue{back, mesh, lies.place};
}

}  // namespace tinyshard
