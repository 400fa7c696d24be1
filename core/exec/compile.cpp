// From kernels of a schedule to programs of a device: those that neither the context nor the folder on
// disk has are compiled, side by side, and handed to the driver.
#include "core/exec/compile.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <functional>
#include <future>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/exec/kernel_steps.h"
#include "core/exec/tune.h"

namespace tinyshard {
namespace {

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
  auto work = [&](int t) {
    try {
      for (int i; (i = next.fetch_add(1)) < n;) body(i);
    } catch (...) {
      errors[t] = std::current_exception();
    }
  };
  try {
    for (int t = 1; t < threads; ++t) pool.emplace_back(work, t);
  } catch (const std::system_error&) {
    threads = int(pool.size()) + 1;  // no more are to be had: these do the work
  }
  work(0);
  for (std::thread& thread : pool) thread.join();
  for (auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// Does what is left between code and programs, on many threads, of which a driver may make use.
void prepare_programs(std::span<const std::shared_ptr<const CompiledKernel>> kernels,
                      Device& device) {
  std::set<const CompiledKernel*> unknown;
  for (const auto& kernel : kernels) {
    if (!Context::get().programs().has(device, *kernel)) unknown.insert(kernel.get());
  }
  std::vector<const CompiledKernel*> list(unknown.begin(), unknown.end());
  parallel_compile(int(list.size()), [&](int i) { device.prepare(list[size_t(i)]->code); });
}

// Libraries compile too, for some calls: on threads of their own until the result is asked for.
std::future<void> prepare_library_calls(std::span<const Item> items) {
  Context& context = Context::get();
  std::vector<std::pair<Device*, const LibraryCall*>> calls;
  for (const Item& item : items) {
    if (item.kind != Item::Kind::Library) continue;
    for (int position : context.local_positions(item.mesh)) {
      Device& device = context.device(item.mesh.devices()[position]);
      if (device.profile().compiles_code) calls.emplace_back(&device, &item.call);
    }
  }
  const auto when = calls.empty() ? std::launch::deferred : std::launch::async;
  return std::async(when, [calls = std::move(calls)] {
    parallel_compile(int(calls.size()), [&](int i) {
      auto [device, call] = calls[size_t(i)];
      device->prepare(*call);
    });
  });
}

}  // namespace

std::vector<std::shared_ptr<const CompiledKernel>> compile_items(std::span<Item> items,
                                                                 bool runs_once) {
  Context& context = Context::get();
  ObservedScope event(
      [] { return ObservedEvent{.kind = EventKind::Compilation, .name = "kernels"}; });
  std::future<void> libraries = prepare_library_calls(items);
  // Kernels are compiled once per kind of device; a schedule may hold items of several.
  std::vector<KernelSource*> sources;
  std::vector<Device*> devices;  // the first of each; null where this process has none of them
  KernelsToCompile one_run;
  for (Item& item : items) {
    if (item.kind != Item::Kind::Kernel) continue;
    auto local = context.local_positions(item.mesh);
    sources.push_back(&item.kernel);
    devices.push_back(local.empty() ? nullptr : &context.device(item.mesh.devices()[local[0]]));
    // Whose plans are timed, on a device where that decides bits, has its constants in its code.
    if (devices.back() && (options().beam <= 1 || choices_keep_bits(devices.back()->target())))
      one_run.kernels.push_back(
          {&item.kernel, &devices.back()->target(), int(item.mesh.axes().size())});
  }
  if (runs_once) run_kernel_steps(one_run);
  std::vector<std::shared_ptr<const CompiledKernel>> kernels(sources.size());
  for (size_t first = 0; first < sources.size(); ++first) {
    if (kernels[first] || !devices[first]) continue;
    const Target& target = devices[first]->target();
    std::vector<KernelSource*> same;
    std::vector<size_t> places;
    for (size_t i = first; i < sources.size(); ++i) {
      if (!devices[i] || !(devices[i]->target() == target)) continue;
      same.push_back(sources[i]);
      places.push_back(i);
    }
    if (options().beam > 1 && devices[first]->executes())
      tune_kernels(same, *devices[first], options().beam, context.ranks() == 1, parallel_compile);
    auto compiled = compile_kernels(std::vector<const KernelSource*>(same.begin(), same.end()),
                                    target, parallel_compile);
    if (devices[first]->profile().compiles_code) {
      ObservedScope machine_code(
          [] { return ObservedEvent{.kind = EventKind::Load, .name = "machine code"}; });
      prepare_programs(compiled, *devices[first]);
      machine_code.finish([] { return "machine code"; });
    }
    for (size_t i = 0; i < places.size(); ++i) kernels[places[i]] = compiled[i];
  }
  libraries.get();
  event.finish([&] { return fmt::format("{} kernels", sources.size()); });
  return kernels;
}

}  // namespace tinyshard
