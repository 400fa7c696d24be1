// Seconds that collectives and products of a plan take. Which link an axis of a mesh has follows
// from where its devices are (their rank and host), how fast links of that kind are from the profile
// of the device (core/runtime/profile.h). All ranks have the same devices and figures, and nothing is
// timed, so all of them make the same plan.
//
//   8 MiB gathered along an axis of 4, 2 MiB a part: each device sends 3 x 2 MiB in 3 steps.
//   NVLink, 350 GB/s, 4 us + 1 us a step:    18 + 4 + 3 = 25 us
//   network, 40 GB/s, 10 us + 5 us a step:   157 + 10 + 15 = 182 us
#pragma once
#include <unordered_map>
#include <vector>

#include "core/runtime/communicator.h"
#include "core/runtime/profile.h"
#include "multi/mesh.h"

namespace tinyshard {

// The speeds of devices of that kind in this context, as world(); `kind` as in DeviceRef.
Speeds speeds_of(const std::string& kind);

// The time of a collective over `parts` devices, each of which sends `bytes` (ring algorithms).
double seconds_of(CollectiveOp op, double bytes, int64_t parts, const LinkSpeed& link);

// Remembers what it found out of a mesh; belongs to one rewrite.
class LinkModel {
 public:
  // The slowest link between neighbours along an axis.
  const LinkSpeed& along(const Mesh& mesh, int axis) { return of(mesh).links[size_t(axis)]; }
  double seconds_of(CollectiveOp op, double bytes, const Mesh& mesh, int axis) {
    return tinyshard::seconds_of(op, bytes, mesh.axes()[size_t(axis)].size, along(mesh, axis));
  }
  // The time in which a device of the mesh does so many operations.
  double seconds_to_compute(double operations, const Mesh& mesh) {
    return operations / of(mesh).device.operations_per_s;
  }
  double seconds_to_copy(double bytes, const Mesh& mesh) {
    return bytes / of(mesh).device.memory_bytes_per_s;
  }

 private:
  struct Known {
    Speeds device;
    std::vector<LinkSpeed> links;  // by axis
  };
  const Known& of(const Mesh& mesh);

  std::unordered_map<int64_t, Known> known_;  // by id of the mesh
};

}  // namespace tinyshard
