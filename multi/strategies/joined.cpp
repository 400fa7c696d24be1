// A joined value keeps its value in finer dims beside it (LocalValue::apart), and
// how many of these each of its dims is made of: [16, 512] of [2, 8, 512] has the
// counts 2 and 1. Ops by element and permutes are done in both forms; whatever
// else is computed of the value has the joined one alone. A reshape to a shape
// that cannot lie as the value does looks for dims into which both shapes divide.
#include "multi/strategies/joined.h"

#include <algorithm>

#include "multi/strategies/realigned.h"

namespace tinyshard {
namespace {

// Where the divided dims of v are in shape `to`; nothing where one is not there any more.
std::optional<std::vector<Placement>> placed_in(const LocalValue& v, DimSpan from, DimSpan to) {
  std::vector<Placement> place = v.place;
  for (Placement& p : place) {
    if (!p.is_shard()) continue;
    p.dim = reshaped_dim(from, to, p.dim, parts_of(v, p.dim));
    if (p.dim < 0) return std::nullopt;
  }
  return place;
}

// The dims into which both shapes divide, and how many of them make each dim of `to`. [16, 512] and
// [2, 4096]: [2, 8, 512] and 1, 2. Nothing where they have none in common.
struct Common {
  Dims shape;
  std::vector<size_t> counts;
};
std::optional<Common> common(DimSpan from, DimSpan to) {
  Common found;
  size_t next = 0;
  int64_t left = 1;  // of the dim of `from` that is being used up
  for (int64_t size : to) {
    size_t count = 0;
    for (int64_t missing = size; missing != 1; ++count) {
      while (left == 1 && next < from.size()) left = from[next++];
      const int64_t piece = std::min(left, missing);
      if (piece < 2 || left % piece != 0 || missing % piece != 0) return std::nullopt;
      found.shape.push_back(piece);
      left /= piece, missing /= piece;
    }
    if (count == 0) found.shape.push_back(1);
    found.counts.push_back(std::max<size_t>(count, 1));
  }
  return found;
}

Dims permuted(DimSpan order, const std::vector<size_t>& counts) {
  std::vector<size_t> first(counts.size());
  for (size_t i = 1; i < counts.size(); ++i) first[i] = first[i - 1] + counts[i - 1];
  Dims fine;
  for (int64_t dim : order) {
    for (size_t i = 0; i < counts[size_t(dim)]; ++i)
      fine.push_back(int64_t(first[size_t(dim)] + i));
  }
  return fine;
}

}  // namespace

LocalValue reshaped(LocalValue v, DimSpan from, DimSpan to) {
  Dims shape(from.begin(), from.end());
  for (size_t a = 0; a < v.place.size(); ++a) {
    const Placement p = v.place[a];
    if (!p.is_shard() || reshaped_dim(shape, to, p.dim, parts_of(v, p.dim)) >= 0) continue;
    if (auto moved = realigned(v, shape, to, p.dim)) {
      v = std::move(*moved);
    } else {
      v = without_shard(std::move(v), shape, p.dim);
    }
    a = size_t(-1);  // look at all axes again
  }
  v.place = *placed_in(v, shape, to);
  v.local = reshape(v.local, Sharding{*v.mesh, v.place}.local_shape(to));
  return v;
}

std::pair<int, int> dims_of(const Apart& apart, int joined) {
  size_t first = 0;
  for (int i = 0; i < joined; ++i) first += apart.counts[size_t(i)];
  return {int(first), int(first + apart.counts[size_t(joined)])};
}

UOp in_lines(const UOp& part, const Apart& apart) {
  Dims lines;
  for (size_t d = 0; d < apart.counts.size(); ++d) {
    const auto [first, last] = dims_of(apart, int(d));
    lines.push_back(product(part.shape().subspan(size_t(first), size_t(last - first))));
  }
  return reshape(part, lines);
}

LocalValue joined_again(LocalValue v, Dims shape, std::vector<size_t> counts, DimSpan joined) {
  LocalValue one = reshaped(v, shape, joined);
  if (!placed_in(v, shape, joined)) {
    one.apart =
        std::make_shared<const Apart>(Apart{std::move(v), std::move(shape), std::move(counts)});
  }
  return one;
}

LocalValue settled_in_both_forms(LocalValue v, DimSpan global) {
  if (v.apart) {
    Apart next = *v.apart;
    next.value = settled(std::move(next.value), next.shape);
    v.apart = std::make_shared<const Apart>(std::move(next));
  }
  return settled(std::move(v), global);
}

namespace {

// An op that works element by element on operands which lay alike before their dims were joined.
LocalValue with_elements_apart(const UOp& x, LocalValue made, const LocalValues& values) {
  const Apart* like = nullptr;
  for (const UOp& s : x->src()) {
    if (is_const(s)) continue;
    const LocalValue& v = values.lying(s);
    if (v.gather_on_use || !v.apart || !made.mesh || !(*v.mesh == *made.mesh)) return made;
    const bool alike = !like || (v.apart->shape == like->shape && v.apart->counts == like->counts &&
                                 v.apart->value.place == like->value.place);
    if (!alike || std::ranges::any_of(v.apart->value.place, &Placement::is_partial)) return made;
    like = v.apart.get();
  }
  if (!like) return made;
  Apart next = *like;
  std::vector<UOp> src;
  for (const UOp& s : x->src()) {
    src.push_back(is_const(s) ? reshaped_const(s, like->value.local.shape())
                              : values.lying(s).apart->value.local);
  }
  next.value.local = UOp::make(x.op(), x.dtype(), src, x->arg(), x->payload);
  made.apart = std::make_shared<const Apart>(std::move(next));
  return made;
}

}  // namespace

LocalValue with_apart(const UOp& x, LocalValue made, const LocalValues& values) {
  if (x.op() == Op::Dot || x.op() == Op::ScatterAdd) return made;
  made.apart = nullptr;  // that of a source which the rule has worked on
  if (x->sources == 0) return made;
  if (info(x.op()).op_class == OpClass::Elementwise)
    return with_elements_apart(x, std::move(made), values);
  if (!is_movement(x.op()) && values.lying(x.src(0)).gather_on_use) return made;
  const LocalValue& source = values.of(x.src(0));
  if (!source.mesh || !made.mesh || !(*source.mesh == *made.mesh)) return made;
  const std::shared_ptr<const Apart>& known = source.apart;
  switch (x.op()) {
    case Op::Reshape: {
      const LocalValue& fine = known ? known->value : source;
      const DimSpan shape = known ? DimSpan(known->shape) : x.src(0).shape();
      const auto place = placed_in(fine, shape, x.shape());
      if (place && !known) return made;  // part by part
      if (place)
        return {reshape(fine.local, Sharding{*fine.mesh, *place}.local_shape(x.shape())), fine.mesh,
                *place, fine.origin};
      std::optional<Common> finer = common(shape, x.shape());
      if (!finer || !placed_in(fine, shape, finer->shape)) return made;
      made.apart = std::make_shared<const Apart>(Apart{
          reshaped(fine, shape, finer->shape), std::move(finer->shape), std::move(finer->counts)});
      return made;
    }
    case Op::Permute: {
      if (!known) return made;
      Apart next{known->value, {}, {}};
      const Dims order = permuted(x->arg(), known->counts);
      next.value.local = permute(known->value.local, order);
      for (int64_t dim : order) next.shape.push_back(known->shape[size_t(dim)]);
      for (int64_t dim : x->arg()) next.counts.push_back(known->counts[size_t(dim)]);
      for (Placement& p : next.value.place) {
        if (p.is_shard()) p.dim = int(std::ranges::find(order, p.dim) - order.begin());
      }
      made.apart = std::make_shared<const Apart>(std::move(next));
      return made;
    }
    case Op::Contiguous:
    case Op::ContiguousBackward:
    case Op::Detach:
    case Op::Identity: {
      const bool sum = known && std::ranges::any_of(known->value.place, &Placement::is_partial);
      if (!known || sum) return made;
      Apart next = *known;
      next.value.local = UOp::make(x.op(), x.dtype(), {known->value.local}, x->arg(), x->payload);
      made.apart = std::make_shared<const Apart>(std::move(next));
      return made;
    }
    default:
      return made;
  }
}

}  // namespace tinyshard
