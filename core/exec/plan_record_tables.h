// The parts of a plan's record that other parts name by number: meshes, origins, kernels.
#pragma once
#include <map>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "core/base/origin.h"
#include "core/schedule/schedule.h"
#include "multi/mesh.h"

namespace tinyshard {

class RecordTables {
 public:
  // Each returns the place of its argument in the table, where it is put if it is new.
  int of(const Mesh& mesh);
  int of(OriginId origin);
  int of_kernel(const KernelSource& kernel);

  // Puts the tables into the record.
  void put(nlohmann::json& record) const;

 private:
  std::map<int64_t, std::pair<int, Mesh>> meshes_;
  std::map<OriginId, int> origins_;
  std::map<std::string, int> kernels_;  // by their text
  size_t kernel_bytes_ = 0;
};

nlohmann::json recorded(const std::vector<Placement>& placements);

}  // namespace tinyshard
