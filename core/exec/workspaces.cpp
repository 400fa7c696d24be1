// Devices of a mesh are alike: one of this process answers for all. Where a plan's devices are all of other
// ranks nobody is asked.
#include "core/exec/workspaces.h"

#include <algorithm>

#include "core/exec/context.h"
#include "core/runtime/workspaces.h"

namespace tinyshard {
namespace {

const Device* one_of(const Mesh& mesh) {
  Context& context = Context::get();
  const std::vector<int> local = context.local_positions(mesh);
  return local.empty() ? nullptr : &context.device(mesh.devices()[size_t(local.front())]);
}

int64_t bytes_of(const Mesh& mesh, std::span<const LibraryCall* const> calls) {
  const auto* tells = dynamic_cast<const TellsWorkspaces*>(one_of(mesh));
  return tells ? tells->workspace_bytes(calls) : 0;
}

}  // namespace

int64_t workspace_bytes(const Item& item) {
  if (item.kind != Item::Kind::Library) return 0;
  const LibraryCall* call = &item.call;
  return bytes_of(item.mesh, {&call, 1});
}

const Speeds* speeds_of(const Schedule& schedule) {
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Kernel && item.kind != Item::Kind::Library) continue;
    if (const Device* device = one_of(item.mesh)) return &device->profile().speeds;
  }
  return nullptr;
}

std::vector<std::pair<Mesh, int64_t>> workspaces_of(const Schedule& schedule) {
  std::vector<std::pair<Mesh, std::vector<const LibraryCall*>>> calls;
  for (const Item& item : schedule.items) {
    if (item.kind != Item::Kind::Library) continue;
    auto of = std::ranges::find_if(calls, [&](const auto& c) { return c.first == item.mesh; });
    if (of == calls.end()) of = calls.insert(of, {item.mesh, {}});
    of->second.push_back(&item.call);
  }
  std::vector<std::pair<Mesh, int64_t>> workspaces;
  for (const auto& [mesh, of_mesh] : calls) {
    if (const int64_t bytes = bytes_of(mesh, of_mesh); bytes > 0)
      workspaces.emplace_back(mesh, bytes);
  }
  return workspaces;
}

}  // namespace tinyshard
