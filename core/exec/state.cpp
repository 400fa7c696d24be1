// Realization: which states are computed together, and what they become. See state.h.
#include "core/exec/state.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/host_read.h"
#include "core/exec/make_executable.h"
#include "core/exec/storage.h"
#include "core/uop/node_map.h"
#include "multi/rewrite.h"

namespace tinyshard {
namespace {

bool is_realized(const UOp& x) { return x.op() == Op::Buffer; }

// Returns those of the states whose graph holds a node for which `hit` holds, and no value that was
// lost with a runtime: it cannot be computed any more. What is below nodes of `cut` does not count.
template <class Hit>
std::vector<LiveValue> whose_graphs_hold(std::vector<LiveValue> states, const Hit& hit,
                                         const NodeMap<bool>* cut = nullptr) {
  std::vector<UOp> values;
  for (const LiveValue& s : states) values.push_back(s.value);
  struct Facts {
    bool holds = false, lost = false;
  };
  NodeMap<Facts> facts(values.size());
  for (const UOp& x : toposort(values)) {
    Facts here{hit(x), x.op() == Op::Buffer && Storage::of(*x)->is_lost()};
    for (const UOp& s : x->src()) {
      here.holds = here.holds || facts.at(s).holds;
      here.lost = here.lost || facts.at(s).lost;
    }
    here.holds = here.holds && !(cut && cut->contains(x));
    facts[x] = here;
  }
  std::erase_if(states, [&](const LiveValue& s) {
    const Facts& f = facts.at(s.value);
    return !f.holds || f.lost;
  });
  return states;
}

// Tells whether the values of these states, given once more as `roots`, are alone with the storages
// that they overwrite: whatever holds one of these has no reference but theirs.
template <class Overwritten>
bool are_alone(std::span<const UOp> roots, std::span<const StatePtr> states,
               const Overwritten& is_overwritten) {
  const NodeOrder order = toposort(roots);
  NodeMap<bool> holds(order.size());  // an overwritten storage
  NodeMap<uint32_t> known(order.size());
  for (const UOp& x : order) {
    bool found = is_overwritten(x);
    for (const UOp& s : x->src()) {
      ++known[s];
      found = found || holds.at(s);
    }
    holds[x] = found;
  }
  for (const UOp& root : roots) ++known[root];
  for (const StatePtr& s : states) ++known[s->value];
  return std::ranges::all_of(order, [&](const UOp& x) {
    return !holds.at(x) || x->references.load(std::memory_order_relaxed) <= known.at(x);
  });
}

// States elsewhere that meet a storage which a run overwrites.
struct Disturbed {
  // They are or read what it holds, or are to write to it: they are computed in the same run.
  std::vector<StatePtr> computed;
  // They hold what is to be written there, and nothing that was there before: they do without the
  // storage. Parameters that nobody read yet, and clones, are built upon like this.
  std::vector<StatePtr> rewired;
  // Roots that others can read where they were written: see written_plainly().
  NodeMap<bool> plain;
  std::unordered_set<const Storage*> overwritten;
};

// The roots that are written to a storage, were computed from no parameter, and are counters, or
// made of what was there before: the way back to that is gone, whatever a gradient is taken by.
template <class Overwritten>
NodeMap<bool> written_plainly(std::span<const UOp> roots, const Overwritten& is_overwritten) {
  std::unordered_set<const Node*> values;
  std::unordered_set<int64_t> names;
  for (const LiveValue& p :
       Context::values().find(0, [](const TensorState& s) { return bool(s.is_param); })) {
    values.insert(p.value.get());
    if (p.state->name != 0) names.insert(p.state->name);
  }
  const NodeOrder order = toposort(roots);
  NodeMap<bool> depends(order.size()), reads(order.size()), plain;
  for (const UOp& x : order) {
    bool found = values.contains(x.get()) || names.contains(name_of(x));
    const Storage::Ended* ended = x.op() == Op::Buffer ? Storage::of(*x)->ended.get() : nullptr;
    found = found || (ended && !ended->parameters.empty());
    bool read = is_overwritten(x);
    for (size_t i = 0; i < x->src().size(); ++i) {
      found = found || depends.at(x.src(i));
      read = read || (reads.at(x.src(i)) && !(i == 0 && x.op() == Op::Assign));
    }
    depends[x] = found;
    reads[x] = read;
  }
  for (const UOp& root : roots) {
    if (root.op() == Op::Assign && !depends.at(root) && (reads.at(root) || !is_float(root.dtype())))
      plain[root] = true;
  }
  return plain;
}

Disturbed disturbed_states(std::span<const UOp> roots, std::span<const StatePtr> listed) {
  Disturbed all;
  std::unordered_set<const Storage*>& overwritten = all.overwritten;
  auto add_overwritten = [&](std::span<const UOp> graphs) {
    size_t before = overwritten.size();
    for (const UOp& x : toposort(graphs)) {
      if (x.op() == Op::Assign && x.src(0).op() == Op::Buffer)
        overwritten.insert(Storage::of(*x.src(0)));
    }
    return overwritten.size() > before;
  };
  auto is_overwritten = [&](const UOp& x) {
    return x.op() == Op::Buffer && overwritten.contains(Storage::of(*x));
  };
  if (!add_overwritten(roots) || are_alone(roots, listed, is_overwritten)) return all;
  all.plain = written_plainly(roots, is_overwritten);
  // Other than as what it is to write to.
  auto reads_overwritten = [&](const UOp& x) {
    for (size_t i = x.op() == Op::Assign ? 1 : 0; i < x->src().size(); ++i) {
      if (is_overwritten(x.src(i))) return true;
    }
    return false;
  };
  std::unordered_set<const TensorState*> known;
  for (const StatePtr& s : listed) known.insert(s.get());
  auto others = [&](auto wanted) {
    return Context::values().find(0, [&](const TensorState& s) {
      return !s.traced && !known.contains(&s) && wanted(s.value);
    });
  };
  for (;;) {
    std::vector<UOp> graphs;
    auto add = [&](std::vector<LiveValue> found) {
      for (LiveValue& s : found) {
        known.insert(s.state.get());
        graphs.push_back(std::move(s.value));
        all.computed.push_back(std::move(s.state));
      }
    };
    add(whose_graphs_hold(others([&](const UOp& x) {
                            return has_storage(x) && (!is_realized(x) || is_overwritten(x));
                          }),
                          is_overwritten));
    add(whose_graphs_hold(others([&](const UOp& x) { return !has_storage(x); }), reads_overwritten,
                          &all.plain));
    if (!add_overwritten(graphs)) break;
  }
  for (LiveValue& s :
       whose_graphs_hold(others([&](const UOp& x) { return !has_storage(x); }), is_overwritten))
    all.rewired.push_back(std::move(s.state));
  return all;
}

// The number by which graphs know the value of a state, from now on if they did not.
int64_t name_for(TensorState& state) {
  if (state.name == 0) state.name = name_of(named(state.value));
  return state.name;
}

// After a run: what was to be written to an overwritten storage is what a parameter, or a value
// without one, holds now, or, where it is neither or not the latest, once more the value that was to be written, by the
// name of whose storage it was. Gradients go where they would have gone before.
void rewire(const Disturbed& disturbed, std::span<const StatePtr> states,
            std::span<const UOp> roots) {
  if (disturbed.rewired.empty()) return;
  std::unordered_map<const Node*, TensorState*> by_root;
  std::unordered_map<const Storage*, TensorState*> by_storage;
  for (size_t i = 0; i < states.size(); ++i) {
    if (!has_storage(roots[i])) continue;
    by_root[roots[i].get()] = states[i].get();
    by_storage[Storage::of(*storage_node(roots[i]))] = states[i].get();
  }
  std::vector<UOp> graphs;
  for (const StatePtr& s : disturbed.rewired) graphs.push_back(s->value);
  const NodeOrder order = toposort(graphs);
  NodeMap<UOp> now(order.size());
  for (const UOp& x : order) {
    std::vector<UOp> src;
    bool same = true;
    for (const UOp& s : x->src()) {
      src.push_back(now.at(s));
      same = same && src.back() == s;
    }
    UOp there = same ? x : x.with_src(src);
    if (x.op() == Op::Assign && disturbed.overwritten.contains(Storage::of(*storage_node(x)))) {
      const auto root = by_root.find(x.get());
      const auto owner = by_storage.find(Storage::of(*storage_node(x)));
      if (root != by_root.end() && (root->second->is_param || disturbed.plain.contains(x))) {
        there = root->second->value;
      } else {
        const int64_t number =
            owner == by_storage.end() ? name_of(named(src[1])) : name_for(*owner->second);
        there = UOp::make(Op::Identity, x.dtype(), {src[1]}, DimSpan(&number, 1));
      }
    }
    now[x] = there;
  }
  for (size_t i = 0; i < graphs.size(); ++i) disturbed.rewired[i]->set(now.at(graphs[i]));
}

// The parameters alive whose values are among the nodes, in the order in which they were created.
std::vector<StatePtr> parameters_among(std::span<const UOp> nodes) {
  if (Capture* trace = current_capture()) trace->asked_for_parameters = true;
  std::unordered_set<const Node*> values;
  std::unordered_set<int64_t> names;
  for (const UOp& x : nodes) {
    values.insert(x.get());
    if (x.op() == Op::Identity) names.insert(name_of(x));
  }
  auto found = Context::values().find_within(current_capture(), [&](const TensorState& s) {
    return s.is_param && (values.contains(s.value.get()) || names.contains(s.name));
  });
  std::vector<StatePtr> params;
  for (LiveValue& s : found) params.push_back(std::move(s.state));
  return params;
}

// The nodes that a gradient may go through on its way back from `root`: none that is detached, and no
// whole numbers.
std::vector<UOp> way_back(const UOp& root) {
  std::vector<UOp> nodes, todo{root};
  std::unordered_set<const Node*> seen;
  while (!todo.empty()) {
    const UOp x = std::move(todo.back());
    todo.pop_back();
    if (x.op() == Op::Detach || !is_float(x.dtype()) || !seen.insert(x.get()).second) continue;
    todo.insert(todo.end(), x->src().begin(), x->src().end());
    nodes.push_back(x);
  }
  return nodes;
}

// Returns the names and values by which a gradient of `root` could be taken; null if there are
// none.
std::shared_ptr<const Storage::Ended> ended_by(const UOp& root) {
  Storage::Ended all;
  const std::vector<UOp> nodes = way_back(root);
  for (const UOp& x : nodes) {
    if (x.op() == Op::Identity) all.names.push_back(name_of(x));
    if (x.op() != Op::Buffer) continue;
    all.storages.emplace_back(x->payload);
    if (const Storage::Ended* earlier = Storage::of(*x)->ended.get()) {
      all.parameters.insert(all.parameters.end(), earlier->parameters.begin(),
                            earlier->parameters.end());
    }
  }
  for (const StatePtr& p : parameters_among(nodes)) all.parameters.push_back(name_for(*p));
  std::ranges::sort(all.parameters);
  const auto repeated = std::ranges::unique(all.parameters);
  all.parameters.erase(repeated.begin(), repeated.end());
  const bool none = all.names.empty() && all.storages.empty() && all.parameters.empty();
  return none ? nullptr : std::make_shared<const Storage::Ended>(std::move(all));
}

// The same of what waited to be written over `p`, a parameter, and reads what that held: of other
// parameters that it was made of. What `p` itself was before is not what it is now.
std::shared_ptr<const Storage::Ended> ended_by_update(const TensorState& p, const UOp& root) {
  Storage::Ended all;
  for (const StatePtr& other : parameters_among(way_back(root.src(1)))) {
    if (other.get() != &p) all.parameters.push_back(name_for(*other));
  }
  std::ranges::sort(all.parameters);
  return all.parameters.empty() ? nullptr : std::make_shared<const Storage::Ended>(std::move(all));
}

// The value of a state once its root was computed in `storage`.
UOp node_of(const std::shared_ptr<Storage>& storage, const UOp& root) {
  if (has_storage(root)) {
    const UOp& node = storage_node(root);
    if (Storage::of(*node) == storage.get()) return node;
  }
  return buffer_node(storage);
}

}  // namespace

TensorState::TensorState(UOp v) : value_(std::move(v)), name(name_of(value_)) {}
TensorState::~TensorState() { Context::values().remove(*this); }
void TensorState::set(UOp v) {
  Context::values().set(*this, std::move(v));
  if (has_storage(value_)) {
    Storage& storage = *Storage::of(*storage_node(value_));
    if (!label.empty()) storage.label = label;
    if (gather_on_use) storage.gather_on_use = gather_on_use;
    if (stays) storage.stays = true;
  }
  if (!is_realized(value_)) return;
  holds_storage(*this);
  if (view_of && view_of->is_copy) view_of.reset();  // whose index tensors need not live on
}

StatePtr TensorState::gradient() {
  Capture* trace = current_capture();
  return trace ? trace->ask_for_gradient(*this) : gradient_;
}

void TensorState::set_gradient(StatePtr g) {
  if (Capture* trace = current_capture()) trace->give_gradient(*this);
  gradient_ = std::move(g);
}

void TensorState::set_label(const std::string& path) {
  label = path;
  if (has_storage(value_)) Storage::of(*storage_node(value_))->label = label;
}

void TensorState::set_gather_on_use(std::shared_ptr<const GatherOnUse> how) {
  gather_on_use = std::move(how);
  if (has_storage(value_)) Storage::of(*storage_node(value_))->gather_on_use = gather_on_use;
}

void TensorState::set_stays() {
  stays = true;
  if (has_storage(value_)) Storage::of(*storage_node(value_))->stays = true;
}

StatePtr make_state(UOp value) {
  auto state = std::make_shared<TensorState>(std::move(value));
  Context::values().add(*state);  // once others can share it
  if (is_realized(state->value)) holds_storage(*state);
  return state;
}

namespace {
const TensorState* holder_of(const Storage& storage,
                             const std::shared_ptr<const TensorState>& owner) {
  bool holds =
      owner && has_storage(owner->value) && Storage::of(*storage_node(owner->value)) == &storage;
  return holds ? owner.get() : nullptr;
}
}  // namespace

// The state of another thread that was the holder may take another value, or end, meanwhile.
const TensorState* holder(const Storage& storage) {
  std::shared_ptr<const TensorState> owner;  // outlives the lock
  return Context::values().locked([&] {
    owner = storage.owner.lock();
    return holder_of(storage, owner);
  });
}

bool holds_storage(const TensorState& state) {
  std::shared_ptr<const TensorState> owner;
  return Context::values().locked([&] {
    if (!has_storage(state.value)) return false;  // another name of what lies there
    Storage& storage = *Storage::of(*storage_node(state.value));
    owner = storage.owner.lock();
    const TensorState* now = holder_of(storage, owner);
    if (!now) storage.owner = state.weak_from_this();
    return !now || now == &state;
  });
}

void replace_value(TensorState& state, UOp value) {
  Storage* left = nullptr;
  if (has_storage(state.value) && holds_storage(state))
    left = Storage::of(*storage_node(state.value));
  if (left && has_storage(value) && Storage::of(*storage_node(value)) == left) left = nullptr;
  const UOp before = state.value;  // keeps the storage
  const int64_t name = name_of(value);
  Context::values().replace(state, std::move(value), name);
  state.traced = false;
  if (left) left->replaced_at = newest_value();
}

uint64_t newest_value() { return Context::values().newest(); }

std::vector<LiveValue> given_since(uint64_t since) {
  return Context::values().find_own_within(
      current_capture(), since, [](const TensorState& s) { return !is_realized(s.value); });
}

void fail_without_value(const TensorState& state) {
  const UOp value = under_names(state.value);
  const std::string text = fmt::format("{}{}", name(value.dtype()), to_string(value.shape()));
  if (state.left) {
    fail(fmt::format(
        "{}, {}, has no value: a captured step left it, which made it for its own "
        "optimizer and kept nothing of it: return it from the step, or call zero_grad() "
        "before something is added to it",
        state.label, text));
  }
  const Origin& made = origin_of(origin_id(value));
  fail(
      fmt::format("this tensor{}{}, {}{}{}{}, was made inside a captured step and has no value "
                  "outside of it: return it from the step",
                  state.label.empty() ? "" : ", ", state.label, text, made.op.empty() ? "" : " of ",
                  made.op, made.line == 0 ? "" : fmt::format(" ({})", made.source())));
}

void mark_lost_gradient(TensorState& gradient, const TensorState& parameter) {
  gradient.label = "the gradient of " + (parameter.label.empty() ? "a parameter" : parameter.label);
  gradient.left = gradient.traced = true;
}

namespace {
std::atomic<uint64_t> changed_parameters{0};
}  // namespace

uint64_t parameter_changes() { return changed_parameters.load(std::memory_order_relaxed); }

void set_parameter(TensorState& state, bool is_param) {
  if (state.is_param.exchange(is_param) != is_param)
    changed_parameters.fetch_add(1, std::memory_order_relaxed);
}

std::vector<StatePtr> parameters_of(const Graph& roots) { return parameters_among(roots.order()); }

namespace {
// Unasked: because something that they need is to be written over.
void compute(std::span<const StatePtr> states, bool unasked = false);
}  // namespace

void separate(TensorState& state) {
  if (holds_storage(state)) return;
  const Context::Turn turn;
  state.set(UOp::make(Op::Contiguous, state.value.dtype(), {state.value}));
  StatePtr self = state.shared_from_this();
  compute(std::span(&self, 1));
}

void settle(const StorageUse& use, uint64_t since, std::span<const TensorState* const> renewed) {
  const Context::Turn turn;
  auto will_change = [&](const UOp& x) {
    return x.op() == Op::Buffer && use.writes(Storage::of(*x));
  };
  // Some states computed in one round may be equal to what a holder has assigned.
  for (;;) {
    auto found = Context::values().find(since, [&](const TensorState& s) {
      return !s.traced && (!is_realized(s.value) || will_change(s.value));
    });
    std::erase_if(found, [&](const LiveValue& s) {
      return (is_realized(s.value) && holds_storage(*s.state)) ||
             std::ranges::find(renewed, s.state.get()) != renewed.end();
    });
    if (found.empty()) return;
    found = whose_graphs_hold(std::move(found), [&](const UOp& x) {
      if (x.op() != Op::Assign || x.src(0).op() != Op::Buffer) return will_change(x);
      const Storage* written = Storage::of(*x.src(0));
      return use.reads(written) || use.writes(written);
    });
    if (found.empty()) return;
    std::vector<StatePtr> states;
    for (const LiveValue& s : found) {
      if (is_realized(s.value)) s.state->set(UOp::make(Op::Contiguous, s.value.dtype(), {s.value}));
      states.push_back(s.state);
    }
    compute(states, true);
  }
}

const UOp& touch(TensorState& state) {
  if (state.traced) fail_without_value(state);
  const Capture* capture = current_capture();
  if (capture && capture->is_from_before(state)) {
    StatePtr self = state.shared_from_this();
    CaptureScope outside(nullptr);
    compute(std::span(&self, 1));
    separate(state);  // the step will know it by its storage
  }
  return state.value;
}

void realize_assignments() {
  auto waiting = Context::values().find_own(
      [](const TensorState& s) { return !s.traced && !is_realized(s.value); });
  std::vector<StatePtr> states;
  for (LiveValue& s :
       whose_graphs_hold(std::move(waiting), [](const UOp& x) { return x.op() == Op::Assign; }))
    states.push_back(std::move(s.state));
  realize(states);
}

namespace {

// States that are computed together, and the graphs that compute them.
struct Computation {
  std::vector<StatePtr> states;
  std::vector<UOp> roots;
  size_t asked = 0;  // the first ones; the others need what these write over
  Disturbed disturbed;
};

// Returns the `states` that have no storage of their own yet, then states elsewhere that need what
// these write over. Changes nothing.
Computation computation_of(std::span<const StatePtr> states) {
  Computation c;
  std::unordered_set<const TensorState*> known;
  for (const StatePtr& s : states) {
    if (s->traced) fail_without_value(*s);
    if (is_realized(s->value) || !known.insert(s.get()).second) continue;
    c.states.push_back(s);
    c.roots.push_back(s->value);
  }
  if (c.states.empty()) return c;
  c.asked = c.states.size();
  c.disturbed = disturbed_states(c.roots, c.states);
  for (const StatePtr& s : c.disturbed.computed) {
    c.states.push_back(s);
    c.roots.push_back(s->value);
  }
  return c;
}

// Gives memory of their own to states whose value lies in another one's, too.
void compute(std::span<const StatePtr> states, bool unasked) {
  if (current_capture()) return;
  const Context::Turn turn;
  const Computation wanted = computation_of(states);
  if (wanted.states.empty()) return;
  for (const StatePtr& s : wanted.states) {
    if (has_storage(s->value)) holds_storage(*s);
  }
  std::vector<std::shared_ptr<const Storage::Ended>> ended(wanted.states.size());
  for (size_t i = unasked ? 0 : wanted.asked; i < ended.size(); ++i) {
    if (!has_storage(wanted.roots[i]))
      ended[i] = ended_by(wanted.roots[i]);
    else if (wanted.roots[i].op() == Op::Assign && wanted.states[i]->is_param)
      ended[i] = ended_by_update(*wanted.states[i], wanted.roots[i]);
  }
  for (size_t i = 0; i < ended.size() && !wanted.disturbed.rewired.empty(); ++i) {
    if (wanted.disturbed.plain.contains(wanted.roots[i])) ended[i] = ended_by(wanted.roots[i]);
  }
  auto executable = make_executable(wanted.roots, false);
  executable->run();
  std::unordered_map<const Storage*, UOp> results;  // states with one value share one storage
  for (size_t i = 0; i < wanted.states.size(); ++i) {
    const std::shared_ptr<Storage>& storage = executable->roots()[i];
    UOp& result = results[storage.get()];
    if (!result || ended[i]) storage->ended = ended[i];
    wanted.states[i]->set(result ? share_stored(result)
                                 : (result = node_of(storage, wanted.roots[i])));
  }
  rewire(wanted.disturbed, wanted.states, wanted.roots);
}

// The states among these that realize() computes. UserError where one was lost.
std::vector<StatePtr> without_value(std::span<const StatePtr> states) {
  std::vector<StatePtr> wanted;
  for (const StatePtr& s : states) {
    const UOp* stored = stored_node(s->value);
    if (!stored || s->traced) {
      wanted.push_back(s);
    } else if (Storage::of(**stored)->is_lost()) {
      Storage::of(**stored)->check_usable();
    }
  }
  return wanted;
}

}  // namespace

void realize(std::span<const StatePtr> states) {
  if (current_capture()) return;
  if (const std::vector<StatePtr> wanted = without_value(states); !wanted.empty()) compute(wanted);
}

Schedule plan_of(std::span<const StatePtr> states) {
  if (current_capture())
    fail("the step that is being captured has no plan yet: ask for that of its Jit");
  const Context::Turn turn;
  const Computation wanted = computation_of(without_value(states));
  if (wanted.states.empty()) return {};
  for (const UOp& x : toposort(wanted.roots)) {
    if (x.op() == Op::Buffer) Storage::of(*x)->check_usable();
  }
  // As for a run, what is assigned is written to the storages of those that assign it; but they
  // become the holders of these storages only for as long as the plan is made.
  std::vector<std::pair<Storage*, std::weak_ptr<const TensorState>>> before;
  for (const StatePtr& s : wanted.states) {
    if (!has_storage(s->value)) continue;
    Storage* storage = Storage::of(*storage_node(s->value));
    before.emplace_back(storage, storage->owner);
    holds_storage(*s);
  }
  auto restore = [&] {
    for (size_t i = before.size(); i-- > 0;) before[i].first->owner = before[i].second;
  };
  try {
    Schedule schedule = make_plan(wanted.roots);
    restore();
    return schedule;
  } catch (...) {
    restore();
    throw;
  }
}

std::shared_ptr<Storage> in_boxes(TensorState& state) {
  if (current_capture()) {
    fail(
        "reading data inside a captured step: the values do not exist while the step is recorded; "
        "return the tensor and read it outside");
  }
  StatePtr self = state.shared_from_this();
  realize(std::span(&self, 1));
  const UOp buffer = *stored_node(state.value);
  std::shared_ptr<Storage> storage = shared_storage(buffer);
  need_device_of(storage->sharding.mesh);
  Sharding boxes = storage->sharding;
  for (Placement& p : boxes.placements) p = p.is_partial() ? Replicate : without_parts(p);
  if (boxes == storage->sharding) return storage;
  // They come together beside the state, which stays as it is.
  return in_boxes(*make_state(place(buffer, boxes)));
}

void read(TensorState& state, std::span<std::byte> to) {
  const Context::Turn turn;
  read_whole(*in_boxes(state), to);
}

std::vector<std::byte> read(TensorState& state) {
  const UOp value = state.value;
  std::vector<std::byte> data(size_t(value->numel()) * itemsize(value.dtype()));
  read(state, data);
  return data;
}

bool is_lost(const TensorState& state) {
  const UOp value = state.value;
  const UOp* buffer = stored_node(storage_node(value));
  return buffer && Storage::of(**buffer)->is_lost();
}

void write(TensorState& state, std::span<const std::byte> data) {
  check_internal(is_realized(state.value), "only a realized state is written from the host");
  const Context::Turn turn;
  Storage* storage = Storage::of(*state.value);
  size_t expected = size_t(product(storage->shape())) * itemsize(storage->dtype());
  if (data.size() != expected) {
    throw UserError(fmt::format("write: {} bytes for a tensor of {} bytes", data.size(), expected));
  }
  // The node has one reference where nobody but the state names the storage.
  if (state.value->references.load(std::memory_order_relaxed) > 1) {
    separate(state);
    storage = Storage::of(*state.value);
    settle({{storage}, {storage}}, 0);
  }
  storage->wrote(data);
  if (storage->sharding.is_replicated()) {
    for (size_t i = 0; i < storage->devices().size(); ++i)
      storage->devices()[i]->copy_in(storage->memory()[i], data.data(), data.size());
    return;
  }
  UOp host = host_buffer(storage->shape(), storage->dtype(), data);
  state.set(UOp::make(Op::Assign, state.value.dtype(), {state.value, host}));
  StatePtr self = state.shared_from_this();
  realize(std::span(&self, 1));
}

Mesh default_mesh() {
  Context::get();
  const World& all = world();
  DeviceRef first = all.devices[size_t(all.rank) * (all.devices.size() / size_t(all.ranks))];
  first.rank = DeviceRef::kHere;
  return Mesh::single(first);
}

UOp empty_buffer(DimSpan shape, DType dtype, const Sharding& where) {
  return buffer_node(std::make_shared<Storage>(Dims(shape.begin(), shape.end()), dtype, where));
}

UOp host_buffer(DimSpan shape, DType dtype, std::span<const std::byte> data) {
  check_internal(data.size() == size_t(product(shape)) * itemsize(dtype),
                 "host data has the bytes of its shape");
  auto storage = std::make_shared<Storage>(Dims(shape.begin(), shape.end()), dtype,
                                           replicated(default_mesh()));
  const Context::Use use;
  storage->devices()[0]->copy_in(storage->memory()[0], data.data(), data.size());
  storage->wrote(data);
  return buffer_node(std::move(storage));
}

bool has_storage(const UOp& value) { return value.op() == Op::Buffer || value.op() == Op::Assign; }

const UOp* stored_node(const UOp& value) {
  const UOp* node = &value;
  while (node->op() == Op::Identity || node->op() == Op::Detach) node = &node->src(0);
  return node->op() == Op::Buffer ? node : nullptr;
}

UOp without_storage_left(const UOp& value, const UOp& old) {
  if (value.op() == Op::Redistribute) {
    UOp moved = without_storage_left(value.src(0), old);
    return moved == value.src(0) ? value : place(moved, placement_of(*value));
  }
  const bool unwritten = value == old && value.op() == Op::Assign &&
                         value.src(0).op() == Op::Buffer &&
                         !Storage::of(*value.src(0))->allocated();
  return unwritten ? value.src(1) : value;
}

UOp with_own_storage(const UOp& value) {
  UOp target = empty_buffer(value.shape(), value.dtype(), sharding_of(value));
  return UOp::make(Op::Assign, value.dtype(), {target, value});
}

Sharding sharding_of(const UOp& value) {
  Context::get();
  if (const UOp* buffer = stored_node(value)) return Storage::of(**buffer)->sharding;
  if (value.op() == Op::Assign || value.op() == Op::Identity) return sharding_of(value.src(0));
  const UOp alone = without_waits(value);
  return to_local(std::span(&alone, 1)).shardings[0];
}

}  // namespace tinyshard
