// A constant belongs to no mesh. The value 2 in x * 2 and y * 2, x and y on different meshes, is
// one node, but each kernel that computes it runs on one mesh: it becomes two nodes, one for each.
// What is made of constants and used on one mesh only stays as it is, and so does all that reads
// it.
#include "core/schedule/meshes.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/uop/composite.h"
#include "core/uop/node_set.h"
#include "core/uop/own_kernel.h"
#include "core/uop/product_region.h"

namespace tinyshard {
namespace {

// From sources to users; values made of constants alone have none.
MeshOf known_meshes(std::span<const UOp> order) {
  MeshOf meshes(order.size());
  for (const UOp& x : order) {
    if (x.op() == Op::Composite)
      throw InternalError(
          fmt::format("{} was not spelled before the schedule", composite_row(*x).name));
    // Named by the node itself: its storage, the mesh it runs on, or the mesh a constant was made
    // for.
    if (x.op() == Op::Buffer) {
      meshes.set(x, static_cast<const Placed*>(x->payload.get())->sharding.mesh);
    } else if (x->payload && !region_of(x) && !own_kernel(x)) {
      meshes.set(x, Mesh::from_payload(x->payload));
    } else {
      auto placed = [&](const UOp& s) { return meshes.find(s) != nullptr; };
      const auto source = std::ranges::find_if(x->src(), placed);
      if (source != x->src().end()) meshes.set_as(x, *source);
    }
  }
  return meshes;
}

// Returns the values that have to be copied: those of no mesh with users on several meshes, and all
// that depend on one of them.
NodeSet to_separate(std::span<const UOp> order, const MeshOf& known, std::span<const UOp> roots,
                    std::span<const Sharding> shardings) {
  struct Users {
    const Mesh* mesh = nullptr;
    bool several = false;
  };
  NodeMap<Users> users;  // of values without a mesh
  auto use = [&](const UOp& x, const Users& more) {
    if (known.find(x)) return;
    Users& all = users[x];
    if (!all.mesh) all.mesh = more.mesh;
    all.several = all.several || more.several || !(*all.mesh == *more.mesh);
  };
  for (size_t i = 0; i < roots.size(); ++i) use(roots[i], {&shardings[i].mesh});
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& x = order[i];
    const Mesh* mesh = known.find(x);
    const Users mine = mesh ? Users{mesh} : users.at(x);
    for (const UOp& s : x->src()) use(s, mine);
  }
  NodeSet result;
  if (users.size() == 0) return result;
  for (const UOp& x : order) {
    const Users* mine = users.find(x);
    auto is_separate = [&](const UOp& s) { return result.contains(s); };
    if ((mine && mine->several) || std::ranges::any_of(x->src(), is_separate)) result.add(x);
  }
  return result;
}

// Copies what is made of constants for one mesh: the leaves carry its name.
class Separation {
 public:
  Separation(const MeshOf& known, const NodeSet& to_separate)
      : known_(known), to_separate_(to_separate) {}

  UOp on(const UOp& x, const Mesh& mesh) {
    if (!to_separate_.contains(x)) return x;
    if (known_.find(x)) return rebuilt(x);
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
    for (const UOp& s : x->src()) sources.push_back(on(s, *known_.find(x)));
    UOp result = x.with_src(sources);
    done_[x] = result;
    return result;
  }

  const MeshOf& known_;
  const NodeSet& to_separate_;
  NodeMap<UOp> done_;
  NodeMap<std::vector<std::pair<int64_t, UOp>>> copies_;
};

}  // namespace

MeshOf find_meshes(std::span<const UOp> order, std::span<const UOp> roots,
                   std::span<const Sharding> shardings) {
  MeshOf meshes = known_meshes(order);
  for (size_t i = 0; i < roots.size(); ++i) {
    if (!meshes.find(roots[i])) meshes.set(roots[i], shardings[i].mesh);
  }
  for (size_t i = order.size(); i-- > 0;) {
    if (!meshes.find(order[i])) continue;
    for (const UOp& s : order[i]->src()) {
      if (!meshes.find(s)) meshes.set_as(s, order[i]);
    }
  }
  return meshes;
}

std::vector<UOp> one_mesh_each(const Graph& graph, std::span<const Sharding> shardings) {
  const NodeOrder& order = graph.order();
  const std::vector<UOp>& roots = graph.roots();
  const MeshOf known = known_meshes(order);
  const NodeSet separate = to_separate(order, known, roots, shardings);
  auto stays = [&](const UOp& root) { return !separate.contains(root); };
  if (std::ranges::all_of(roots, stays)) return roots;
  Separation separation(known, separate);
  std::vector<UOp> separated;
  for (size_t i = 0; i < roots.size(); ++i) {
    separated.push_back(separation.on(roots[i], shardings[i].mesh));
  }
  return separated;
}

}  // namespace tinyshard
