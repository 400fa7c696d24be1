// The engine tells multi which devices there are, what their names mean and how fast they are.
#include <algorithm>

#include "core/base/call.h"
#include "core/exec/context.h"
#include "multi/link_model.h"
#include "multi/mesh.h"

namespace tinyshard {

const World& world() { return Context::world_now(); }

Speeds speeds_of(const std::string& kind) {
  const Context::Use use;
  Context& context = Context::get();
  const auto device = std::ranges::find(context.devices(), kind, &DeviceRef::kind);
  return device == context.devices().end() ? Speeds{} : context.device(*device).profile().speeds;
}

bool has_library(const std::string& kind, const UOp& x) {
  const Context::Use use;
  Context& context = Context::get();
  const auto found = std::ranges::find(context.devices(), kind, &DeviceRef::kind);
  if (found != context.devices().end())
    return context.device(*found).supports(row_major_call(x), nullptr);
  // The job was given no device of this kind, which may be the CPU beside its GPUs.
  const auto row = std::ranges::find(builtins().devices, kind, &DeviceKind::name);
  return row != builtins().devices.end() && row->count() > 0 &&
         context.device({.kind = kind}).supports(row_major_call(x), nullptr);
}

Mesh Mesh::of(const std::vector<std::string>& names, std::string axis,
              std::source_location caller) {
  const Call call("Mesh::of", caller);
  std::vector<DeviceRef> devices;
  for (const std::string& name : names) devices.push_back(parse_device(name));
  int64_t n = int64_t(devices.size());
  return Mesh({{std::move(axis), n}}, std::move(devices));
}

}  // namespace tinyshard
