// Meshes of one shape: the value is placed as wanted, as far as that needs no gathering, and each
// device sends its part to the one that stands where it stands.
//
// Meshes of other shapes, f32[12] on (0, 1, 2, 3) to (4, 5, 6): parts of a dim along all axes, seen
// as a mesh of one axis.
//
//   device  0      1      2      3        parts of 3 rows
//           0 1 2  3 4 5  6 7 8  9 . .    a window of 4 rows: 3 parts, the last device has none
//   first   0 1 2 3 | 4 5 6 7 | 8 9 10 11 | -
//   then    part p goes to device p of the other mesh
//
// To more devices than there are, parts travel first and the window is the other mesh's.
//
// To a part of the mesh, along an axis over which all devices have the same, nothing travels: of
// rows divided over "data" on {"data", 2}, {"pipe", 4}, each device of at("pipe", 3) keeps its own.
#include "multi/change_mesh.h"

#include <algorithm>

#include "multi/relocation.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

Mesh in_one_line(const Mesh& mesh) {
  if (mesh.axes().size() == 1) return mesh;
  std::string name;
  for (const MeshAxis& a : mesh.axes()) name += (name.empty() ? "" : "*") + a.name;
  return Mesh({{name.empty() ? "devices" : name, mesh.size()}}, mesh.devices());
}

LocalValue moved_on(const LocalValue& v, const Mesh& mesh, std::vector<Placement> place) {
  const bool copies = Sharding{*v.mesh, v.place}.is_replicated();
  if (*v.mesh == mesh) return {v.local, mesh, std::move(place), v.origin};
  return {relocated(v.local, *v.mesh, mesh, copies), mesh, std::move(place), v.origin};
}

std::vector<Placement> everywhere(const Mesh& mesh, Placement p) {
  return std::vector<Placement>(mesh.axes().size(), p);
}

bool same_axes(const Mesh& a, const Mesh& b) {
  return std::ranges::equal(a.axes(), b.axes(), {}, &MeshAxis::size, &MeshAxis::size);
}

// The dim to divide among all devices on the way; -1: there is none, so the value goes whole.
int dim_on_the_way(const LocalValue& v, DimSpan global, const Mesh& mesh,
                   const std::vector<Placement>& wanted) {
  // Parts of parts are parts of the line only where all of them are equal.
  auto divides = [&](int dim) {
    auto regular = [&](const Mesh& m) {
      return m.axes().size() == 1 || global[size_t(dim)] % m.size() == 0;
    };
    return regular(*v.mesh) && regular(mesh);
  };
  for (const auto* place : {&wanted, &v.place}) {
    for (const Placement& p : *place) {
      if (p.is_shard() && divides(p.dim)) return p.dim;
    }
  }
  return -1;
}

bool has_device_on(const Mesh& mesh, int rank) {
  return std::ranges::any_of(mesh.devices(), [&](const DeviceRef& d) {
    return d.rank == DeviceRef::kHere || d.rank == rank;
  });
}

// Returns the axis of v's mesh that `mesh` leaves out, if `mesh` is one place along it and each
// place has the whole value; otherwise -1.
int axis_to_leave(const LocalValue& v, const Mesh& mesh) {
  const int axis = v.mesh->axis_left_out(mesh);
  return axis >= 0 && !v.place[size_t(axis)].is_shard() ? axis : -1;
}

}  // namespace

bool is_of_each_process(const Mesh& mesh) {
  return std::ranges::all_of(mesh.devices(),
                             [](const DeviceRef& d) { return d.rank == DeviceRef::kHere; });
}

bool is_on_all_ranks(const Mesh& mesh) {
  for (int rank = 0; rank < world().ranks; ++rank) {
    if (!has_device_on(mesh, rank)) return false;
  }
  return true;
}

bool is_out_of_reach(const Mesh& from, const Mesh& to) {
  return std::ranges::any_of(to.devices(), [&](const DeviceRef& d) {
    return d.rank != DeviceRef::kHere && !has_device_on(from, d.rank);
  });
}

LocalValue on_other_mesh(LocalValue v, DimSpan global, const Mesh& mesh,
                         const std::vector<Placement>& wanted) {
  const Mesh from = *v.mesh;
  if (const int axis = axis_to_leave(v, mesh); axis >= 0 && product(global) > 0) {
    std::vector<Placement> place = v.place;
    std::ranges::replace_if(place, &Placement::is_partial, Replicate);
    v = redistribute(std::move(v), global, from, place);
    place.erase(place.begin() + axis);
    return {relocated(v.local, from, mesh, true), mesh, std::move(place), v.origin};
  }
  if (same_axes(from, mesh)) {
    std::vector<Placement> place = v.place;
    for (size_t a = 0; a < place.size(); ++a) {
      if (!place[a].is_shard()) place[a] = wanted[a].is_shard() ? wanted[a] : Replicate;
    }
    v = redistribute(std::move(v), global, from, place);
    return moved_on(v, mesh, place);
  }
  const int dim = dim_on_the_way(v, global, mesh, wanted);
  // A value that all devices have goes whole where no device sends it often.
  const bool whole = std::ranges::all_of(wanted, &Placement::is_replicate) &&
                     Sharding{from, v.place}.is_replicated() && most_receivers(from, mesh) <= 2;
  if (dim < 0 || whole || product(global) == 0) {
    v = redistribute(std::move(v), global, from, everywhere(from, Replicate));
    return moved_on(v, mesh, everywhere(mesh, Replicate));
  }
  const Placement split = Shard(dim);
  v = redistribute(std::move(v), global, from, everywhere(from, split));
  const Mesh source = in_one_line(from), target = in_one_line(mesh);
  const int64_t size = global[size_t(dim)], part = (size + mesh.size() - 1) / mesh.size();
  auto cut = [&] {
    if (v.local.shape()[size_t(dim)] != part) v.local = window(v, dim, {part, 0, part, 0, size});
  };
  if (from.size() > mesh.size()) {
    v = moved_on(v, source, {split});
    cut();
  }
  v = moved_on(v, target, {split});
  cut();
  return moved_on(v, mesh, everywhere(mesh, split));
}

}  // namespace tinyshard
