// Runtime has no state of its own: it shows what the Context holds.
#include "core/exec/runtime.h"

#include "core/base/call.h"
#include "core/exec/context.h"

namespace tinyshard {

Runtime& Runtime::get() {
  static Runtime runtime;
  Context::get();
  return runtime;
}

void Runtime::configure(const RuntimeOptions& options, std::source_location caller) {
  const Call call("Runtime::configure", caller);
  Context::configure(options);
}
void Runtime::shutdown() { Context::shutdown(); }
void Runtime::reform() { Context::reform(); }

int Runtime::rank() const {
  const Context::Use use;
  return Context::get().rank();
}
int Runtime::ranks() const {
  const Context::Use use;
  return Context::get().ranks();
}
int Runtime::devices_per_rank() const {
  const Context::Use use;
  return int(Context::get().devices().size());
}

std::vector<DeviceInfo> Runtime::devices() const {
  const Context::Use use;
  Context& context = Context::get();
  std::vector<DeviceInfo> all;
  for (const DeviceRef& ref : context.devices()) {
    const Device& device = context.device(ref);
    const MemoryStats memory = device.memory();
    all.push_back({ref, device.target().cpu, device.target().multiprocessors, memory.used,
                   memory.peak, device.executes()});
  }
  return all;
}

std::vector<DeviceKindInfo> Runtime::kinds() {
  std::vector<DeviceKindInfo> all;
  for (const DeviceKind& kind : builtins().devices)
    all.push_back({kind.name, kind.count(), kind.detail()});
  return all;
}

void Runtime::synchronize(const std::string& device, std::source_location caller) {
  const Call call("Runtime::synchronize", caller);
  const Context::Use use;
  Context& context = Context::get();
  if (!device.empty()) return context.device(parse_device(device)).synchronize();
  for (Device* open : context.open_devices()) open->synchronize();
}

}  // namespace tinyshard
