// Runtime has no state of its own: it shows what the Context holds.
#include "core/exec/runtime.h"

#include "core/exec/context.h"

namespace tinyshard {

Runtime& Runtime::get() {
  static Runtime runtime;
  Context::get();
  return runtime;
}

void Runtime::configure(const RuntimeOptions& options) { Context::configure(options); }
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

}  // namespace tinyshard
