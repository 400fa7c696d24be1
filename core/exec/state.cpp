// Realization: which states are computed together, and what they become. See state.h.
#include "core/exec/state.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/pipeline.h"
#include "core/exec/runtime.h"
#include "core/exec/storage.h"
#include "core/uop/node_map.h"
#include "multi/rewrite.h"

namespace tinyshard {
namespace {

thread_local Capture* active_capture = nullptr;

}  // namespace

// Every state alive, so that who overwrites a storage can find those who still need its old value;
// in the order in which they were given their values.
class Registry {
 public:
  void add(TensorState& state) {
    std::lock_guard lock(mutex_);
    link(state);
  }
  void remove(TensorState& state) {
    std::lock_guard lock(mutex_);
    unlink(state);
  }
  void set(TensorState& state, UOp value) {
    std::lock_guard lock(mutex_);
    unlink(state);
    std::swap(state.value_, value);  // what goes is dropped outside of the lock
    link(state);
  }
  uint64_t newest() const { return newest_.load(std::memory_order_relaxed); }

  // The states given their values after `since` for which `wanted` holds, in the order in which
  // their values were created: the same on every rank.
  template <class Wanted>
  std::vector<StatePtr> live(uint64_t since, const Wanted& wanted) {
    std::vector<StatePtr> found;
    {
      std::lock_guard lock(mutex_);
      for (TensorState* s = last_; s && s->given_ > since; s = s->older_) {
        if (!wanted(*s)) continue;
        if (StatePtr state = s->weak_from_this().lock()) found.push_back(std::move(state));
      }
    }
    std::ranges::sort(found, {}, [](const StatePtr& s) { return s->value->id; });
    return found;
  }

  static Registry& get() {
    static auto* r = new Registry;  // outlives every static tensor
    return *r;
  }

 private:
  void link(TensorState& state) {
    state.older_ = last_;
    state.newer_ = nullptr;
    (last_ ? last_->newer_ : first_) = &state;
    last_ = &state;
    state.given_ = newest_.load(std::memory_order_relaxed) + 1;
    newest_.store(state.given_, std::memory_order_relaxed);
  }
  void unlink(TensorState& state) {
    (state.older_ ? state.older_->newer_ : first_) = state.newer_;
    (state.newer_ ? state.newer_->older_ : last_) = state.older_;
  }

