// An executable binds a schedule to memory and devices once, and runs it often: it looks up programs
// and pointers, then a run walks a list of steps, or replays what was recorded of it.
#include "core/exec/executable.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/content_hash.h"
#include "core/base/debug_text.h"
#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/base/jit_mode.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "core/base/stopwatch.h"
#include "core/codegen/interpret.h"
#include "core/codegen/scalars.h"
#include "core/exec/compile.h"
#include "core/exec/context.h"
#include "core/exec/explain.h"
#include "core/exec/plan_record.h"
#include "core/exec/replicas.h"
#include "core/exec/tally.h"
#include "core/exec/transfer.h"
#include "core/schedule/hazards.h"
#include "core/schedule/memory.h"
#include "multi/change_mesh.h"

namespace tinyshard {
namespace {

// Runs of different tensors may be counted by several threads at once.
void count(int64_t& counter, int64_t more) {
  if (more != 0) std::atomic_ref(counter).fetch_add(more, std::memory_order_relaxed);
}

// Methods by which a program says itself that a value goes to other devices.
bool is_placing(std::string_view op) {
  return op == "shard" || op == "shard_like" || op == "data_parallel" || op == "fully_shard" ||
         op == "tensor_parallel";
}

bool is_on(const Mesh& mesh, int rank) {
  return std::ranges::any_of(mesh.devices(), [rank](const DeviceRef& d) {
    return d.rank == DeviceRef::kHere || d.rank == rank;
  });
}

bool of_several_ranks(const Mesh& mesh) {
  return std::ranges::any_of(mesh.devices(),
                             [&](const DeviceRef& d) { return d.rank != mesh.devices()[0].rank; });
}

// A copy takes values from devices of its own process. Where one rank of a mesh of several lacks
// them, all ranks know, and all refuse, so that none waits for another; a copy to one device
// concerns its process alone.
void check_copy(const Mesh& from, const Mesh& to) {
  for (const DeviceRef& target : to.devices()) {
    if (target.rank == DeviceRef::kHere && to.size() > 1 && !is_on(from, world().rank)) {
      fail(
          fmt::format("this process holds no device of {}: its values are elsewhere, and {} is one "
                      "of Mesh::of, of each process's own devices. Bring them to a mesh of all "
                      "ranks first, such as one of Mesh::world",
                      from.to_string(), to.to_string()));
    } else if (target.rank == DeviceRef::kHere || to.size() == 1) {
      if (is_on(to, world().rank)) need_device_of(from);
    } else if (!is_on(from, target.rank)) {
      fail(fmt::format("rank {} holds no device of {}: its values are elsewhere, and {} needs them",
                       target.rank, from.to_string(), to.to_string()));
    }
  }
}

}  // namespace

Executable::Executable(Schedule schedule, bool compare_ranks)
    : schedule_(std::move(schedule)), captured_(compare_ranks) {
  Context& context = Context::get();
  join_runtime();
  bool communicates = std::ranges::any_of(
      schedule_.items, [](const Item& i) { return i.kind == Item::Kind::Collective; });
  crosses_ranks_ = context.ranks() > 1 && std::ranges::any_of(schedule_.items, [](const Item& i) {
                     return i.kind == Item::Kind::Collective && of_several_ranks(i.mesh);
                   });
  if (context.ranks() > 1 && (compare_ranks || communicates)) {
    hash_ = schedule_.hash();
    Communicator& all = context.world();
    std::vector<int> ranks(static_cast<size_t>(context.ranks()));
    std::iota(ranks.begin(), ranks.end(), 0);
    RunIdentity told{.asked = asked()};
    context.ledgers().write_here();
    context.ledgers().identify(ranks, told);
    all.check_same(hash_, [&] { return schedule_.details(); }, "schedule", told);
  }
  ticket_ = {context.epoch(), hash_, 0, 0};
  for (const Item& item : schedule_.items) {
    if (item.kind == Item::Kind::Copy)
      check_copy(schedule_.buffers[item.buffers[0]].mesh, item.mesh);
  }
  owned_.resize(schedule_.buffers.size());
  inputs_.resize(schedule_.buffers.size());
  std::vector<int64_t> seen;
  Device *computes = nullptr, *plans = nullptr;
  for (size_t b = 0; b < owned_.size(); ++b) {
    VirtualBuffer& buffer = schedule_.buffers[b];
    if (buffer.storage) {
      auto placed = std::static_pointer_cast<const Placed>(buffer.storage);
      owned_[b] = std::static_pointer_cast<Storage>(std::const_pointer_cast<Placed>(placed));
      inputs_[b] = owned_[b].get();
    }
    if (std::ranges::find(seen, buffer.mesh.id()) != seen.end()) continue;
    seen.push_back(buffer.mesh.id());
    for (int p : context.local_positions(buffer.mesh)) {
      Device& device = context.device(buffer.mesh.devices()[p]);
      (device.executes() ? computes : plans) = &device;
    }
  }
  for (size_t r = 0; computes && plans && r < schedule_.roots.size(); ++r) {
    const Mesh& mesh = schedule_.buffers[size_t(base_of(schedule_.roots[r]).first)].mesh;
    auto readable = [&](int p) { return context.device(mesh.devices()[size_t(p)]).executes(); };
    if (std::ranges::none_of(context.local_positions(mesh), readable)) continue;
    throw UserError(
        fmt::format("values on {} meet values on {}, which plans what it is told and computes "
                    "nothing: bring all of them to devices of one kind",
                    computes->name(), plans->name()));
  }
  executes_ = !plans;
}

Executable::~Executable() {
  const Context::Use use;
  leave_runtime();
  release();
}

namespace {

void tell_arena(int64_t bytes) {
  observe([&] {
    return ObservedEvent{.kind = EventKind::Allocation, .name = "temporaries", .bytes = bytes};
  });
}

}  // namespace

void Executable::release() noexcept {
  if (!Context::is_ours()) {  // they are the parent's
    static_cast<void>(new (std::nothrow) Replay(std::move(replay_)));
    static_cast<void>(new (std::nothrow) std::vector<ToldSegment>(std::move(segments_)));
    return arenas_.clear();
  }
  drop_recordings();
  for (const Arena& arena : arenas_) {
    arena.device->free(arena.memory, arena.bytes);
    tell_arena(-int64_t(arena.bytes));
  }
  arenas_.clear();
}

void Executable::check_usable() const {
  if (is_lost()) {
    throw UserError(
        "captured step: it is lost with the runtime that it was captured in, since "
        "Runtime::shutdown() was called; reset() lets the next call capture it again");
  }
  Context::check_is_ours();
  if (counts_.library_calls > 0) check_not_exiting("a library's product cannot be computed");
}

void Executable::runtime_ends() noexcept {
  release();
  steps_.clear();
  programs_.clear();
  bindings_.clear();
  devices_.clear();
  segments_.clear();
}

std::pair<int, int64_t> Executable::base_of(int b) const {
  int64_t offset = 0;
  for (;;) {
    b = earliest_version(schedule_.buffers, b);
    const VirtualBuffer& v = schedule_.buffers[size_t(b)];
    if (v.container < 0) return {b, offset};
    offset += v.container_offset;
    b = v.container;
  }
}

StorageUse Executable::storage_use() const {
  StorageUse use;
  auto add = [&](std::vector<const Storage*>& list, int buffer) {
    if (const Storage* s = owned_[size_t(base_of(buffer).first)].get()) list.push_back(s);
  };
  for (const Item& item : schedule_.items) {
    for (int b : item.reads) add(use.read, b);
    for (int b : item.writes) add(use.written, b);
  }
  for (auto* list : {&use.read, &use.written}) {
    std::ranges::sort(*list);
    list->erase(std::ranges::unique(*list).begin(), list->end());
  }
  return use;
}

void* Executable::base_pointer(int b, int local) {
  const VirtualBuffer& buffer = schedule_.buffers[b];
  if (owned_[b]) return owned_[b]->memory()[local];
  Context& context = Context::get();
  const DeviceRef& ref = buffer.mesh.devices()[context.local_positions(buffer.mesh)[local]];
  Device* device = &context.device(ref);
  auto arena = std::ranges::find(arenas_, device, &Arena::device);
  if (arena == arenas_.end()) {
    try {
      const auto bytes = size_t(arena_bytes_on(schedule_, ref));
      arenas_.push_back({device, device->allocate(bytes, "temporaries"), bytes});
      tell_arena(int64_t(bytes));
    } catch (const DeviceError& error) {
      throw DeviceError(fmt::format("{}\n{}", error.what(), largest_values(schedule_)));
    }
    arena = arenas_.end() - 1;
  }
  return static_cast<char*>(arena->memory) + std::max<int64_t>(buffer.arena_offset, 0);
}

void Executable::rebind(const Storage& placeholder, Storage& actual) {
  for (size_t b = 0; b < owned_.size(); ++b) {
    if (owned_[b].get() == &actual && !in_chain_) {
      in_chain_ = true;
      drop_recordings();
    }
    if (owned_[b].get() != &placeholder) continue;
    inputs_[b] = &actual;
    std::span<void* const> memory = actual.memory();
    auto [first, last] = std::ranges::equal_range(bindings_, int(b), {}, &Binding::buffer);
    for (auto it = first; it != last; ++it) {
      void* before = *it->slot;
      bind(*it, memory[it->device]);
      if (*it->slot == before) continue;
      pointers_changed(*it);
    }
  }
}

// TS_CHECK=memory: generated code holds each access to what its kernel knows of its buffers. That
// these are as large, and lie inside of what they are part of, is checked here.
void Executable::check_extents(const Item& item) const {
  for (size_t i = 0; i < item.buffers.size(); ++i) {
    const VirtualBuffer& buffer = schedule_.buffers[item.buffers[i]];
    int64_t bytes = buffer.bytes();
    if (item.kind == Item::Kind::Kernel) {
      const ParamInfo& param = item.kernel.params[i];
      bytes = param.offset + param.numel * int64_t(itemsize(param.dtype));
      if (bytes > buffer.bytes()) {
        throw InternalError(
            fmt::format("kernel {} takes {} bytes as its parameter {}, which has {}",
                        item.kernel.name, bytes, i, buffer.bytes()));
      }
    }
    const auto [base, offset] = base_of(item.buffers[i]);
    const VirtualBuffer& whole = schedule_.buffers[base];
    const int64_t begin = owned_[base] ? 0 : std::max<int64_t>(whole.arena_offset, 0);
    const int64_t room =
        owned_[base] ? int64_t(owned_[base]->local_bytes()) : schedule_.arena_bytes;
    if (begin + offset < 0 || begin + offset + bytes > room) {
      throw InternalError(fmt::format("{}: buffer {} takes bytes {} to {} of {}", item.describe(),
                                      item.buffers[i], begin + offset, begin + offset + bytes,
                                      room));
    }
  }
}

// Returns which of this process's devices of the buffer's mesh is local device `d` of the item's
// mesh; -1 if none is.
int Executable::place_of(int buffer, const Item& item, int d) const {
  const Mesh& mesh = schedule_.buffers[size_t(buffer)].mesh;
  if (item.kind != Item::Kind::Collective || mesh == item.mesh) return d;
  Context& context = Context::get();
  auto device = [&](const Mesh& m, int position) {
    return &context.device(m.devices()[size_t(position)]);
  };
  const Device* wanted = device(item.mesh, context.local_positions(item.mesh)[size_t(d)]);
  const std::vector<int> local = context.local_positions(mesh);
  for (size_t i = 0; i < local.size(); ++i) {
    if (device(mesh, local[i]) == wanted) return int(i);
  }
  return -1;
}

void Executable::make_steps() {
  Context& context = Context::get();
  auto kernels = compile_items(schedule_.items, !captured_);
  ObservedScope event([] { return ObservedEvent{.kind = EventKind::Load, .name = "programs"}; });
  steps_.reserve(schedule_.items.size());
  size_t next_kernel = 0;
  bool leads = true;
  for (const Item& item : schedule_.items) {
    Step step{&item, {}, {}};
    if (options().check.memory) check_extents(item);
    std::vector<int> local = context.local_positions(item.mesh);
    for (int d = 0; d < int(local.size()); ++d) {
      Device& device = context.device(item.mesh.devices()[local[d]]);
      pointers_.emplace_back(item.buffers.size());
      coordinates_.push_back(item.mesh.coordinates(local[d]));
      const std::vector<int64_t> scalars = scalar_values(item.kernel);
      coordinates_.back().insert(coordinates_.back().end(), scalars.begin(), scalars.end());
      Launch launch{nullptr, &device, pointers_.back().data(), coordinates_.back().data()};
      bool launched = item.kind == Item::Kind::Kernel || item.kind == Item::Kind::Library;
      leads = leads && item.kind == Item::Kind::Copy;
      for (size_t i = 0; i < item.buffers.size(); ++i) {
        const int at = place_of(item.buffers[i], item, d);
        if (at < 0) continue;  // between meshes: the other one's
        auto [base, offset] = base_of(item.buffers[i]);
        if (item.kind == Item::Kind::Kernel) offset += item.kernel.params[i].offset;
        // A copy reads the one replica that this process holds first, unless it goes by places.
        bool source = item.kind == Item::Kind::Copy && i + 1 < item.buffers.size();
        int from = 0;
        if (item.place_by_place) from = at;
        if (!item.places.empty() && source) from = item.places[i];
        // The source of a copy is asked for its memory when the copy runs: a file that is only
        // copied stays where it is mapped.
        bindings_.push_back({base, source ? from : at, &pointers_.back()[i], offset,
                             int(steps_.size()), pointers_.back().data(), launched, leads,
                             source && owned_[base] && !owned_[base]->is_placeholder()});
      }
      if (item.kind == Item::Kind::Kernel)
        programs_.push_back(context.programs().of(device, kernels[next_kernel]));
      if (item.kind == Item::Kind::Library)
        programs_.push_back(context.programs().of(device, item.call));
      if (launched) launch.program = programs_.back().get();
      step.launches.push_back(launch);
    }
    if (item.kind == Item::Kind::Kernel) ++next_kernel;
    steps_.push_back(std::move(step));
  }
  event.finish([&] { return fmt::format("loaded {} programs", steps_.size()); });
}

CollectiveSite Executable::site_of(const Item& item) const {
  ItemOrigin origin = origin_of_item(schedule_, item);
  return {item.mesh.axes()[size_t(item.mesh_axis)].name, std::move(origin.purpose),
          std::move(origin.source)};
}

void Executable::bind_all() {
  std::ranges::sort(bindings_, {}, &Binding::buffer);
  for (int root : schedule_.roots) {
    int base = base_of(root).first;
    const VirtualBuffer& buffer = schedule_.buffers[base];
    if (!owned_[base])
      throw InternalError("a root has a storage: buffer " + std::to_string(base) + " of " +
                          std::to_string(buffer.numel()));
    roots_.push_back(owned_[base]);
  }
  for (const Binding& b : bindings_) {
    bool input = owned_[b.buffer] && owned_[b.buffer]->is_placeholder();  // bound by the caller
    if (!input && !b.copied) bind(b, base_pointer(b.buffer, b.device));
  }
  Context& context = Context::get();
  for (Step& step : steps_) {
    const Item& item = *step.item;
    if (item.kind != Item::Kind::Collective || !executes_) continue;
    for (const AxisGroup& along : context.groups_along(item.mesh, item.mesh_axis)) {
      Group group{&context.communicator(item.mesh, item.mesh_axis, along.positions[0]),
                  along.local,
                  false,
                  {},
                  {},
                  {}};
      Collective collective = item.collective;
      if (!item.transfers.empty()) {
        const size_t n = size_t(group.communicator->size());
        group.counts.resize(n * n);
        for (const Item::Transfer& t : item.transfers)
          group.counts[size_t(t.from) * n + size_t(t.to)] += size_t(t.count);
        collective.counts = group.counts;  // which move with the group
      }
      collective.ticket = {context.epoch(), hash_, item.sequence, 0};
      collective.site = std::make_shared<CollectiveSite>(site_of(item));
      group.calls.resize(std::max<size_t>(item.pieces.size(), 1), {collective, {}, {}, {}});
      for (size_t p = 0; p < item.pieces.size(); ++p)
        group.calls[p].collective.count = item.pieces[p];
      for (const size_t member : group.members) {
        const Launch& launch = step.launches[member];
        for (size_t p = 0; p < group.calls.size(); ++p) {
          group.calls[p].send.push_back({launch.buffers[2 * p], launch.device});
          group.calls[p].recv.push_back({launch.buffers[2 * p + 1], launch.device});
        }
      }
      group.through_host = !takes_buffers(*group.communicator, group.calls[0].send);
      if (group.through_host) {
        std::vector<Device*> devices;
        for (const CommBuffer& b : group.calls[0].send) devices.push_back(b.device);
        Communicator* direct = context.device_communicator(*group.communicator, devices);
        const Collective& call = item.collective;
        if (direct && direct->supports(call.op, call.dtype, call.reduce)) {
          group.communicator = direct;
          group.through_host = false;
        }
      }
      step.groups.push_back(std::move(group));
    }
  }
}

// Returns device number `from` of those of this process that hold the copy's source.
Device& Executable::source_device(const Item& copy, size_t from) const {
  Context& context = Context::get();
  const Mesh& mesh = schedule_.buffers[copy.buffers[0]].mesh;
  return context.device(mesh.devices()[size_t(context.local_positions(mesh).at(from))]);
}
// Returns the source of what the copy's local device number `local` gets.
Device& Executable::source_of(const Item& copy, size_t local) const {
  return source_device(copy, copy.place_by_place ? local : 0);
}

void Executable::prepare(std::span<const Sharding> shardings, std::span<const Dims> global_shapes) {
  for (size_t r = 0; r < schedule_.roots.size(); ++r) {
    int base = base_of(schedule_.roots[r]).first;
    if (owned_[base]) continue;
    owned_[base] =
        std::make_shared<Storage>(global_shapes[r], schedule_.buffers[base].dtype, shardings[r]);
  }
  if (executes_) make_steps();
  bind_all();
  // The copies at the front bring in values from elsewhere and are not recorded.
  while (leading_ < steps_.size() && steps_[leading_].item->kind == Item::Kind::Copy) ++leading_;
  identify_groups();
  if (Context::get().ranks() > 1) know_ledgers();
  can_record_ = can_record();
  find_bulk_copies();
  for (const Step& step : steps_) {
    for (const Launch& launch : step.launches) {
      bool leads = &step < steps_.data() + leading_;
      if (!leads && std::ranges::find(devices_, launch.device) == devices_.end())
        devices_.push_back(launch.device);
    }
    switch (step.item->kind) {
      case Item::Kind::Kernel:
        ++counts_.kernels;
        break;
      case Item::Kind::Library:
        ++counts_.library_calls;
        break;
      case Item::Kind::Collective:
        ++counts_.collectives;
        break;
      case Item::Kind::Copy:
        ++counts_.copies;
        break;
    }
  }
  std::ranges::sort(devices_);  // who records on several takes them in one order
  make_segments();
}

// Counts what the item does on each device of this process.
void Executable::add_work(const Item& item) {
  const std::vector<int> local = Context::get().local_positions(item.mesh);
  if (local.empty()) return;
  const ItemWork work = work_of(schedule_, item);
  for (int p : local) {
    const DeviceRef& ref = item.mesh.devices()[size_t(p)];
    auto here = std::ranges::find_if(work_, [&](const DeviceCounters& w) {
      return w.device.kind == ref.kind && w.device.index == ref.index;
    });
    if (here == work_.end()) {
      here = work_.insert(here, DeviceCounters{.device = ref});
      work_so_far_.push_back(&tally_of(ref));
    }
    here->kernels += item.kind == Item::Kind::Kernel;
    here->library_calls += item.kind == Item::Kind::Library;
    here->collectives += item.kind == Item::Kind::Collective;
    here->copies += item.kind == Item::Kind::Copy;
    here->bytes += work.bytes_read + work.bytes_written;
    here->operations += work.operations;
  }
}

// Once the groups do not move any more.
void Executable::identify_groups() {
  if (hash_ == 0) return;
  for (Step& step : steps_) {
    for (Group& group : step.groups) {
      const Communicator* c = group.communicator;
      if (c->local().size() == size_t(c->size())) continue;
      if (std::ranges::any_of(identified_, [&](const Group* g) { return g->communicator == c; }))
        continue;
      group.identity = RunIdentity{.what = hash_, .label = "schedule"};
      for (int p = 0; p < c->size(); ++p) group.ranks.push_back(c->rank_of(p));
      std::ranges::sort(group.ranks);
      const auto repeated = std::ranges::unique(group.ranks);
      group.ranks.erase(repeated.begin(), repeated.end());
      identified_.push_back(&group);
    }
  }
}

// A run that other ranks may leave out, as it only looks at what is there, is not held against them.
void Executable::know_ledgers() {
  Ledgers& ledgers = Context::get().ledgers();
  binds_ = crosses_ranks_;
  for (Step& step : steps_) {
    const Item& item = *step.item;
    compares_ = compares_ || ledgers.of(item.mesh);
    if (item.kind != Item::Kind::Copy) continue;
    const VirtualBuffer& source = schedule_.buffers[size_t(item.buffers[0])];
    if (!is_of_each_process(source.mesh)) continue;
    step.ledger = ledgers.of(item.mesh);
    if (!step.ledger) continue;
    const Origin& from = origin_of(schedule_.buffers[size_t(item.writes[0])].origin);
    binds_ = binds_ || is_placing(from.op);
    step.about = fmt::format("{}{}{}{}", name(source.dtype), to_string(item.source_shape),
                             from.op.empty() ? "" : " of " + from.op,
                             from.line == 0 ? "" : " (" + from.source() + ")");
  }
  for (const auto& root : roots_) {
    Ledger* ledger = ledgers.of(root->sharding.mesh);
    const bool known = std::ranges::find(inputs_, root.get()) != inputs_.end();
    if (!ledger || !known || std::ranges::find(changes_, ledger) != changes_.end()) continue;
    changes_.push_back(ledger);
    compares_ = binds_ = true;
  }
  if (!changes_.empty() && hash_ == 0) hash_ = schedule_.hash();
}

// Returns the method that asked for this run, with its line. A replayed step is named by its first
// result.
std::string_view Executable::asked() {
  const OriginId origin = origin_of_call();
  if (origin == asked_.first && !asked_.second.empty()) return asked_.second;
  Origin from = origin_of(origin);
  if (origin == 0 && !schedule_.roots.empty())
    from = origin_of(schedule_.buffers[size_t(schedule_.roots[0])].origin);
  asked_ = {origin,
            fmt::format("{}{}{}{}", origin == 0 ? "a step" : from.op,
                        origin == 0 && !from.op.empty() ? " with " + from.op : "",
                        from.line == 0 ? "" : " (", from.line == 0 ? "" : from.source() + ")")};
  return asked_.second;
}

void Executable::note(const Given& given) {
  if (writes_down_) return Context::get().ledgers().add(given);
  const auto known = std::ranges::find(given_, given.ledger, &Given::ledger);
  if (known == given_.end())
    given_.push_back(given);
  else
    known->hash = combine(known->hash, given.hash);
}

// Returns the state of the random numbers that this run draws, ", seed 7 behind 5 numbers"; empty
// if it draws none.
std::string Executable::draws_text() const {
  for (Storage* input : inputs_) {
    if (!input || !input->is_draw() || !is_of_each_process(input->sharding.mesh)) continue;
    const void* data = input->devices()[0]->host_pointer(input->memory_to_copy()[0]);
    if (!data) continue;
    std::array<uint64_t, 2> words{};
    std::memcpy(words.data(), data, sizeof(words));
    return fmt::format(", seed {} behind {} numbers", words[1], words[0] & (~uint64_t{0} >> 1));
  }
  return {};
}

void Executable::note_copied(const Step& copy, Device& source, const void* from) {
  const VirtualBuffer& buffer = schedule_.buffers[size_t(copy.item->buffers[0])];
  const auto [base, offset] = base_of(copy.item->buffers[0]);
  Storage* storage = inputs_[size_t(base)];
  const void* data = source.host_pointer(const_cast<void*>(from));
  Given given{copy.ledger, 0, GivenValue::Kind::Host, copy.about};
  if (storage && offset == 0) {
    given.hash = storage->content_hash();
  } else if (data) {
    given.hash = sample_hash({static_cast<const std::byte*>(data), size_t(buffer.bytes())});
  }
  if (given.hash == 0) return;
  if (!storage || storage->is_draw()) {
    const std::string draws = draws_text();
    if (!draws.empty()) given.kind = GivenValue::Kind::Draw;
    given.about += draws;
  }
  note(given);
}

void Executable::begin_run() {
  if (crosses_ranks_) ticket_.run = Context::get().next_run();  // counted by all ranks
  if (!compares_ && identified_.empty()) return;
  Ledgers& ledgers = Context::get().ledgers();
  if (crosses_ranks_) ledgers.write_here();
  writes_down_ = binds_ && ledgers.written_here();
  given_.clear();
  for (Storage* input : inputs_) {
    if (!input || input->given().empty()) continue;
    for (const Given& given : input->given()) note(given);
    if (writes_down_) input->clear_given();
  }
  for (Ledger* ledger : changes_)
    note({ledger, hash_, GivenValue::Kind::Step, std::string(asked())});
  for (Group* group : identified_) {
    group->identity->run = ticket_.run;
    group->identity->asked = asked();
    group->communicator->begin_run(ticket_);
  }
}

// Passes what the run was given on to its results, for the ledgers. A run that wrote it down itself
// has none left, and has it compared if it is time.
void Executable::end_run() {
  if (Context::get().ranks() == 1) return;
  for (const auto& root : roots_) root->run_wrote(given_);
  if (writes_down_) Context::get().compare_ledgers(asked());
}

// A recorded call passes no host; the identity goes on its own.
void Executable::announce() {
  for (Group* group : identified_) {
    if (!group->communicator->on_devices()) continue;
    Context::get().ledgers().identify(group->ranks, *group->identity);
    group->communicator->announce(*group->identity);
  }
}

void Executable::start(Step& step) {
  for (Group& group : step.groups) {
    for (size_t p = 0; p < group.calls.size(); ++p) {
      Call& call = group.calls[p];
      if (p == 0 && group.identity) {
        Context::get().ledgers().identify(group.ranks, *group.identity);
        call.collective.identity = &*group.identity;
      }
      call.collective.ticket.run = ticket_.run;
      for (size_t i = 0; i < group.members.size(); ++i) {
        void** buffers = step.launches[group.members[i]].buffers;
        call.send[i].data = buffers[2 * p];
        call.recv[i].data = buffers[2 * p + 1];
      }
      if (group.through_host)
        run_through_host(*group.communicator, call.collective, call.send, call.recv);
    }
    if (group.through_host) continue;
    Batch batch(*group.communicator);
    for (Call& call : group.calls)
      call.work = group.communicator->start(call.collective, call.send, call.recv);
    batch.end();
  }
}

void Executable::Group::wait() {
  if (through_host) return;
  // Calls on devices run in order, so waiting for the last one is enough.
  for (Call& call : calls) {
    if (!communicator->on_devices() || &call == &calls.back()) call.work.wait();
  }
}

// TS_CHECK=values: what the kernel makes of its buffers is compared with what the interpreter makes
// of copies of them.
void Executable::launch_compared(const Step& step, const Launch& launch) {
  const KernelSource& kernel = step.item->kernel;
  std::vector<std::vector<char>> copies;
  const auto copy_of = [&](size_t slot) -> const void* {
    const ParamInfo& param = kernel.params[slot];
    std::vector<char>& copy = copies.emplace_back(size_t(param.numel) * itemsize(param.dtype));
    if (!copy.empty()) launch.device->copy_out(copy.data(), launch.buffers[slot], copy.size());
    return copy.data();
  };
  std::vector<const void*> before, after;
  for (size_t slot = 0; slot < kernel.params.size(); ++slot) before.push_back(copy_of(slot));
  launch.program->launch(launch.buffers, launch.coordinates);
  launch.device->synchronize();
  for (size_t slot = 0; slot < kernel.params.size(); ++slot)
    after.push_back(kernel.params[slot].written ? copy_of(slot) : before[slot]);
  const InterpretOptions accuracy{.division_ulps = launch.device->target().division_ulps};
  const auto found =
      first_difference(kernel, before, after,
                       std::span(launch.coordinates, step.item->mesh.axes().size()), accuracy);
  if (!found) return;
  const VirtualBuffer& buffer = schedule_.buffers[step.item->buffers[size_t(found->param)]];
  std::string place;
  int64_t rest = found->element;
  for (size_t d = buffer.shape.size(); d-- > 0 && buffer.numel() > 0;) {
    place = fmt::format("{}{}{}", rest % buffer.shape[d], place.empty() ? "" : ", ", place);
    rest /= buffer.shape[d];
  }
  // The line that asked for the value; where its node has been rewritten, for the buffer.
  OriginId origin = found->value ? origin_id(found->value) : 0;
  if (origin_of(origin).line == 0) origin = buffer.origin;
  const Origin& asked = origin_of(origin);
  const std::string line =
      asked.line == 0 ? "" : fmt::format(" ({}, {})", asked.op, asked.source());
  throw InternalError(
      fmt::format("kernel {} on {}: element [{}] of its parameter {}, {} {}, is {}; {} was "
                  "expected, within {:g}, "
                  "as the value of {}{}; DEBUG=4 prints the kernel",
                  kernel.name, launch.device->name(), place, found->param, name(buffer.dtype),
                  to_string(buffer.shape), found->actual, found->expected, found->allowed,
                  found->value ? describe(*found->value) : "nothing that it stores", line));
}

ObservedEvent Executable::event_of(const Step& step) const {
  const Item& item = *step.item;
  EventKind kind = item.kind == Item::Kind::Copy         ? EventKind::Copy
                   : item.kind == Item::Kind::Collective ? EventKind::Collective
                                                         : EventKind::Launch;
  ObservedEvent event{.kind = kind, .name = item.describe(), .ticket = ticket_};
  event.plan = record_;
  event.item = int(&step - steps_.data());
  event.ticket.item = item.sequence;
  if (!item.writes.empty()) event.origin = schedule_.buffers[size_t(item.writes[0])].origin;
  return event;
}

void Executable::run_item(Step& step) {
  std::optional<ObservedScope> event;
  if (items_are_events()) event.emplace([&] { return event_of(step); });
  std::optional<Stopwatch> watch;
  if (event && waits_for_items_) watch.emplace();
  const ItemTimes::Time begun = times_.next();
  for (int w : step.item->waits) {
    // Segments wait at their ends for all that they start.
    if (!in_segments_ || segment_of_[size_t(w)] == segment_of_[size_t(&step - steps_.data())])
      wait_for(steps_[size_t(w)]);
  }
  switch (step.item->kind) {
    case Item::Kind::Kernel:
    case Item::Kind::Library:
      for (Launch& launch : step.launches) {
        if (compares_values_ && step.item->kind == Item::Kind::Kernel) {
          launch_compared(step, launch);
        } else {
          launch.program->launch(launch.buffers, launch.coordinates);
        }
      }
      break;
    case Item::Kind::Collective:
      start(step);
      break;
    case Item::Kind::Copy:
      copy(step);
      break;
  }
  if (waits_for_items_) {
    for (Launch& launch : step.launches) launch.device->synchronize();
  }
  times_.end(int(&step - steps_.data()), false, begun);
  if (!watch) return;
  event->finish([&, ms = watch->ms()] {
    const std::string line = origin_of_item(schedule_, *step.item).source;
    return told(work_of(schedule_, *step.item), ms / 1e3) + (line.empty() ? "" : "  " + line);
  });
}

void Executable::wait_for(Step& collective) {
  if (collective.groups.empty()) return;
  std::optional<ObservedScope> event;
  if (items_are_events()) {
    event.emplace([&] {
      ObservedEvent waits = event_of(collective);
      waits.kind = EventKind::Wait;
      return waits;
    });
  }
  const ItemTimes::Time begun = times_.next();
  for (Group& group : collective.groups) group.wait();
  times_.end(int(&collective - steps_.data()), true, begun);
}

// Nobody sees the items of a step that is replayed: the first run for an observer that takes item times
// is made of them.
bool Executable::is_measured(bool replays) {
  if (!replays || measured_for_ == observer_attachments() || !item_times_are_taken()) return false;
  measured_for_ = observer_attachments();
  return true;
}

void Executable::set_record(uint64_t number) {
  record_ = number;
  record_told_to_ = observer_attachments();
}

void Executable::wait_for_collectives(std::span<Step> steps) {
  for (Step& step : steps) wait_for(step);
}

void Executable::run_items(std::span<Step> steps, std::span<const std::vector<int>> orders) {
  const std::vector<bool> urgent = urgent_steps(orders);
  for (size_t i = 0; i < steps.size();) {
    if (!orders.empty()) {
      for (Launch& launch : steps[i].launches) launch.device->record_step(orders[i], urgent[i]);
    } else if (const size_t done = run_bulk_copies(steps.subspan(i))) {
      i += done;
      continue;
    }
    run_item(steps[i++]);
  }
  wait_for_collectives(steps);
}

std::vector<const Storage*> Executable::storages_written() const {
  std::vector<const Storage*> written;
  for (const Item& item : schedule_.items) {
    for (int b : item.writes) {
      if (const Storage* s = inputs_[size_t(base_of(b).first)]) written.push_back(s);
    }
  }
  return written;
}

void Executable::run_watched(KeptInPlace::Run& watched) {
  const auto writes = [&](const Step& step) {
    return std::ranges::any_of(step.item->writes,
                               [&](int b) { return inputs_[size_t(base_of(b).first)] != nullptr; });
  };
  const auto first = std::ranges::find_if(steps_, writes);
  const std::span before(steps_.begin(), first);
  run_items(before);
  watched.updates();
  run_items(std::span(first, steps_.end()));
}

void Executable::run() {
  check_usable();
  count(counters().runs, 1);
  if (!executes_) return;
  follow_debug_option();
  const Options& wanted = options();
  compares_values_ = wanted.check.values;
  std::optional<Stopwatch> counted;
  if (work_is_counted()) counted.emplace();
  begin_run();
  if (is_observed() && record_told_to_ != observer_attachments()) set_record(tell_plan(schedule_));
  ObservedScope event([&] {
    return ObservedEvent{.kind = EventKind::Run, .name = "run", .ticket = ticket_, .plan = record_};
  });
  // The first run is made of single launches: libraries and communicators set themselves up then.
  // Times of single items (DEBUG=2) and their values (TS_CHECK) need single launches, too.
  const bool timed = items_are_timed();
  const bool may_replay = wanted.shuffle == 0 && ran_ && !timed && !compares_values_ &&
                          (can_record_ || !segments_.empty()) && jit_mode() != JitMode::Items;
  const bool measured = is_measured(may_replay), replays = may_replay && !measured;
  waits_for_items_ = timed || measured;
  times_.begin(item_times_are_taken(), steps_.size());
  event.has(times_.list(), measured);
  if (replays) {
    for (const Step& step : steps_) {
      for (const Group& group : step.groups) {
        if (group.communicator->failed()) group.communicator->check_alive();
      }
    }
  }
  std::optional<KeptInPlace::Run> watched;
  const bool in_order = !replays && wanted.shuffle == 0;
  if (KeptInPlace::any())
    watched.emplace(storages_written(), crosses_ranks_, schedule_.updates_at_once && in_order);
  const bool split = in_order && watched && watched->is_watched();
  if (watched && !split) watched->updates();
  if (!split) run_items(std::span(steps_).first(leading_));
  announce();
  if (split)
    run_watched(*watched);
  else if (wanted.shuffle > 0)
    run_shuffled();
  else if (replays)
    run_recorded();
  else
    run_items(std::span(steps_).subspan(leading_));
  if (watched) watched->ends();
  if (!ran_) Context::libraries_were_used();
  ran_ = true;
  if (wanted.check.replicas) check_replicas(roots_);
  end_run();
  count(counters().kernels, counts_.kernels);
  count(counters().library_calls, counts_.library_calls);
  count(counters().collectives, counts_.collectives);
  count(counters().copies, counts_.copies);
  if (counted) {
    if (work_.empty()) {
      for (const Step& step : steps_) add_work(*step.item);
    }
    for (size_t d = 0; d < work_.size(); ++d) add(*work_so_far_[d], work_[d]);
    count(counters().nanoseconds, int64_t(counted->ms() * 1e6));
  }
  event.finish([&] { return fmt::format("{} items", steps_.size()); });
}

}  // namespace tinyshard
