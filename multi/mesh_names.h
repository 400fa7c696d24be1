// Meshes by their names, as an error tells them.
#pragma once
#include <string>
#include <utility>

#include "multi/mesh.h"

namespace tinyshard {

// Texts of two meshes that differ where the meshes do: "mesh(data=2) with CPU:1 at place 1" and
// "mesh(data=2) with CPU:3 at place 1".
std::pair<std::string, std::string> told_apart(const Mesh& a, const Mesh& b);

}  // namespace tinyshard
