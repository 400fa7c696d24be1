// Elementwise ops work on parts that are split alike, and keep a sum pending where they are linear.
#include <algorithm>

#include "core/rewrite/fold.h"
#include "multi/movement_log.h"
#include "multi/moves.h"
#include "multi/strategies/pending.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {
namespace {

// Parameters that are gathered on use stay in parts where only they, constants, values in the same
// parts and sums that can be left in these are computed with: they are updated so, and rounded so
// before they are gathered.
std::optional<LocalValue> in_parts(const UOp& x, const LocalValues& values) {
  const LocalValue* parameter = nullptr;
  for (const UOp& s : x->src()) {
    if (values.lying(s).gather_on_use) parameter = &values.lying(s);
  }
  if (!parameter) return {};
  bool parameters_only = true;
  std::vector<LocalValue> v;
  for (const UOp& s : x->src()) {
    const LocalValue& lies = values.lying(s);
    if (lies.mesh && !(*lies.mesh == *parameter->mesh)) return {};
    for (size_t a = 0; a < lies.place.size(); ++a) {
      if (!lies.place[a].is_partial() && !(lies.place[a] == parameter->place[a])) return {};
    }
    parameters_only = parameters_only && (!lies.mesh || lies.gather_on_use);
    v.push_back(lies);
  }
  for (LocalValue& s : v)
    s = redistribute(std::move(s), x.shape(), *parameter->mesh, parameter->place);
  LocalValue result = rebuilt(x, v, *parameter);
  if (parameters_only) result.gather_on_use = parameter->gather_on_use;
  return result;
}

uint64_t question(const UOp& x, const std::vector<LocalValue>& v, size_t axis) {
  Question question(x);
  for (size_t i = 0; i < v.size(); ++i) question.about(v[i], x.src(i).shape());
  return question.about(uint64_t(v[0].mesh->id())).about(axis).hash();
}

// Returns the split that all operands move to: that of the operand which would be dearest to move.
// Nothing if none is divided.
std::optional<Placement> split_along(const UOp& x, const std::vector<LocalValue>& v, size_t axis,
                                     LocalValues& values) {
  std::vector<Placement> splits;
  for (const LocalValue& s : v) {
    const Placement& p = s.place[axis];
    if (p.is_shard() && std::ranges::find(splits, p) == splits.end()) splits.push_back(p);
  }
  if (splits.empty()) return std::nullopt;
  if (splits.size() == 1) return splits[0];
  const Mesh& mesh = *v[0].mesh;
  const auto parts = double(mesh.axes()[axis].size);
  Decisions::Choice choice = values.decisions().ask(question(x, v, axis));
  Placement best;
  for (const Placement& split : splits) {
    double seconds = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      if (!v[i].place[axis].is_shard() || v[i].place[axis] == split) continue;
      const UOp& local = values.of(repeated(x.src(i))).local;
      const double bytes = double(local->numel()) * double(itemsize(local.dtype()));
      seconds += values.links().seconds_of(CollectiveOp::AllToAll, bytes * (parts - 1) / parts,
                                           mesh, int(axis));
    }
    MovementLog::label(values.decisions(), [&] { return "all as " + split.to_string(); });
    if (choice.offer(seconds)) best = split;
  }
  return best;
}

// The type in which a sum of products that meets x is added up: that to which all who read x round
// it. A layer with a bias in bf16 sends what it would without.
DType summed_as(const UOp& x, const UOp& operand, const LocalValues& values) {
  const bool of_product = before_rearranging(operand).op() == Op::Dot;
  return of_product && x.op() == Op::Add ? values.read_as(x) : operand.dtype();
}

// Where a pending reduction is completed: divided as a user wants it, or whole.
Placement completed_along(const UOp& x, const std::vector<LocalValue>& v, size_t axis,
                          LocalValues& values) {
  const auto split = values.split_by_user(x, *v[0].mesh, axis);
  if (!split) return Replicate;
  Decisions::Choice choice =
      values.decisions().ask(Question(x).about(question(x, v, axis)).about({*split}).hash());
  Placement best = Replicate;
  for (const Placement& to : {*split, Replicate}) {
    double seconds = 0;
    for (size_t i = 0; i < v.size(); ++i) {
      std::vector<Placement> there = v[i].place;
      there[axis] = to;
      if (!v[i].place[axis].is_partial()) continue;
      const DType own = before_widening(v[i].local).dtype(), type = summed_as(x, x.src(i), values);
      seconds += seconds_moved(itemsize(type) < itemsize(own) ? type : own, x.src(i).shape(),
                               *v[i].mesh, v[i].place, there, values.links());
    }
    MovementLog::label(values.decisions(), [&] { return "sum completed as " + to.to_string(); });
    if (choice.offer(seconds)) best = to;
  }
  return best;
}

