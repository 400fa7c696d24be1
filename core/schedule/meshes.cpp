#include "core/schedule/meshes.h"

#include <set>

namespace tinyshard {
namespace {

// Named by the node itself: its storage, the mesh it runs on, or the mesh a constant was made for.
std::optional<Mesh> own_mesh(const UOp& x) {
  if (x.op() == Op::Buffer) return static_cast<const Placed*>(x->payload.get())->sharding.mesh;
  if (x->payload) return Mesh::from_payload(x->payload);
  return std::nullopt;
}

// From sources to users; values made of constants alone have none.
MeshOf known_meshes(std::span<const UOp> order) {
  MeshOf meshes(order.size());
  for (const UOp& x : order) {
    std::optional<Mesh> mesh = own_mesh(x);
    for (const UOp& s : x->src()) {
      if (!mesh) mesh = meshes.at(s);
    }
    meshes[x] = mesh;
  }
  return meshes;
}

// Copies what is made of constants for one mesh: the leaves carry its name.
class Separation {
 public:
  explicit Separation(const MeshOf& known) : known_(known) {}

  UOp on(const UOp& x, const Mesh& mesh) {
    if (known_.at(x)) return rebuilt(x);
    auto& copies = copies_[x];
    for (const auto& [id, copy] : copies) {
      if (id == mesh.id()) return copy;
    }
    UOp copy;
    if (x->src().empty()) {
      copy = UOp::make(x.op(), x.dtype(), {}, x->arg(), mesh.payload());
    } else {
      std::vector<UOp> sources;
      for (const UOp& s : x->src()) sources.push_back(on(s, mesh));
      copy = x.with_src(sources);
    }
    copies_[x].emplace_back(mesh.id(), copy);
    return copy;
  }

 private:
  UOp rebuilt(const UOp& x) {
    if (const UOp* done = done_.find(x)) return *done;
    std::vector<UOp> sources;
    for (const UOp& s : x->src()) sources.push_back(on(s, *known_.at(x)));
    UOp result = x.with_src(sources);
    done_[x] = result;
    return result;
  }

  const MeshOf& known_;
  NodeMap<UOp> done_;
  NodeMap<std::vector<std::pair<int64_t, UOp>>> copies_;
};

}  // namespace

MeshOf find_meshes(std::span<const UOp> order, std::span<const UOp> roots,
                   std::span<const Sharding> shardings) {
  MeshOf meshes = known_meshes(order);
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!meshes.at(roots[i])) meshes[roots[i]] = shardings[i].mesh;
  }
  for (size_t i = order.size(); i-- > 0;) {
    std::optional<Mesh> mesh = meshes.at(order[i]);
    if (!mesh) continue;
    for (const UOp& s : order[i]->src()) {
      if (!meshes.at(s)) meshes[s] = mesh;
    }
  }
  return meshes;
}

std::vector<UOp> one_mesh_each(std::span<const UOp> roots, std::span<const Sharding> shardings) {
  std::vector<UOp> order = toposort(roots);
  MeshOf known = known_meshes(order);
  std::set<int64_t> ids;
  for (const UOp& x : order) {
    if (known.at(x)) ids.insert(known.at(x)->id());
  }
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!known.at(roots[i])) ids.insert(shardings[i].mesh.id());
  }
  if (ids.size() <= 1) return {roots.begin(), roots.end()};
  Separation separation(known);
  std::vector<UOp> separated;
  for (size_t i = 0; i < roots.size(); ++i) {
    separated.push_back(separation.on(roots[i], shardings[i].mesh));
  }
  return separated;
}

}  // namespace tinyshard
