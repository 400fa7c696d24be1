// A planned GPU kernel as an LLVM module. Threads hold arrays of scalars: every value exists once
// for each chunk and lane of the spaces it varies with (its instances). No thread leaves a block
// early: where steps run out a thread repeats the last one, takes no part in folds and stores
// nothing, so that barriers are safe and loads need no branch. Internal to core/codegen/gpu;
// includes LLVM.
#pragma once
#include <bit>
#include <deque>
#include <optional>
#include <span>

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/MDBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"
#include "core/codegen/gpu/dialect.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen::gpu {

class Emitter {
 public:
  Emitter(const Graph& graph, const GpuPlan& plan, const Target& target, llvm::Module& module);
  void emit_entry(const std::string& name);
  int coordinates() const { return coordinate_count_; }
  bool waits_itself() const { return waits_itself_; }

 private:
  using Values = llvm::SmallVector<llvm::Value*, 4>;

  struct Bounds {
    int64_t low, high;
  };

  // An open space. Values live in the outermost frame that opens all their ranges.
  struct Frame {
    RangeSet own = 0, open = 0;  // open: of outer frames too
    RangeSet lane_ranges = 0;    // the innermost ones, when lanes > 1; of one frame at most
    int chunks = 1, lanes = 1;
    llvm::DenseMap<int, Values> digits;  // by range: its value in lane 0 of each chunk
    llvm::DenseMap<int, llvm::SmallVector<Bounds, 4>> bounds;  // of the digits, where known
    Values active;                                             // by chunk; null where always
    llvm::Instruction* before = nullptr;  // the branch into a loop inside; new code goes there
    llvm::DenseMap<int, Values> values;   // by node, as Work::same has it
  };

  // --- gpu_emit.cpp: control ---
  void emit_work(const Work& work, llvm::Value* block);
  void emit_items();
  void emit_inner(size_t level);
  // body(round) in each of a thread's rounds of the section.
  void in_section(const Section& section, bool shared, Values& carried,
                  llvm::function_ref<void(llvm::Value*)> body);
  // `known`: of the round.
  Frame& open(const Space& space, llvm::Value* thread, int threads, llvm::Value* round,
              std::optional<Bounds> known);
  Frame& push(RangeSet own);
  void close() { frames_.pop_back(); }
  void open_items(llvm::Value* block);
  void open_kept();
  // body(round) for each round; `carried` lives through them.
  // `limit`: how many of them, at least one; null for all.
  void rounds(int64_t count, llvm::Value* limit, Values& carried,
              llvm::function_ref<void(llvm::Value*)> body);
  llvm::Value* bound_value(const RangeBound& bound, int64_t size, int64_t most);
  // A frame of the loops that are none: their values, which all else may depend on.
  void open_fixed();
  // The ends of the extents, in front of everything else of the work.
  void find_limits();
  // Rounds that a space needs until the end of its outermost range; null where all are needed.
  llvm::Value* needed_rounds(const Space& space, int64_t together);
  // Tests whether some step of a block of items lies within the extents; null for always.
  llvm::Value* any_item(llvm::Value* block);
  void when(llvm::Value* condition, llvm::function_ref<void()> body);
  void digits_of(Frame& frame, const Space& space, llvm::Value* step, std::optional<Bounds> known);
  llvm::BasicBlock* block(const char* name);

  // --- folds.cpp ---
  // Of groups that do not need each other.
  void emit_groups(std::span<const int> groups, bool shared);
  void emit_single(int group);
  // How many of the first groups are such.
  size_t independent(std::span<const int> groups) const;
  void fold_level(int group, size_t level, bool shared, Values& accumulators);
  // fold_level where rounds make blocks of `block`, a power of two: what a block came to is added to
  // totals.
  void fold_level_in_blocks(int group, size_t level, bool shared, int64_t block,
                            Values& accumulators);
  Values identities(int group);
  int threads_of(size_t level, bool shared) const {
    return shared && level == 0 ? work_->team * work_->cluster : 1;
  }
  // The terms that a round of this level adds in turn.
  int64_t terms_of_round(int group, size_t level) const;
  void accumulate(int group, size_t levels, Values& accumulators);
  void keep(int fold, Values results);

  // --- tile.cpp: transposes ---
  void emit_tile(llvm::Value* block);
  struct TilePlaces {
    llvm::Value* fast = nullptr;  // of this thread in the tile, lane 0
    Values slow;                  // by chunk
  };
  TilePlaces open_tile(int fast, int slow, int lanes, llvm::Value* fast_tile,
                       llvm::Value* slow_tile);

