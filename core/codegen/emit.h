// A planned kernel as an LLVM module. emit.cpp makes the loops, emit_values.cpp what is computed in
// them, emit_memory.cpp what is loaded and stored. Internal to core/codegen; includes LLVM.
#pragma once
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"
#include "core/codegen/plan.h"

namespace tinyshard::codegen {

class Emitter {
 public:
  Emitter(const Graph& graph, const Plan& plan, const Target& target, llvm::Module& module);
  void emit_entry(const std::string& name);

 private:
  // A value has one instance per copy of the code that tiles make; see instances().
  using Values = llvm::SmallVector<llvm::Value*, 1>;

  // A scope of the current nest while its code is being made. Code of a scope goes to the end of
  // the builder's block while it is the innermost one; later needs go in front of `before`, the
  // branch into the scope inside it.
  struct Open {
    llvm::Instruction* before = nullptr;
    llvm::Value* base = nullptr;  // i64: the range's value in lane 0 of copy 0
    int lanes = 1, tile = 1;      // of this copy of the body: the last vector may be shorter
    int active = 1;               // lanes that count
    bool interior = false;        // whether all of them lie in the extent of the loop
    llvm::DenseMap<std::pair<int, int>, Values> values;  // by node and form (see below)
  };
  // Forms in which a value exists; positive numbers are splats to that many lanes.
  static constexpr int kWhole = 0, kLane0 = -1;

  // --- emit.cpp: control ---
  void emit_nest(const Nest& nest, llvm::Value* begin, llvm::Value* end);
  void emit_body(int scope, int depth);
  void emit_loop(int scope, int depth);
  void emit_group(int group);
  void fold_scope(int group, int scope, Values& accumulators);
  void fold_body(int group, int scope, Values& accumulators);
  Values identities(int group);
  // Adds what a block came to, accumulator by accumulator.
  void add_block(int group, Values& accumulators, const Values& block);
  // The terms that one step of a scope of a fold adds in turn.
  int64_t terms_of_step(int scope) const;
  // Runs `part` over [begin, end) of a scope of a fold, in blocks of blocks of so many values: the
  // largest `block` first, and `part` for each of the `smallest` ones.
  void in_blocks(int group, int scope, llvm::Value* begin, llvm::Value* end, int64_t block,
                 int64_t smallest, Values& accumulators,
                 llvm::function_ref<void(llvm::Value*, llvm::Value*, Values&)> part);
  // for (i = begin; i < end; i += step) body(i); `carried` lives through the iterations. Without
  // `guarded` the first iteration is certain.
  void loop(llvm::Value* begin, llvm::Value* end, int64_t step, bool guarded, Values& carried,
            llvm::function_ref<void(llvm::Value*)> body);
  // The same over those values of the range of `scope` that lie in [begin, end) and in its extent,
  // rounded to whole steps. `end` is a multiple of the step; `interior`: all of a step lies in it.
  void limited_loop(int scope, llvm::Value* begin, llvm::Value* end, int64_t step, Values& carried,
                    llvm::function_ref<void(llvm::Value*, bool interior)> body);
  // Joins values that are carried past a part of the code that may have been left out.
  void merge_values(Values& values, const Values& others, llvm::BasicBlock* others_from,
                    llvm::BasicBlock* from);
  // body(), if the condition holds.
  void when(llvm::Value* condition, Values& carried, llvm::function_ref<void()> body);
  // The ends of the extents, in front of all loops.
  void find_limits();
  // Runs `body` as the inside of `parent`, in a block of its own.
  void inside(int parent, llvm::function_ref<void()> body);
  void enter(int scope, llvm::Value* base, int lanes, int active, int tile, bool interior = false);
  llvm::BasicBlock* block(const char* name);

  // --- emit_values.cpp ---
  const Values& value(int node, int scope);
  void make_below(int node, int place);
  const Values& lane0(int node, int scope);
  const Values& splatted(int node, int lanes, int scope);
  llvm::Value* coordinate(int64_t place);  // of the call, or what comes behind them
  Values make_value(int node, int place, int lanes);
  Values make_lane0(int node, int place);
  Values make_index_vector(int node, int place, int lanes);
  Values apply(int node, int place, int lanes, int form);
  llvm::Value* range_base(int range, int scope, int node, int instance);

  int lanes_of(int node, int scope) const;  // of the current copy
  int scope_of(int range, int from) const;
  int instances(int node, int scope) const;
  // The instance of `source` that `instance` of `node` uses.
  int instance_of(int node, int instance, int source, int scope) const;
  int tile_offset(int node, int instance, int range, int scope) const;
  bool certain(int node, int place) const;  // a condition that holds in all of this copy
  bool narrow(int node) const;              // an index whose vectors have 32-bit lanes
  std::optional<Graph::Pattern> lane_pattern(int index, int scope, int lanes) const;
  llvm::Value* tail_mask(int node, int scope);  // null when all lanes count
  llvm::Value* param(int slot) { return params_[slot]; }
  llvm::ConstantInt* i64(int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); }

  // --- emit_memory.cpp ---
  Values make_load(int node, int place, int lanes);
  llvm::Value* masked_load(llvm::Type* type, llvm::Value* address, llvm::Align align,
                           llvm::Value* mask);
  // Asks for what this load reads some iterations later, where that is worth it.
  void prefetch(int load, int place, int lanes, llvm::Value* address);
  llvm::Value* load_one(int node, int place, int lanes, int instance);
  void emit_stores(int scope);
  void store_one(int store, int scope, int lanes, int instance, llvm::Value* value,
                 llvm::Value* valid);
  llvm::Align access_alignment(int access, int scope, int lanes, bool vector);
  llvm::Value* zeros();

  // --- emit_checks.cpp ---
  void begin_checks(llvm::Value* buffers);
  // With TS_CHECK=memory: `address`, of `elements` neighbours or a vector of addresses, or harmless
  // memory instead of what lies outside of the buffer of `access`, which is noted. Lanes that
  // `mask` leaves out, or a false `mask` for all of them, do not count. Otherwise: `address`.
  llvm::Value* checked(int access, llvm::Value* address, int elements, llvm::Value* mask);

  // Moves the builder to where code of `scope` goes now; back at destruction.
  struct At {
    At(Emitter& e, int scope);
    llvm::IRBuilder<>::InsertPointGuard guard;
  };

  const Graph& graph_;
  const Plan& plan_;
  const Target& target_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  Arith arith_;
  llvm::Function* function_ = nullptr;
  std::vector<llvm::Value*> params_;
  llvm::Value* coordinates_ = nullptr;
  llvm::GlobalVariable* zeros_ = nullptr;
  llvm::Value* fault_ = nullptr;    // the AccessFault; null without checks
  llvm::Function* note_ = nullptr;  // that fills it

  const Nest* nest_ = nullptr;
  std::vector<Open> open_;
  struct Limits {
    llvm::Value *low = nullptr, *high = nullptr;  // i64, in [0, size]
  };
  std::vector<Limits> limits_;          // by scope; null where the extent has no such end
  std::vector<llvm::Value*> item_low_;  // by loop: first value of the range in this work item
};

}  // namespace tinyshard::codegen
