// What multi/mesh.h asks of the engine: which devices there are, and what their names mean.
#include "core/exec/context.h"
#include "multi/mesh.h"

namespace tinyshard {

const World& world() { return Context::world_now(); }

Mesh Mesh::of(const std::vector<std::string>& names, std::string axis) {
  std::vector<DeviceRef> devices;
  for (const std::string& name : names) devices.push_back(parse_device(name));
  int64_t n = int64_t(devices.size());
  return Mesh({{std::move(axis), n}}, std::move(devices));
}

}  // namespace tinyshard
