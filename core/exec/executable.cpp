#include "core/exec/executable.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/codegen/codegen.h"
#include "core/exec/runtime.h"

namespace tinyshard {
namespace {

using Clock = std::chrono::steady_clock;
double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// Compilation is spread over plain threads: it happens once, and the device's own threads may be
// those that wait for it.
void parallel_compile(int n, const std::function<void(int)>& body) {
  int threads = std::min<int>(n, int(std::thread::hardware_concurrency()));
  if (threads <= 1) {
    for (int i = 0; i < n; ++i) body(i);
    return;
  }
  std::atomic<int> next{0};
  std::vector<std::exception_ptr> errors(threads);
  std::vector<std::thread> pool;
  pool.reserve(size_t(threads));
  for (int t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      try {
        for (int i; (i = next.fetch_add(1)) < n;) body(i);
      } catch (...) {
        errors[t] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace

Counters& counters() {
  static Counters c;
  return c;
}

Executable::Executable(Schedule schedule, bool compare_ranks) : schedule_(std::move(schedule)) {
  Runtime& runtime = Runtime::get();
  bool communicates = std::ranges::any_of(
      schedule_.items, [](const Item& i) { return i.kind == Item::Kind::Collective; });
  if (runtime.ranks() > 1 && (compare_ranks || communicates)) {
    std::vector<std::string> lines = schedule_.lines();
    runtime.world().check_same(schedule_.hash(), lines, "schedule");
  }
  owned_.resize(schedule_.buffers.size());
  std::vector<int64_t> seen;
  for (size_t b = 0; b < owned_.size(); ++b) {
    VirtualBuffer& buffer = schedule_.buffers[b];
    if (buffer.storage) {
      auto placed = std::static_pointer_cast<const Placed>(buffer.storage);
      owned_[b] = std::static_pointer_cast<Storage>(std::const_pointer_cast<Placed>(placed));
    }
    if (std::ranges::find(seen, buffer.mesh.id()) != seen.end()) continue;
    seen.push_back(buffer.mesh.id());
    for (int p : runtime.local_positions(buffer.mesh))
      executes_ = executes_ && runtime.device(buffer.mesh.devices()[p]).executes();
  }
}

Executable::~Executable() {
  for (auto& [device, memory] : arenas_) {
    device->synchronize();
    device->free(memory, size_t(schedule_.arena_bytes));
  }
}

std::pair<int, int64_t> Executable::base_of(int b) const {
  int64_t offset = 0;
  for (;;) {
    const VirtualBuffer& v = schedule_.buffers[b];
    if (v.previous >= 0) {
      b = v.previous;
    } else if (v.container >= 0) {
      offset += v.container_offset;
      b = v.container;
    } else {
      return {b, offset};
    }
  }
}

void* Executable::base_pointer(int b, int local) {
  const VirtualBuffer& buffer = schedule_.buffers[b];
  if (owned_[b]) return owned_[b]->memory()[local];
  Runtime& runtime = Runtime::get();
  Device* device =
      &runtime.device(buffer.mesh.devices()[runtime.local_positions(buffer.mesh)[local]]);
  auto arena = std::ranges::find(arenas_, device, &std::pair<Device*, void*>::first);
  if (arena == arenas_.end()) {
    arenas_.emplace_back(device, device->allocate(size_t(schedule_.arena_bytes)));
    arena = arenas_.end() - 1;
  }
  return static_cast<char*>(arena->second) + std::max<int64_t>(buffer.arena_offset, 0);
}

void Executable::rebind(const Storage& placeholder, Storage& actual) {
  for (size_t b = 0; b < owned_.size(); ++b) {
    if (owned_[b].get() != &placeholder) continue;
    std::span<void* const> memory = actual.memory();
    auto [first, last] = std::ranges::equal_range(bindings_, int(b), {}, &Binding::buffer);
    for (auto it = first; it != last; ++it) bind(*it, memory[it->device]);
  }
}

void Executable::compile() {
  Runtime& runtime = Runtime::get();
  auto start = Clock::now();
  std::vector<const KernelSource*> sources;
  const Target* target = nullptr;
  for (const Item& item : schedule_.items) {
    if (item.kind != Item::Kind::Kernel) continue;
    sources.push_back(&item.kernel);
    auto local = runtime.local_positions(item.mesh);
    if (!target && !local.empty()) target = &runtime.device(item.mesh.devices()[local[0]]).target();
  }
  std::vector<std::shared_ptr<const CompiledKernel>> kernels;
  if (!sources.empty() && target) kernels = compile_kernels(sources, *target, parallel_compile);
  steps_.reserve(schedule_.items.size());
  size_t next_kernel = 0;
  for (const Item& item : schedule_.items) {
    Step step{&item, {}, {}};
    std::vector<int> local = runtime.local_positions(item.mesh);
    for (int d = 0; d < int(local.size()); ++d) {
      Device& device = runtime.device(item.mesh.devices()[local[d]]);
      pointers_.emplace_back(item.buffers.size());
      coordinates_.push_back(item.mesh.coordinates(local[d]));
      Launch launch{nullptr, pointers_.back().data(), coordinates_.back().data()};
      for (size_t i = 0; i < item.buffers.size(); ++i) {
        auto [base, offset] = base_of(item.buffers[i]);
        // A copy reads the one replica that this process holds first.
        bool source = item.kind == Item::Kind::Copy && i == 0;
        bindings_.push_back({base, source ? 0 : d, &pointers_.back()[i], offset});
      }
      if (item.kind == Item::Kind::Kernel)
        launch.program = &runtime.program(device, kernels[next_kernel]);
      if (item.kind == Item::Kind::Library) launch.program = &runtime.program(device, item.call);
      step.launches.push_back(launch);
    }
    if (item.kind == Item::Kind::Kernel) ++next_kernel;
    steps_.push_back(std::move(step));
  }
  if (options().debug >= 1) {
    log_line(
        fmt::format("compiled {} kernels in {:.1f} ms", sources.size(), milliseconds_since(start)));
  }
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
    if (!input) bind(b, base_pointer(b.buffer, b.device));
  }
  Runtime& runtime = Runtime::get();
  for (Step& step : steps_) {
    const Item& item = *step.item;
    if (item.kind != Item::Kind::Collective || !executes_) continue;
    std::vector<int> local = runtime.local_positions(item.mesh);
    std::vector<bool> done(local.size());
    int64_t stride = 1;
    for (size_t a = item.mesh.axes().size(); a-- > size_t(item.mesh_axis) + 1;)
      stride *= item.mesh.axes()[a].size;
    for (size_t d = 0; d < local.size(); ++d) {
      if (done[d]) continue;
      Group group{&runtime.communicator(item.mesh, item.mesh_axis, local[d]), {}, {}, {}};
      int64_t place = item.mesh.coordinates(local[d])[item.mesh_axis];
      int first = local[d] - int(place * stride);
      for (int64_t k = 0; k < item.mesh.axes()[item.mesh_axis].size; ++k) {
        auto found = std::ranges::find(local, first + int(k * stride));
        if (found == local.end()) continue;
        size_t other = size_t(found - local.begin());
        done[other] = true;
        group.send.push_back({step.launches[other].buffers[0]});
        group.recv.push_back({step.launches[other].buffers[1]});
      }
      step.groups.push_back(std::move(group));
    }
  }
}

void Executable::prepare(std::span<const Sharding> shardings, std::span<const Dims> global_shapes) {
  for (size_t r = 0; r < schedule_.roots.size(); ++r) {
    int base = base_of(schedule_.roots[r]).first;
    if (owned_[base]) continue;
    owned_[base] =
        std::make_shared<Storage>(global_shapes[r], schedule_.buffers[base].dtype, shardings[r]);
  }
  if (executes_) compile();
  bind_all();
}

// Copies the part of a replicated source that belongs to each device of the target.
void Executable::copy(const Step& step) {
  const Item& item = *step.item;
  const VirtualBuffer& from = schedule_.buffers[item.buffers[0]];
  const VirtualBuffer& to = schedule_.buffers[item.buffers[1]];
  Runtime& runtime = Runtime::get();
  std::vector<int> local = runtime.local_positions(item.mesh);
  Device& source = runtime.device(from.mesh.devices()[runtime.local_positions(from.mesh).at(0)]);
  source.synchronize();
  size_t element = itemsize(from.dtype);
  for (size_t d = 0; d < step.launches.size(); ++d) {
    Device& target = runtime.device(item.mesh.devices()[local[d]]);
    char* in = static_cast<char*>(step.launches[d].buffers[0]);
    char* out = static_cast<char*>(step.launches[d].buffers[1]);
    const char* host = static_cast<const char*>(source.host_pointer(in));
    check_internal(host != nullptr, "the source of a copy is visible to the host");
    Dims begin(from.shape.size()), size = from.shape;
    for (const CopyPart& part : item.parts) {
      int64_t length = (size[part.axis] + part.parts - 1) / part.parts;
      begin[part.axis] += step.launches[d].coordinates[part.mesh_axis] * length;
      size[part.axis] = length;
    }
    if (item.parts.empty()) {
      target.copy_in(out, host, size_t(from.bytes()));
      continue;
    }
    // Rows of the last dim; what lies beyond the end of the source becomes zero.
    size_t rank = from.shape.size();
    int64_t row = size[rank - 1], rows = product(size) / std::max<int64_t>(row, 1);
    std::vector<char> staged(size_t(product(to.shape)) * element);
    for (int64_t r = 0; r < rows; ++r) {
      int64_t rest = r, position = 0, stride = from.shape[rank - 1];
      bool inside = true;
      for (size_t i = rank - 1; i-- > 0;) {
        int64_t at = begin[i] + rest % size[i];
        rest /= size[i];
        inside = inside && at < from.shape[i];
        position += at * stride;
        stride *= from.shape[i];
      }
      int64_t count = std::clamp<int64_t>(from.shape[rank - 1] - begin[rank - 1], 0, row);
      if (!inside || count == 0) continue;
      std::memcpy(&staged[size_t(r * row) * element],
                  host + size_t(position + begin[rank - 1]) * element, size_t(count) * element);
    }
    target.copy_in(out, staged.data(), staged.size());
  }
}

void Executable::run() {
  ++counters().runs;
  if (!executes_) return;
  int debug = options().debug;
  auto start = Clock::now();
  for (Step& step : steps_) {
    auto begin = debug >= 2 ? Clock::now() : Clock::time_point();
    for (int w : step.item->waits) {
      for (Group& group : steps_[w].groups) group.work.wait();
    }
    switch (step.item->kind) {
      case Item::Kind::Kernel:
      case Item::Kind::Library:
        for (Launch& launch : step.launches)
          launch.program->launch(launch.buffers, launch.coordinates);
        ++(step.item->kind == Item::Kind::Kernel ? counters().kernels : counters().library_calls);
        break;
      case Item::Kind::Collective:
        for (Group& group : step.groups) {
          group.work = group.communicator->start(step.item->collective, group.send, group.recv);
        }
        ++counters().collectives;
        break;
      case Item::Kind::Copy:
        copy(step);
        ++counters().copies;
        break;
    }
    if (debug >= 2)
      log_line(fmt::format("{:9.3f} ms  {}", milliseconds_since(begin), step.item->describe()));
  }
  for (Step& step : steps_) {
    for (Group& group : step.groups) group.work.wait();
  }
  if (debug >= 1)
    log_line(fmt::format("ran {} items in {:.3f} ms", steps_.size(), milliseconds_since(start)));
}

}  // namespace tinyshard
