// Tables of a record keep what many of its rows name: a mesh of a thousand devices, or the line of a
// program, stands there once.
#include "core/exec/plan_record_tables.h"

#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/uop/uop.h"

namespace tinyshard {
namespace {

constexpr size_t kMostKernelBytes = size_t{4} << 20;

}  // namespace

int RecordTables::of(const Mesh& mesh) {
  const auto [there, is_new] = meshes_.try_emplace(mesh.id(), int(meshes_.size()), mesh);
  return there->second.first;
}

int RecordTables::of(OriginId origin) {
  return origins_.try_emplace(origin, int(origins_.size())).first->second;
}

// Kernels whose text would make the record too large are told without it: -1.
int RecordTables::of_kernel(const KernelSource& kernel) {
  std::string text = kernel.name + "\n" + print(std::span(&kernel.sink, 1));
  if (const auto known = kernels_.find(text); known != kernels_.end()) return known->second;
  if (kernel_bytes_ + text.size() > kMostKernelBytes) return -1;
  kernel_bytes_ += text.size();
  return kernels_.emplace(std::move(text), int(kernels_.size())).first->second;
}

void RecordTables::put(nlohmann::json& record) const {
  std::vector<nlohmann::json> meshes(meshes_.size()), origins(origins_.size()),
      kernels(kernels_.size());
  for (const auto& [id, there] : meshes_) {
    nlohmann::json axes = nlohmann::json::array(), devices = nlohmann::json::array();
    for (const MeshAxis& axis : there.second.axes()) axes.push_back({axis.name, axis.size});
    for (const DeviceRef& device : there.second.devices()) devices.push_back(device.to_string());
    meshes[size_t(there.first)] = {{"axes", std::move(axes)}, {"devices", std::move(devices)}};
  }
  for (const auto& [id, place] : origins_) {
    const Origin& origin = origin_of(id);
    origins[size_t(place)] = {origin.op, origin.source(), origin.about};
  }
  for (const auto& [text, place] : kernels_) kernels[size_t(place)] = text;
  record["meshes"] = std::move(meshes);
  record["origins"] = std::move(origins);
  record["code"] = std::move(kernels);
}

// A number is the dim of a Shard; Shard of a joined dim has the sizes beside it.
nlohmann::json recorded(const std::vector<Placement>& placements) {
  nlohmann::json list = nlohmann::json::array();
  for (const Placement& p : placements) {
    if (p.is_shard() && p.parts != nullptr)
      list.push_back({{"dim", p.dim}, {"parts", *p.parts}});
    else if (p.is_shard())
      list.push_back(p.dim);
    else if (p.is_partial())
      list.push_back("P " + std::string(name(p.op)));
    else
      list.push_back("R");
  }
  return list;
}

}  // namespace tinyshard