  std::mutex mutex_;
  TensorState *first_ = nullptr, *last_ = nullptr;
  std::atomic<uint64_t> newest_{0};
};

namespace {

bool is_realized(const UOp& x) { return x.op() == Op::Buffer; }

// Of these states, those whose graph holds a node for which `hit` holds, and no value that was lost
// with a runtime: it cannot be computed any more.
template <class Hit>
std::vector<StatePtr> whose_graphs_hold(const std::vector<StatePtr>& states, const Hit& hit) {
  std::vector<UOp> values;
  for (const StatePtr& s : states) values.push_back(s->value);
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
    facts[x] = here;
  }
  std::vector<StatePtr> found;
  for (const StatePtr& s : states) {
    if (const Facts& f = facts.at(s->value); f.holds && !f.lost) found.push_back(s);
  }
  return found;
}

// Whether the values of these states, given once more as `roots`, are alone with the storages that
// they overwrite: whatever holds one of these has no reference but theirs.
template <class Overwritten>
bool are_alone(std::span<const UOp> roots, std::span<const StatePtr> states,
               const Overwritten& is_overwritten) {
  const std::vector<UOp> order = toposort(roots);
  NodeMap<bool> holds(order.size());  // an overwritten storage
  NodeMap<uint32_t> known(order.size());
  for (const UOp& x : order) {
    bool found = is_overwritten(x);
    ++known[x];
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

// States elsewhere that are or read what a storage holds which `roots` overwrite, or which the
// graphs of such states overwrite.
std::vector<StatePtr> disturbed_states(std::span<const UOp> roots,
                                       std::span<const StatePtr> listed) {
  std::unordered_set<const Storage*> overwritten;
  auto add_overwritten = [&](std::span<const UOp> graphs) {
    size_t before = overwritten.size();
    for (const UOp& x : toposort(graphs)) {
      if (x.op() == Op::Assign && x.src(0).op() == Op::Buffer)
        overwritten.insert(Storage::of(*x.src(0)));
    }
    return overwritten.size() > before;
  };
  std::vector<StatePtr> found;
  auto is_overwritten = [&](const UOp& x) {
    return x.op() == Op::Buffer && overwritten.contains(Storage::of(*x));
  };
  if (!add_overwritten(roots) || are_alone(roots, listed, is_overwritten)) return found;
  std::unordered_set<const TensorState*> known;
  for (const StatePtr& s : listed) known.insert(s.get());
  for (;;) {
    auto more = Registry::get().live(0, [&](const TensorState& s) {
      return !s.traced && (!is_realized(s.value) || is_overwritten(s.value)) && !known.contains(&s);
    });
    more = whose_graphs_hold(more, is_overwritten);
    std::vector<UOp> graphs;
    for (const StatePtr& s : more) {
      known.insert(s.get());
      graphs.push_back(s->value);
    }
    found.insert(found.end(), more.begin(), more.end());
    if (!add_overwritten(graphs)) return found;
  }
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

Capture* current_capture() { return active_capture; }
CaptureScope::CaptureScope(Capture* capture) : previous_(active_capture) {
  active_capture = capture;
}
CaptureScope::~CaptureScope() { active_capture = previous_; }

TensorState::TensorState(UOp v) : value_(std::move(v)), name(name_of(value_)) {
  Registry::get().add(*this);
}
TensorState::~TensorState() { Registry::get().remove(*this); }
void TensorState::set(UOp v) {
  Registry::get().set(*this, std::move(v));
  if (is_realized(value_)) holds_storage(*this);
}

StatePtr make_state(UOp value) {
  auto state = std::make_shared<TensorState>(std::move(value));
  if (is_realized(state->value)) holds_storage(*state);
  return state;
}

const TensorState* holder(const Storage& storage) {
  auto state = storage.owner.lock();
  bool holds =
      state && has_storage(state->value) && Storage::of(*storage_node(state->value)) == &storage;
  return holds ? state.get() : nullptr;
}

bool holds_storage(const TensorState& state) {
  if (!has_storage(state.value)) return false;  // another name of what lies there
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  Storage& storage = *Storage::of(*storage_node(state.value));
  const TensorState* now = holder(storage);
  if (!now) storage.owner = state.weak_from_this();
  return !now || now == &state;
}

void replace_value(TensorState& state, UOp value) {
  state.name = name_of(value);
  state.set(std::move(value));
}

uint64_t newest_value() { return Registry::get().newest(); }

void for_each_live_state(const std::function<void(const StatePtr&)>& visit) {
  for (const StatePtr& s : Registry::get().live(0, [](const TensorState&) { return true; }))
    visit(s);
}

namespace {
void compute(std::span<const StatePtr> states);
}  // namespace

void separate(TensorState& state) {
  if (holds_storage(state)) return;
  state.set(UOp::make(Op::Contiguous, state.value.dtype(), {state.value}));
  StatePtr self = state.shared_from_this();
  compute(std::span(&self, 1));
}

void settle(const StorageUse& use, uint64_t since) {
  auto will_change = [&](const UOp& x) {
    return x.op() == Op::Buffer && use.writes(Storage::of(*x));
  };
  // Of the states computed in one round, some may be equal to what a holder has assigned.
  for (;;) {
    auto found = Registry::get().live(since, [&](const TensorState& s) {
      return !s.traced && (!is_realized(s.value) || will_change(s.value));
    });
    std::erase_if(found,
                  [](const StatePtr& s) { return is_realized(s->value) && holds_storage(*s); });
    if (found.empty()) return;
    found = whose_graphs_hold(found, [&](const UOp& x) {
      if (x.op() != Op::Assign || x.src(0).op() != Op::Buffer) return will_change(x);
      const Storage* written = Storage::of(*x.src(0));
      return use.reads(written) || use.writes(written);
    });
    if (found.empty()) return;
    for (const StatePtr& s : found) {
      if (is_realized(s->value)) s->set(UOp::make(Op::Contiguous, s->value.dtype(), {s->value}));
    }
    compute(found);
  }
}

const UOp& touch(TensorState& state) {
  if (active_capture && active_capture->is_from_before(state)) {
    StatePtr self = state.shared_from_this();
    CaptureScope outside(nullptr);
    compute(std::span(&self, 1));
    separate(state);  // the step will know it by its storage
  }
  return state.value;
}

void realize_assignments() {
  auto waiting = Registry::get().live(
      0, [](const TensorState& s) { return !s.traced && !is_realized(s.value); });
  realize(whose_graphs_hold(waiting, [](const UOp& x) { return x.op() == Op::Assign; }));
}

namespace {

// Gives memory of their own to states whose value lies in another one's, too.
void compute(std::span<const StatePtr> states) {
  if (active_capture) return;
  std::vector<StatePtr> wanted;
  std::vector<UOp> roots;
  std::unordered_set<const TensorState*> known;
  for (const StatePtr& s : states) {
    if (is_realized(s->value) || !known.insert(s.get()).second) continue;
    if (s->traced) {
      throw UserError(
          "this tensor was made inside a captured step and has no value outside of it: return it "
          "from the step");
    }
    wanted.push_back(s);
    roots.push_back(s->value);
  }
  if (wanted.empty()) return;
  for (const StatePtr& s : disturbed_states(roots, wanted)) {
    wanted.push_back(s);
    roots.push_back(s->value);
  }
  for (const StatePtr& s : wanted) {
    if (has_storage(s->value)) holds_storage(*s);
  }
  auto executable = make_executable(roots, false);
  executable->run();
  std::unordered_map<const Storage*, UOp> results;  // states with one value share one storage
  for (size_t i = 0; i < wanted.size(); ++i) {
    const std::shared_ptr<Storage>& storage = executable->roots()[i];
    UOp& result = results[storage.get()];
    wanted[i]->set(result ? share_stored(result) : (result = node_of(storage, roots[i])));
  }
}

}  // namespace

void realize(std::span<const StatePtr> states) {
  if (active_capture) return;
  std::vector<StatePtr> wanted;
  std::ranges::copy_if(states, std::back_inserter(wanted),
                       [](const StatePtr& s) { return !stored_node(s->value) || s->traced; });
  compute(wanted);
}

std::vector<std::byte> read(TensorState& state) {
  if (active_capture) {
    throw UserError(
        "reading data inside a captured step: the values do not exist while the step is recorded; "
        "return the tensor and read it outside");
  }
  StatePtr self = state.shared_from_this();
  realize(std::span(&self, 1));
  const UOp buffer = stored_node(state.value);
  Storage* storage = Storage::of(*buffer);
  if (!storage->sharding.is_replicated()) {
    // All parts come together on every device first; the state itself stays as it is.
    auto gathered = make_state(place(buffer, replicated(storage->sharding.mesh)));
    return read(*gathered);
  }
  need_device_of(storage->sharding.mesh);
  std::vector<std::byte> data(storage->local_bytes());
  Device* device = storage->devices()[0];
  device->copy_out(data.data(), storage->memory()[0], data.size());
  return data;
}

bool is_lost(const TensorState& state) {
  const UOp buffer = stored_node(storage_node(state.value));
  return buffer && Storage::of(*buffer)->is_lost();
}

void write(TensorState& state, std::span<const std::byte> data) {
  check_internal(is_realized(state.value), "only a realized state is written from the host");
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
  Runtime::get();
  DeviceRef first =
      world().devices[size_t(world().rank) * (world().devices.size() / size_t(world().ranks))];
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
  storage->devices()[0]->copy_in(storage->memory()[0], data.data(), data.size());
  storage->wrote(data);
  return buffer_node(std::move(storage));
}

bool has_storage(const UOp& value) { return value.op() == Op::Buffer || value.op() == Op::Assign; }

UOp stored_node(const UOp& value) {
  const UOp* node = &value;
  while (node->op() == Op::Identity || node->op() == Op::Detach) node = &node->src(0);
  return node->op() == Op::Buffer ? *node : UOp();
}

UOp without_first_storage(const UOp& value) {
  bool first = value.op() == Op::Assign && value.src(0).op() == Op::Buffer &&
               !Storage::of(*value.src(0))->allocated();
  return first ? value.src(1) : value;
}

UOp with_own_storage(const UOp& value) {
  UOp target = empty_buffer(value.shape(), value.dtype(), sharding_of(value));
  return UOp::make(Op::Assign, value.dtype(), {target, value});
}

const UOp& storage_node(const UOp& x) {
  const UOp* node = &x;
  while (node->op() == Op::Assign) node = &node->src(0);
  return *node;
}

Sharding sharding_of(const UOp& value) {
  Runtime::get();
  if (UOp buffer = stored_node(value)) return Storage::of(*buffer)->sharding;
  if (value.op() == Op::Assign || value.op() == Op::Identity) return sharding_of(value.src(0));
  return to_local(std::span(&value, 1)).shardings[0];
}

}  // namespace tinyshard
