// Decompositions of matrices. Matrices of a divided batch are decomposed where they lie; one that is
// divided itself is gathered. Where devices have no library for them, those of each device go to a
// CPU device of its process, and the factors come back:
//
//   Q of f32[8, 3, 3] on CUDA:0 and CUDA:1, four matrices each
//     copy to CPU:0 and CPU:1; decompose f32[4, 3, 3]; copy to CUDA:0 and CUDA:1
//
// Matrices made of constants alone lie on no device, and each reader would compute them: they are
// brought to a device that decomposes them.
#include <algorithm>

#include "core/uop/args.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {
namespace {

bool decomposes(const Mesh& mesh, const UOp& x) {
  return std::ranges::all_of(mesh.devices(),
                             [&](const DeviceRef& d) { return has_library(d.kind, x); });
}

Mesh cpus_beside(const Mesh& mesh) {
  std::vector<DeviceRef> devices = mesh.devices();
  for (DeviceRef& d : devices) d.kind = "CPU";
  return mesh.is_single() ? Mesh::single(devices[0]) : Mesh(mesh.axes(), std::move(devices));
}

// Returns whether it is made of constants alone.
bool lies_nowhere(const UOp& local) {
  return std::ranges::none_of(toposort(std::span(&local, 1)),
                              [](const UOp& x) { return x->payload != nullptr; });
}

UOp copied_to(const Mesh& mesh, const UOp& local) {
  return UOp::make(Op::CopyIn, local.dtype(), {local}, Dims{kFromItsPlace}, mesh.payload());
}

}  // namespace

LocalValue decomposed(const UOp& x, const LocalValue& matrices) {
  const Mesh& mesh = *matrices.mesh;
  const Mesh there = decomposes(mesh, x) ? mesh : cpus_beside(mesh);
  LocalValue brought = matrices;
  if (!(there == mesh) || lies_nowhere(matrices.local))
    brought.local = copied_to(there, matrices.local);
  LocalValue factor = rebuilt(x, {brought}, matrices);
  if (!(there == mesh)) factor.local = copied_to(mesh, factor.local);
  return factor;
}

LocalValue decompose(const UOp& x, LocalValues& values) {
  const DimSpan global = x.src(0).shape();
  const int last = int(global.size()) - 1;
  LocalValue v = settled(values.of(x.src(0)), global);
  if (!v.mesh) {
    DeviceRef home = world().devices.front();
    home.rank = DeviceRef::kHere;
    v.mesh = Mesh::single(home);
  }
  for (const int dim : {last - 1, last}) v = without_shard(std::move(v), global, dim);
  return decomposed(x, v);
}

}  // namespace tinyshard