// Returns an operand if all lie alike and none is pending, so that nothing moves; null otherwise.
// Constants are everywhere and do not count.
const LocalValue* alike(const UOp& x, const LocalValues& values) {
  const LocalValue* first = nullptr;
  for (const UOp& s : x->src()) {
    const LocalValue& lies = values.lying(s);
    if (!lies.mesh && is_const(lies.local)) continue;
    if (!lies.mesh || lies.gather_on_use) return nullptr;
    if (!first) {
      first = &lies;
      if (std::ranges::any_of(lies.place, &Placement::is_partial)) return nullptr;
    } else if (!(*lies.mesh == *first->mesh) || lies.place != first->place) {
      return nullptr;
    }
  }
  return first;
}

// Returns which operand of a product is a pending lookup: it may stay pending although the other
// operand, which weighs it, may be infinite. The number of operands if there is none.
size_t weighed_operand(const UOp& x, const std::vector<LocalValue>& v) {
  auto is_partial = [](const Placement& p) { return p.is_partial(); };
  for (size_t i = 0; i < v.size(); ++i) {
    const bool lookup = weighs(x, x.src(i)) && std::ranges::any_of(v[i].place, is_partial);
    if (lookup && is_found(v[i].local)) return i;
  }
  return v.size();
}

// Returns the axes along which such an operand is completed before it is weighed. If it has to be
// completed along one axis, it is completed along all: only the terms of a lookup as they were
// found may be weighed.
std::vector<bool> completed_lookup(const UOp& x, const std::vector<LocalValue>& v, size_t lookup,
                                   const LocalValues& values) {
  std::vector<bool> axes(v[0].place.size(), false);
  if (lookup == v.size()) return axes;
  bool any = false;
  for (size_t a = 0; a < axes.size(); ++a) {
    axes[a] = v[lookup].place[a].is_partial();
    any = any || (axes[a] && !values.stays_pending(x, a));
  }
  return any ? axes : std::vector<bool>(axes.size(), false);
}

}  // namespace

LocalValue elementwise(const UOp& x, LocalValues& values) {
  if (const LocalValue* first = alike(x, values)) {
    std::vector<UOp> src;
    src.reserve(x->sources);
    for (const UOp& s : x->src()) {
      const LocalValue& lies = values.lying(s);
      src.push_back(lies.mesh ? lies.local : reshaped_const(lies.local, first->local.shape()));
    }
    return {UOp::make(x.op(), x.dtype(), src, x->arg(), x->payload), first->mesh, first->place};
  }
  if (std::optional<LocalValue> parts = in_parts(x, values)) return *parts;
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  std::vector<LocalValue> v;
  for (const UOp& s : x->src()) v.push_back(values.on(s, *mesh));
  std::vector<Placement> wanted(mesh->axes().size());
  const bool product = x.op() == Op::Mul && is_float(x.dtype());
  size_t lookup = product ? weighed_operand(x, v) : v.size();
  const std::vector<bool> whole = completed_lookup(x, v, lookup, values);
  if (std::ranges::find(whole, true) != whole.end()) lookup = v.size();
  for (size_t a = 0; a < wanted.size(); ++a) {
    const bool pending =
        std::ranges::any_of(v, [&](const LocalValue& s) { return s.place[a].is_partial(); });
    const bool stays = !whole[a] && (lookup == v.size() || v[lookup].place[a].is_partial());
    if (pending && stays && values.stays_pending(x, a)) {
      wanted[a] = Partial();
      continue;
    }
    if (auto split = split_along(x, v, a, values)) {
      wanted[a] = *split;
      continue;
    }
    if (!whole[a] && stays_partial(x, v, a)) {
      wanted[a] = Partial();
    } else if (pending) {
      wanted[a] = completed_along(x, v, a, values);
    }
  }
  for (size_t i = 0; i < v.size(); ++i) {
    std::vector<Placement> mine = wanted;
    for (size_t a = 0; a < mine.size(); ++a) {
      if (!wanted[a].is_partial()) continue;
      const bool weight = lookup < v.size() && i != lookup;
      mine[a] = v[i].place[a].is_partial() && !weight ? v[i].place[a] : Replicate;
    }
    const bool adds_up =
        std::ranges::any_of(v[i].place, &Placement::is_partial) && v[i].place != mine;
    const DType type = adds_up ? summed_as(x, x.src(i), values) : x.src(i).dtype();
    if (type == x.src(i).dtype()) {
      v[i] = values.brought(x.src(i), *mesh, mine);
      continue;
    }
    v[i].local = cast(v[i].local, type);
    v[i] = values.moved(std::move(v[i]), x.src(i).shape(), mine);
    v[i].local = cast(v[i].local, x.src(i).dtype());
  }
  if (lookup < v.size() && std::ranges::any_of(wanted, &Placement::is_partial))
    return {weighed(v[lookup].local, v[1 - lookup].local), mesh, wanted};
  return rebuilt(x, v, {UOp(), mesh, wanted});
}

}  // namespace tinyshard
