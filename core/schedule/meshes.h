// Which mesh each value of a local graph is computed on.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/uop/graph.h"
#include "core/uop/node_map.h"
#include "multi/mesh.h"

namespace tinyshard {

using MeshOf = NodeMap<std::optional<Mesh>>;

// A value is where its sources are; constants are wherever they are used. `order` is the
// toposort of `roots`, and shardings[i] says where roots[i] has to be. A value that is only
// repeated from constants is given the mesh of one of its users.
MeshOf find_meshes(std::span<const UOp> order, std::span<const UOp> roots,
                   std::span<const Sharding> shardings);

// The graph with a copy for each mesh of what is made of constants alone, so that every value has
// one mesh. Graphs on one mesh come back as they are.
std::vector<UOp> one_mesh_each(const Graph& graph, std::span<const Sharding> shardings);

}  // namespace tinyshard