  // --- team.cpp: what threads do together ---
  struct Partial {
    ReduceOp op;
    DType dtype;
    llvm::Value* value;
  };
  // Replaces what each thread has by what its team has; `first_only`: in the team's first thread,
  // and with anything in the others.
  void team_reduce(llvm::MutableArrayRef<Partial> partials, bool first_only);
  void reduce_batch(llvm::MutableArrayRef<Partial> partials, bool first_only);
  // The threads of a team that are in one warp, `apart` from each other; `inside`: which one this
  // is.
  struct Neighbours {
    int apart = 1, together = 1;
    llvm::Value* inside = nullptr;
  };
  Values write_partials(llvm::ArrayRef<Partial> partials, size_t which, llvm::Value* slot,
                        int slots, llvm::Value* writes);
  void read_partials(llvm::MutableArrayRef<Partial> partials, const Neighbours& near, int parts,
                     llvm::Value* reads,
                     llvm::function_ref<llvm::Value*(size_t, llvm::Type*, llvm::Value*)> at);
  llvm::Value* warp_reduce(ReduceOp op, DType dtype, llvm::Value* x, int apart, int count);
  llvm::Value* shuffle(llvm::Value* x, int distance);
  llvm::Value* shared(size_t which, int64_t bytes);  // memory of the block
  void size_shared();                                // when all is known

  // --- values.cpp ---
  Values value(int node);
  void make_below(int node);
  llvm::Value* coordinate(int64_t place) const;  // of the call, or what comes behind them
  Values make_value(int node);
  Values make_index(int node);
  Values apply(int node, bool lane0);
  Values make_load(int node);
  int place(int node) const;
  // Instances are numbered with the lanes fastest, then the chunks of inner frames.
  struct Spot {
    llvm::SmallVector<int, 6> chunks;  // by frame
    int lane = 0;
  };
  Spot spot_of(int node, int instance) const;
  int instance_at(int node, const Spot& spot) const;
  int instances(int node) const;
  int lanes_of(int node) const;
  // The instance of `source` that `instance` of `node` uses.
  int instance_of(int node, int instance, int source) const {
    return instance_at(source, spot_of(node, instance));
  }
  bool chunked(int node, size_t frame) const {
    return frames_[frame].chunks > 1 && (graph_[node].varies & frames_[frame].own) != 0;
  }
  const Frame* lane_frame(int node) const;
  bool narrow(int node) const;
  Bounds bounds(int index, const Spot& spot) const;
  llvm::Value* decided(int comparison, int instance) const;
  std::optional<Graph::Pattern> lane_pattern(int index) const;
  int vector_piece(int access) const;  // elements of one access to memory

  // --- memory.cpp ---
  Values load_piece(int slot, llvm::Value* address, int piece);
  void store_piece(int slot, llvm::Value* address, llvm::ArrayRef<llvm::Value*> values,
                   bool rounded);
  llvm::Value* element_address(int slot, llvm::Value* offset);
  // The node that a store computes before it rounds; `rounded`: it is of the memory's type already.
  struct StoredValue {
    int node;
    bool rounded;
  };
  StoredValue stored_value(int store) const;
  // `condition`: null, or when this thread stores at all.
  void emit_stores(std::span<const int> stores, llvm::Value* condition);
  llvm::Value* store_condition(int store, int instance);
  llvm::Value* zeros();

  // Both take what is not negative and cannot wrap: constants may then be taken out of an address.
  llvm::Value* whole_add(llvm::Value* a, llvm::Value* b) {
    return b_.CreateAdd(a, b, "", true, true);
  }
  llvm::Value* whole_mul(llvm::Value* a, llvm::Value* b) {
    return b_.CreateMul(a, b, "", true, true);
  }
  llvm::ConstantInt* i64(int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); }
  llvm::ConstantInt* i32(int64_t x) { return b_.getInt32(static_cast<uint32_t>(x)); }
  llvm::Value* both(llvm::Value* a, llvm::Value* b) { return !a ? b : !b ? a : b_.CreateAnd(a, b); }

  // Moves the builder to where values of a frame go now; back at destruction.
  struct At {
    At(Emitter& e, int frame);
    llvm::IRBuilder<>::InsertPointGuard guard;
  };

  const Graph& graph_;
  const GpuPlan& plan_;
  const Target& target_;
  const GpuDialect& dialect_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  Arith arith_;
  llvm::Function* function_ = nullptr;
  llvm::Value* thread_ = nullptr;  // i32, in the block
  int coordinate_count_ = 0;
  bool waits_itself_ = false;
  llvm::GlobalVariable* zeros_ = nullptr;
  // Two, used in turn: a barrier between write and read is then enough.
  llvm::GlobalVariable* shared_[4] = {};  // the second pair for what other blocks read
  int64_t shared_bytes_[4] = {};

  const Work* work_ = nullptr;
  llvm::Value *team_ = nullptr,
              *member_ = nullptr;  // i32: which team of the block, which thread of it
  // i32: which block of the cluster, which thread of the team in all of the cluster's blocks.
  llvm::Value *rank_ = nullptr, *share_ = nullptr;
  int reductions_ = 0, exchanges_ = 0;
  llvm::DenseMap<int, llvm::Value*> limits_;  // by range: i64, where its extent ends
  bool kept_open_ = false;
  std::deque<Frame> frames_;
};

}  // namespace tinyshard::codegen::gpu
