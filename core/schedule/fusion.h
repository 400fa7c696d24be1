// Which values of the graph get memory. Everything else is computed where it is used.
#pragma once
#include <span>
#include <vector>

#include "core/schedule/schedule.h"
#include "core/uop/node_set.h"

namespace tinyshard {

// Ops that run as items of their own and therefore read and write whole buffers, and After, which
// names a whole buffer again.
bool is_opaque(Op op);

// Decides which values get memory; see fusion.cpp for the rules.
class Fusion {
 public:
  // `order` is a topological order of the graph below `roots`.
  Fusion(std::span<const UOp> order, std::span<const UOp> roots);

  bool materialized(const UOp& x) const { return materialized_.contains(x); }
  size_t values() const { return materialized_.size(); }  // with memory
  // Later stages add a value that turns out to be too dear to recompute.
  void materialize(const UOp& x) { materialized_.add(x); }
  // Tells whether a single op reads x, movements aside.
  bool read_once(const UOp& x) const { return read_once_.contains(x); }

 private:
  void force(std::span<const UOp> order, std::span<const UOp> roots);
  void choose(std::span<const UOp> order);

  NodeSet materialized_, read_once_;
};

}  // namespace tinyshard
