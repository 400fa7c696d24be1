// Which mesh each value of a local graph is computed on.
#pragma once
#include <algorithm>
#include <deque>
#include <span>
#include <vector>

#include "core/uop/graph.h"
#include "core/uop/node_map.h"
#include "multi/mesh.h"

namespace tinyshard {

class MeshOf {
 public:
  explicit MeshOf(size_t nodes) : of_(nodes) {}
  MeshOf(MeshOf&&) noexcept = default;
  MeshOf& operator=(MeshOf&&) noexcept = default;

  // Null where x has none.
  const Mesh* find(const UOp& x) const {
    const Mesh* const* known = of_.find(x);
    return known ? *known : nullptr;
  }
  void set(const UOp& x, const Mesh& mesh) { of_[x] = &kept(mesh); }
  // x is where another value is, which has a mesh.
  void set_as(const UOp& x, const UOp& other) {
    const Mesh* mesh = find(other);
    of_[x] = mesh;
  }

 private:
  const Mesh& kept(const Mesh& mesh) {
    const auto known = std::ranges::find(meshes_, mesh);
    return known != meshes_.end() ? *known : meshes_.emplace_back(mesh);
  }

  std::deque<Mesh> meshes_;  // each once
  NodeMap<const Mesh*> of_;
};

// A value is where its sources are; constants are wherever they are used. `order` is the
// toposort of `roots`, and shardings[i] says where roots[i] has to be. A value that is only
// repeated from constants is given the mesh of one of its users.
MeshOf find_meshes(std::span<const UOp> order, std::span<const UOp> roots,
                   std::span<const Sharding> shardings);

// The graph with a copy for each mesh of what is made of constants alone, so that every value has
// one mesh. Graphs on one mesh come back as they are.
std::vector<UOp> one_mesh_each(const Graph& graph, std::span<const Sharding> shardings);

}  // namespace tinyshard
