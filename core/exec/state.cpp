// Realization: which states are computed together, and what they become. See state.h.
#include "core/exec/state.h"

#include <algorithm>
#include <cstring>
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

// Every state alive, so that a run that overwrites a storage can find who still needs its old
// value.
struct Registry {
  std::mutex mutex;
  std::unordered_set<TensorState*> states;
};
Registry& registry() {
  static auto* r = new Registry;  // outlives every static tensor
  return *r;
}

bool is_realized(const UOp& x) { return x.op() == Op::Buffer; }

// The Buffer below a chain of assignments.
const UOp& storage_node(const UOp& x) {
  const UOp* node = &x;
  while (node->op() == Op::Assign) node = &node->src(0);
  return *node;
}

// States elsewhere whose graph reads a storage that `roots` overwrite.
std::vector<StatePtr> disturbed_states(std::span<const UOp> roots,
                                       std::span<const StatePtr> listed) {
  NodeMap<bool> overwritten;
  bool any = false;
  for (const UOp& x : toposort(roots)) {
    if (x.op() != Op::Assign) continue;
    overwritten[storage_node(x)] = true;
    any = true;
  }
  std::vector<StatePtr> found, candidates;
  if (!any) return found;
  std::vector<UOp> values;
  for_each_live_state([&](const StatePtr& state) {
    if (is_realized(state->value) || state->traced ||
        std::ranges::find(listed, state) != listed.end())
      return;
    candidates.push_back(state);
    values.push_back(state->value);
  });
  NodeMap<bool> reads(values.size());  // node -> its graph holds an overwritten storage
  for (const UOp& x : toposort(values)) {
    bool hit = overwritten.contains(x);
    for (const UOp& s : x->src()) hit = hit || reads.at(s);
    reads[x] = hit;
  }
  for (const StatePtr& state : candidates) {
    if (reads.at(state->value)) found.push_back(state);
  }
  return found;
}

UOp node_of(const std::shared_ptr<Storage>& storage, const UOp& root) {
  return root.op() == Op::Assign ? storage_node(root) : buffer_node(storage);
}

}  // namespace

Capture* current_capture() { return active_capture; }
CaptureScope::CaptureScope(Capture* capture) : previous_(active_capture) {
  active_capture = capture;
}
CaptureScope::~CaptureScope() { active_capture = previous_; }

TensorState::TensorState(UOp v) : value(std::move(v)) {
  std::lock_guard lock(registry().mutex);
  registry().states.insert(this);
}

TensorState::~TensorState() {
  std::lock_guard lock(registry().mutex);
  registry().states.erase(this);
}

void for_each_live_state(const std::function<void(const StatePtr&)>& visit) {
  std::vector<StatePtr> live;
  {
    std::lock_guard lock(registry().mutex);
    for (TensorState* raw : registry().states) {
      if (StatePtr state = raw->weak_from_this().lock()) live.push_back(std::move(state));
    }
  }
  // Creation order of the values: the same on every rank.
  std::ranges::sort(live, {}, [](const StatePtr& s) { return s->value->id; });
  for (const StatePtr& state : live) visit(state);
}

const UOp& touch(TensorState& state) {
  auto waits = [](const TensorState& s) {
    return !is_realized(s.value) && active_capture->is_from_before(s);
  };
  if (active_capture && waits(state)) {
    // Parameters and optimizer state come in numbers: those that wait for their first value get it
    // in one run, not one by one.
    std::vector<StatePtr> all{state.shared_from_this()};
    for_each_live_state([&](const StatePtr& s) {
      if (s.get() != &state && s->value.op() == Op::Assign && !s->traced && waits(*s))
        all.push_back(s);
    });
    CaptureScope outside(nullptr);
    realize(all);
  }
  return state.value;
}

void realize(std::span<const StatePtr> states) {
  if (active_capture) return;
  std::vector<StatePtr> wanted;
  std::vector<UOp> roots;
  auto add = [&](const StatePtr& s) {
    if (is_realized(s->value) || std::ranges::find(wanted, s) != wanted.end()) return;
    if (s->traced) {
      throw UserError(
          "this tensor was made inside a captured step and has no value outside of it: return it "
          "from the step");
    }
    wanted.push_back(s);
    roots.push_back(s->value);
  };
  for (const StatePtr& s : states) add(s);
  if (wanted.empty()) return;
  // What is computed with them may overwrite storages of its own, which disturbs further states.
  for (bool more = true; more;) {
    size_t before = wanted.size();
    for (const StatePtr& s : disturbed_states(roots, wanted)) add(s);
    more = wanted.size() > before;
  }
  auto executable = make_executable(roots, false);
  executable->run();
  std::unordered_map<const Node*, UOp> results;  // states with one value share one buffer
  for (size_t i = 0; i < wanted.size(); ++i) {
    UOp& result = results[roots[i].get()];
    if (!result) result = node_of(executable->roots()[i], roots[i]);
    wanted[i]->value = result;
  }
}

std::vector<std::byte> read(TensorState& state) {
  if (active_capture) {
    throw UserError(
        "reading data inside a captured step: the values do not exist while the step is recorded; "
        "return the tensor and read it outside");
  }
  StatePtr self = state.shared_from_this();
  realize(std::span(&self, 1));
  Storage* storage = Storage::of(*state.value);
  if (!storage->sharding.is_replicated()) {
    // All parts come together on every device first; the state itself stays as it is.
    auto gathered = make_state(place(state.value, replicated(storage->sharding.mesh)));
    return read(*gathered);
  }
  need_device_of(storage->sharding.mesh);
  std::vector<std::byte> data(storage->local_bytes());
  Device* device = storage->devices()[0];
  device->copy_out(data.data(), storage->memory()[0], data.size());
  return data;
}

void write(TensorState& state, std::span<const std::byte> data) {
  check_internal(is_realized(state.value), "only a realized state is written from the host");
  Storage* storage = Storage::of(*state.value);
  size_t expected = size_t(product(storage->shape())) * itemsize(storage->dtype());
  if (data.size() != expected) {
    throw UserError(fmt::format("write: {} bytes for a tensor of {} bytes", data.size(), expected));
  }
  storage->wrote(data);
  if (storage->sharding.is_replicated()) {
    for (size_t i = 0; i < storage->devices().size(); ++i)
      storage->devices()[i]->copy_in(storage->memory()[i], data.data(), data.size());
    return;
  }
  UOp host = host_buffer(storage->shape(), storage->dtype(), data);
  auto updated = make_state(UOp::make(Op::Assign, state.value.dtype(), {state.value, host}));
  realize(std::span(&updated, 1));
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

UOp without_first_storage(const UOp& value) {
  bool first = value.op() == Op::Assign && value.src(0).op() == Op::Buffer &&
               !Storage::of(*value.src(0))->allocated();
  return first ? value.src(1) : value;
}

UOp with_own_storage(const UOp& value) {
  UOp target = empty_buffer(value.shape(), value.dtype(), sharding_of(value));
  return UOp::make(Op::Assign, value.dtype(), {target, value});
}

Sharding sharding_of(const UOp& value) {
  Runtime::get();
  if (value.op() == Op::Buffer) return Storage::of(*value)->sharding;
  if (value.op() == Op::Assign) return sharding_of(value.src(0));
  return to_local(std::span(&value, 1)).shardings[0];
}

}  // namespace tinyshard
