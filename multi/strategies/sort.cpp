// Sorts of rows that may be divided, the way that takes least time:
//
//   whole rows     a divided row is gathered, and each device sorts it
//   other rows     an all-to-all gives each device some whole rows; so lies the result
//   candidates     of the k that are asked for, each device finds those of its part; they are
//                  gathered, and sorted again:
//
//     the 2 smallest of [5 1 | 4 0], two devices: 1 at 1, 5 at 0 and 0 at 3, 4 at 2; of these
//     [1 5 0 4] the third and the first, which are places 3 and 1
//
// Rows that are many and short are divided anew, a row alone is gathered, topk has candidates.
#include <algorithm>

#include "core/uop/args.h"
#include "multi/moves.h"
#include "multi/strategies/held.h"
#include "multi/strategies/strategies.h"

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

// With the axes that divide rows dividing another dim instead, where one has room for that.
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

}  // namespace

LocalValue sort(const UOp& x, LocalValues& values) {
  DimSpan global = x.src(0).shape();
  const int last = last_dim(global);
  LocalValue keys = settled(values.of(x.src(0)), global);
  if (!keys.mesh || parts_of(keys, last) == 1) return rebuilt(x, {keys}, keys);
  const DType type = keys.local.dtype();
  const uint64_t question = Question(x).about(keys, global).about(uint64_t(keys.mesh->id())).hash();
  Decisions::Choice choice = values.decisions().ask(question);
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
  if (const int axis = only_axis(keys, last); axis >= 0) {
    const int64_t each = std::min(sorted_places(*x), keys.local.shape().back());
    const auto others = double(keys.mesh->axes()[size_t(axis)].size - 1);
    const double rows = double(keys.local->numel()) / double(keys.local.shape().back());
    const auto size = double(itemsize(type) + itemsize(DType::I32));
    const double bytes = others * rows * double(each) * size;
    auto seconds = [&] {
      return values.links().seconds_of(CollectiveOp::AllGather, bytes, *keys.mesh, axis);
    };
    if (each > 0 && choice.offer(seconds()))
      return by_candidates(std::move(keys), global, axis, sorted_places(*x), each);
  }
  keys = values.moved(std::move(keys), global, best);
  return rebuilt(x, {keys}, keys);
}

}  // namespace tinyshard
