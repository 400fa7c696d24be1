// A constant belongs to no mesh. The value 2 in x * 2 and y * 2, x and y on different meshes, is
// one node, but each kernel that computes it runs on one mesh: it becomes two nodes, one for each.
// What is made of constants and used on one mesh only stays as it is, and so does all that reads
// it.
#include "core/schedule/meshes.h"

#include <algorithm>

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

// Which values have to be copied: those of no mesh with users on several, and all that depends on
// one of them.
NodeMap<bool> to_separate(std::span<const UOp> order, const MeshOf& known,
                          std::span<const UOp> roots, std::span<const Sharding> shardings) {
  constexpr int64_t kSeveral = -1;
  NodeMap<std::optional<int64_t>> users(order.size());  // the mesh of those of a value without one
  auto use = [&](const UOp& x, int64_t mesh) {
    std::optional<int64_t>& user = users[x];
    user = user.value_or(mesh) == mesh ? mesh : kSeveral;
  };
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!known.at(roots[i])) use(roots[i], shardings[i].mesh.id());
  }
  for (size_t i = order.size(); i-- > 0;) {
    const std::optional<Mesh>& own = known.at(order[i]);
    const int64_t mesh = own ? own->id() : *users.at(order[i]);
    for (const UOp& s : order[i]->src()) {
      if (!known.at(s)) use(s, mesh);
    }
  }
  NodeMap<bool> result(order.size());
  for (const UOp& x : order) {
    bool separate = !known.at(x) && users.at(x) == kSeveral;
    for (const UOp& s : x->src()) separate = separate || result.at(s);
    result[x] = separate;
  }
  return result;
}

// Copies what is made of constants for one mesh: the leaves carry its name.
class Separation {
 public:
  Separation(const MeshOf& known, const NodeMap<bool>& to_separate)
      : known_(known), to_separate_(to_separate) {}

  UOp on(const UOp& x, const Mesh& mesh) {
    if (!to_separate_.at(x)) return x;
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
  const NodeMap<bool>& to_separate_;
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

std::vector<UOp> one_mesh_each(const Graph& graph, std::span<const Sharding> shardings) {
  const NodeOrder& order = graph.order();
  const std::vector<UOp>& roots = graph.roots();
  MeshOf known = known_meshes(order);
  NodeMap<bool> separate = to_separate(order, known, roots, shardings);
  auto stays = [&](const UOp& root) { return !separate.at(root); };
  if (std::ranges::all_of(roots, stays)) return roots;
  Separation separation(known, separate);
  std::vector<UOp> separated;
  for (size_t i = 0; i < roots.size(); ++i) {
    separated.push_back(separation.on(roots[i], shardings[i].mesh));
  }
  return separated;
}

}  // namespace tinyshard
