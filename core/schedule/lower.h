// Makes a kernel from the graph: starting at a value that gets memory, index ranges are pushed down
// through movement ops, reductions become folds, and loads end every path.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/rewrite/demand.h"
#include "core/rewrite/symbolic.h"
#include "core/schedule/fusion.h"
#include "core/uop/args.h"

namespace tinyshard {

// A kernel while it is being put together. Its loads name slots, Param {slot}, and the slots
// buffers of the schedule: kernels that do the same to other buffers are made of the same nodes, so
// that what takes time is done to those of one layer only.
//
//   x = y + z; u = v + w      both: load p0 [i] + load p1 [i]; slots y z, and v w
struct KernelDraft {
  struct Output {
    int buffer;
    UOp index, value;
    UOp valid = UOp();  // where it is demanded at all; null for everywhere

    std::array<UOp, 3> expressions() const { return {index, value, valid}; }
  };
  Mesh mesh = Mesh::unset();
  std::vector<UOp> loops;  // outer to inner
  std::vector<int> slots;  // buffers, each once; also some that no load names any longer
  std::vector<Output> outputs;
  int position = 0;  // of its latest value in the topological order: breaks ties in the order

  // The buffer that a load reads.
  int buffer_of(const UOp& load) const { return slots[size_t(slot_of(*load))]; }
  // The slot of a buffer, which gets one if it has none.
  int slot_for(int buffer);
  // Returns for each slot of another draft the slot of its buffer here, added if there is none.
  std::vector<int> slots_for(const KernelDraft& other);
};

// Indices, values and masks of all outputs.
std::vector<UOp> expressions(const KernelDraft& draft);
// All nodes of these, sources first.
NodeOrder all_nodes(const KernelDraft& draft);
// Prepares expressions that become part of another draft, in which their slot i is slot taken[i]:
// adds to `map` the Param that takes the place of each of theirs.
void rename_slots(std::span<const UOp> nodes, std::span<const int> taken, NodeMap<UOp>& map);
// Returns the nodes that are folds.
std::vector<UOp> folds_among(std::span<const UOp> nodes);

// The buffer that holds a materialized value; demanding it makes sure that something computes it.
using BufferOf = std::function<int(const UOp&)>;

class FreeRanges;

class Lowering {
 public:
  Lowering(const Fusion& fusion, const Demand& demand, BufferOf buffer_of)
      : fusion_(fusion), demand_(demand), buffer_of_(std::move(buffer_of)) {}

  // The kernel that stores `value` (looked into even if it has a buffer of its own) in `buffer`.
  KernelDraft kernel(const UOp& value, int buffer);

  // Where the elements of `operand` lie in a materialized buffer, when every element is at
  // offset + sum of stride * position: no padding, no recomputation.
  std::optional<std::pair<UOp, StridedView>> view(const UOp& operand);

  // The Reduce node that a Fold of the latest kernel came from.
  UOp origin(const UOp& fold) const { return fold_origin_.at(fold); }
  // The Reduce nodes of floats that the latest kernel computes, `folds` being all folds in it.
  std::vector<UOp> float_reductions(std::span<const UOp> folds) const;
  // Returns one that it would compute twice, each time in an order of its own: for two parts of the
  // kernel that read it by different indices, or inside of two folds. Null when there is none.
  UOp reduced_twice(std::span<const UOp> folds, FreeRanges& free_ranges) const;

 private:
  UOp lower(const UOp& x, const std::vector<UOp>& index, const UOp& valid);
  UOp lower_new(const UOp& x, const std::vector<UOp>& index, const UOp& valid);
  UOp load(const UOp& x, const std::vector<UOp>& index, const UOp& valid);
  UOp guarded(const UOp& x, std::vector<UOp> index, const UOp& valid, const UOp& inside);
  std::vector<UOp> through_reshape(DimSpan from, DimSpan to, const std::vector<UOp>& index);
  // Remembered for all kernels: their loops are numbered alike.
  const UOp& simplified_flat_index(DimSpan shape, std::span<const UOp> index);
  UOp position(const UOp& x, const std::vector<UOp>& index);
  UOp position_of(const UOp& x, const std::vector<UOp>& index);
  UOp number_of_device(const UOp& x, const std::vector<UOp>& index);
  bool adds_products(const UOp& x) const;
  UOp fold(const UOp& x, const std::vector<UOp>& index, const UOp& valid);

  struct Key {
    const Node* node;
    std::vector<const Node*> index;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const;
  };
  struct IntsHash {
    size_t operator()(const Dims& ints) const;
  };

  UOp demanded(const UOp& x, const std::vector<UOp>& index);

  const Fusion& fusion_;
  const Demand& demand_;
  BufferOf buffer_of_;
  Simplifier simplify_;
  std::unordered_map<Key, UOp, KeyHash> memo_;
  std::unordered_map<Dims, UOp, IntsHash> flat_;  // by shape and ids of the index
  Dims flat_key_;
  NodeMap<UOp> fold_origin_;
  std::vector<UOp> alive_;  // nodes that keys of the tables point to
  const Node* root_ = nullptr;
  KernelDraft draft_;  // the kernel at hand
};

// Free ranges of an expression: those that no Fold inside it binds.
class FreeRanges {
 public:
  const std::vector<UOp>& operator()(const UOp& x);

 private:
  NodeMap<std::vector<UOp>> memo_;
  std::vector<UOp> alive_;  // nodes that the table points to
};

// A reduction of floats inside of two other ones of the kernel, which run one after the other and
// would each compute it, in loops of their own and so in an order of their own. Null when there is
// none.
UOp reduced_inside_two(std::span<const UOp> folds, FreeRanges& free_ranges);

// Row-major position of `index` in `shape`.
UOp flat_index(DimSpan shape, std::span<const UOp> index);

}  // namespace tinyshard
