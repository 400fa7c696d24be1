// Records how values lie and what moves, while the sharding rewrite makes a graph, for observers that
// read records (core/base/observer.h). Without one it keeps nothing.
//
// Threads: a log belongs to the thread that made it, and hears of what that thread redistributes.
#pragma once
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/origin.h"
#include "core/uop/uop.h"
#include "multi/decisions.h"
#include "multi/mesh.h"

namespace tinyshard {

// A question that an op put to the planner (multi/decisions.h), with all ways that it could have run.
struct WayChoice {
  struct Option {
    std::string label;   // "operands Shard(0), R; result Shard(0)"; empty: its strategy names none
    double seconds = 0;  // as far as the op itself knows
  };
  std::vector<Option> options;
  size_t taken = 0;
};

// A value of the global graph with the place that the rewrite gave it.
struct PlacedValue {
  UOp node;
  Sharding where;
  OriginId origin = 0;
  std::vector<WayChoice> choices = {};
};

// A value that was brought to other placements of its mesh.
struct Movement {
  DType dtype = DType::F32;
  Dims shape;  // global
  Mesh mesh = Mesh::unset();
  std::vector<Placement> from, to;
  double bytes = 0;    // that a device sends
  double seconds = 0;  // as plans are chosen by
  OriginId origin = 0;
  uint64_t reader = 0;  // id of the node that wanted it so
};

class MovementLog {
 public:
  MovementLog();
  ~MovementLog();
  MovementLog(const MovementLog&) = delete;
  MovementLog& operator=(const MovementLog&) = delete;

  // Tells which node is rewritten now.
  void reads(const Node& x) {
    reader_ = x.id;
    labels_.clear();
  }
  // `asked` are the questions that the rewrite of x put, of which the first had this number.
  void lies(const UOp& x, Sharding where, OriginId origin, std::span<const Decisions::Asked> asked,
            size_t first);
  // Names the next option that is offered to the question that was asked last.
  template <class Describe>
  static void label(const Decisions& decisions, const Describe& describe) {
    if (innermost != nullptr)
      innermost->labels_[decisions.asked().size() - 1].push_back(describe());
  }
  // Adds a movement to the innermost log of this thread, if there is one; `describe` gives it.
  template <class Describe>
  static void note(const Describe& describe) {
    if (innermost == nullptr) return;
    Movement movement = describe();
    movement.reader = innermost->reader_;
    innermost->movements_.push_back(std::move(movement));
  }
  // While it is above zero, logs of this thread keep what they hear though no observer reads records.
  static constinit thread_local int wanted_here;

  std::vector<PlacedValue> take_values() { return std::move(values_); }
  std::vector<Movement> take_movements() { return std::move(movements_); }

 private:
  static constinit thread_local MovementLog* innermost;

  bool wanted_;
  MovementLog* outer_ = nullptr;
  uint64_t reader_ = 0;
  std::map<size_t, std::vector<std::string>> labels_;  // of options by the number of the question
  std::vector<PlacedValue> values_;
  std::vector<Movement> movements_;
};

}  // namespace tinyshard
