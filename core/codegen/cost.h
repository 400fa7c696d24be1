// Chooses lanes (and their number) by an estimate of time: operations weighted by the number of
// times their scope runs and by how their operands lie in memory. Internal to core/codegen.
#pragma once
#include "core/codegen/plan.h"

namespace tinyshard::codegen {

class CostModel {
 public:
  CostModel(const Graph& graph, const Target& target)
      : graph_(graph), target_(target), register_bytes_(target.vector_bits / 8) {}

  // Sets lanes and tile of the nest's scopes, and its cost.
  void choose_vectors(Nest& nest);
  // Departs from what was chosen for the nest that choose_vectors saw last.
  void lean(Nest& nest, const Leaning& leaning) const;
  // Says of each scope whether its lanes lie by quads. Bits do not depend on it.
  void choose_lane_order(Nest& nest) const;
  // Returns how many values each scope computes, for the nest that choose_vectors saw last.
  std::vector<int> nodes_in_scope(const Nest& nest) const;

 private:
  struct Site {
    int node, scope;
  };
  void find_sites(const Nest& nest);
  double cycles(const Nest& nest) const;
  double site_cycles(const Nest& nest, const Site& site) const;
  double access_cycles(const Nest& nest, int access, int scope, int lanes, int vector_scope) const;
  int copies(const Nest& nest, int node, int scope) const;
  bool fits_registers(const Nest& nest) const;
  void choose_tile(Nest& nest);
  void choose_tile_of_two(Nest& nest);
  bool streams_rows(const Nest& nest, int loop) const;
  bool body_has_vector(const Nest& nest, const FoldGroup& group) const;
  int widest_item(const Nest& nest, int scope) const;
  std::vector<int> lane_options(const Nest& nest, int scope) const;
  int best_lanes(const Nest& nest, int scope) const;

  const Graph& graph_;
  const Target& target_;
  int register_bytes_;
  int widest_ = 1;  // bytes of the nest's widest lane
  std::vector<Site> sites_;
};

}  // namespace tinyshard::codegen
