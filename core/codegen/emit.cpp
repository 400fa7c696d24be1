// A kernel on the CPU as LLVM IR: one function with the loops of the plan, outermost first; each
// value is emitted at the loop where the plan placed it. Loads and stores are in emit_memory.cpp,
// arithmetic is in emit_values.cpp.
#include "core/codegen/emit.h"

#include <algorithm>
#include <bit>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/codegen/summation.h"
#include "core/uop/args.h"

namespace tinyshard::codegen {

using llvm::BasicBlock;
using llvm::PHINode;
using llvm::Value;

Emitter::Emitter(const Graph& graph, const Plan& plan, const Target& target, llvm::Module& module)
    : graph_(graph),
      plan_(plan),
      target_(target),
      module_(module),
      b_(module.getContext()),
      arith_(b_, module, target) {}

BasicBlock* Emitter::block(const char* name) {
  return BasicBlock::Create(b_.getContext(), name, function_);
}

void Emitter::emit_entry(const std::string& name) {
  llvm::Type *pointer = b_.getPtrTy(), *integer = b_.getInt64Ty();
  auto* type = llvm::FunctionType::get(b_.getVoidTy(), {pointer, pointer, integer, integer}, false);
  function_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module_);
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  Value *buffers = function_->getArg(0), *begin = function_->getArg(2), *end = function_->getArg(3);
  coordinates_ = function_->getArg(1);
  b_.SetInsertPoint(block("entry"));
  for (int slot = 0; slot < graph_.params(); ++slot) {
    auto* p = b_.CreateAlignedLoad(
        pointer, b_.CreateConstInBoundsGEP1_64(pointer, buffers, static_cast<uint64_t>(slot)),
        llvm::Align(8));
    p->setName("p" + std::to_string(slot));
    params_.push_back(p);
  }
  if (options().check.memory) begin_checks(buffers);
  // The nests' work items follow each other.
  int64_t first = 0;
  for (const Nest& nest : plan_.nests) {
    Value *low = begin, *high = end;
    if (plan_.nests.size() > 1) {
      low =
          b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, b_.CreateSub(begin, i64(first)), i64(0));
      high = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateSub(end, i64(first)),
                                      i64(nest.items));
    }
    BasicBlock *work = block("nest"), *done = block("next");
    b_.CreateCondBr(b_.CreateICmpSLT(low, high), work, done);
    b_.SetInsertPoint(work);
    emit_nest(nest, low, high);
    b_.CreateBr(done);
    b_.SetInsertPoint(done);
    first += nest.items;
  }
  b_.CreateRetVoid();
}

void Emitter::emit_nest(const Nest& nest, Value* begin, Value* end) {
  nest_ = &nest;
  open_.clear();
  open_.resize(nest.scopes.size());
  item_low_.assign(nest.loops.size(), nullptr);
  find_limits();
  if (nest.items == 1) {
    emit_body(0, 0);
    return;
  }
  for (int group : nest.scopes[0].groups) emit_group(group);
  // Hoisted values of the root stay in front of the loop over items.
  Values none;
  BasicBlock* ready = block("items");
  open_[0].before = b_.CreateBr(ready);
  b_.SetInsertPoint(ready);
  loop(begin, end, 1, false, none, [&](Value* item) {
    int split = nest.item_loops + (nest.chunk > 0);
    for (int d = split - 1; d >= 0; --d) {
      const Scope& scope = nest.scopes[nest.loops[d]];
      int64_t step = d == nest.item_loops ? nest.chunk : int64_t{scope.lanes} * scope.tile;
      int64_t count = (graph_.range(scope.range).size + step - 1) / step;
      Value* digit = item;
      if (d > 0) {
        digit = b_.CreateURem(item, i64(count));
        item = b_.CreateUDiv(item, i64(count));
      }
      item_low_[d] = b_.CreateMul(digit, i64(step));
    }
    emit_loop(nest.loops[0], 0);
  });
  open_[0].before = nullptr;
}

void Emitter::find_limits() {
  limits_.assign(nest_->scopes.size(), {});
  for (size_t s = 1; s < nest_->scopes.size(); ++s) {
    const Scope& scope = nest_->scopes[s];
    if (scope.unroll) continue;
    const int64_t size = graph_.range(scope.range).size;
    auto clamped = [&](Value* x, int64_t least, int64_t most) {
      x = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, i64(least));
      return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, i64(most));
    };
    auto end = [&](const RangeBound& bound) {
      // Numbers beyond these admit all values or none, as they do.
      const int64_t far = size + std::abs(bound.offset) + 2;
      Value* x = b_.CreateSExtOrTrunc(value(bound.node, 0)[0], b_.getInt64Ty());
      x = b_.CreateMul(clamped(x, -far, far), i64(bound.scale));
      return clamped(b_.CreateAdd(x, i64(bound.offset)), 0, size);
    };
    for (const RangeBound& bound : scope.extent.low) {
      Value *x = end(bound), *&low = limits_[s].low;
      low = low ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, low, x) : x;
    }
    for (const RangeBound& bound : scope.extent.high) {
      Value *x = end(bound), *&high = limits_[s].high;
      high = high ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, x) : x;
    }
  }
}

void Emitter::enter(int scope, Value* base, int lanes, int active, int tile, bool interior) {
  Open& open = open_[scope];
  open.before = nullptr;
  open.base = base;
  open.lanes = lanes;
  open.active = active;
  open.tile = tile;
  open.interior = interior;
  open.values.clear();
}

void Emitter::inside(int parent, llvm::function_ref<void()> body) {
  bool first = !open_[parent].before;
  if (first) {
    BasicBlock* next = block("in");
    open_[parent].before = b_.CreateBr(next);
    b_.SetInsertPoint(next);
  }
  body();
  if (first) {
    open_[parent].before = nullptr;
  }
}

void Emitter::loop(Value* begin, Value* end, int64_t step, bool guarded, Values& carried,
                   llvm::function_ref<void(Value*)> body) {
  BasicBlock *from = b_.GetInsertBlock(), *head = block("loop"), *exit = block("end");
  const Values before = carried;
  if (guarded) {
    b_.CreateCondBr(b_.CreateICmpSLT(begin, end), head, exit);
  } else {
    b_.CreateBr(head);
  }
  b_.SetInsertPoint(head);
  PHINode* counter = b_.CreatePHI(b_.getInt64Ty(), 2, "i");
  counter->addIncoming(begin, from);
  llvm::SmallVector<PHINode*, 8> phis;
  for (Value*& v : carried) {
    PHINode* phi = b_.CreatePHI(v->getType(), 2);
    phi->addIncoming(v, from);
    phis.push_back(phi);
    v = phi;
  }
  body(counter);
  BasicBlock* last = b_.GetInsertBlock();
  Value* next = b_.CreateNUWAdd(counter, i64(step));
  counter->addIncoming(next, last);
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(carried[i], last);
  b_.CreateCondBr(b_.CreateICmpSLT(next, end), head, exit);
  b_.SetInsertPoint(exit);
  if (guarded) merge_values(carried, before, from, last);
}

void Emitter::merge_values(Values& values, const Values& others, BasicBlock* others_from,
                           BasicBlock* from) {
  for (size_t i = 0; i < values.size(); ++i) {
    PHINode* phi = b_.CreatePHI(values[i]->getType(), 2);
    phi->addIncoming(others[i], others_from);
    phi->addIncoming(values[i], from);
    values[i] = phi;
  }
}

void Emitter::when(Value* condition, Values& carried, llvm::function_ref<void()> body) {
  const Values before = carried;
  BasicBlock *from = b_.GetInsertBlock(), *then = block("then"), *done = block("done");
  b_.CreateCondBr(condition, then, done);
  b_.SetInsertPoint(then);
  body();
  BasicBlock* last = b_.GetInsertBlock();
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  merge_values(carried, before, from, last);
}

void Emitter::limited_loop(int scope, Value* begin, Value* end, int64_t step, Values& carried,
                           llvm::function_ref<void(Value*, bool)> body) {
  const Limits& limits = limits_[scope];
  auto whole_steps = [&](Value* x) {
    return step == 1 ? x : b_.CreateMul(b_.CreateUDiv(x, i64(step)), i64(step));
  };
  if (limits.low)
    begin = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, begin, whole_steps(limits.low));
  if (limits.high) end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, limits.high);
  if (step == 1 || limits.low) {
    loop(begin, end, step, true, carried, [&](Value* i) { body(i, step == 1); });
    return;
  }
  Value* middle = whole_steps(end);
  loop(begin, middle, step, true, carried, [&](Value* i) { body(i, true); });
  begin = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, begin, middle);
  when(b_.CreateICmpSLT(begin, end), carried, [&] { body(begin, false); });
}

void Emitter::emit_body(int scope, int depth) {
  for (int group : nest_->scopes[scope].groups) emit_group(group);
  if (static_cast<size_t>(depth) < nest_->loops.size()) emit_loop(nest_->loops[depth], depth);
  emit_stores(scope);
}

// The loop at `depth`, whose scope is `scope`: whole vectors or tiles first, then what is left.
void Emitter::emit_loop(int scope, int depth) {
  const Scope& s = nest_->scopes[scope];
  int64_t size = graph_.range(s.range).size, step = int64_t{s.lanes} * s.tile;
  int64_t rest = size % step, whole = size - rest;
  Value* low = item_low_[depth];
  bool chunk = low && depth == nest_->item_loops;
  auto run = [&](Value* base, bool tail, bool interior = false) {
    if (!tail) {
      enter(scope, base, s.lanes, s.lanes, s.tile, interior);
    } else if (s.lanes > 1) {
      enter(scope, base, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(rest))),
            static_cast<int>(rest), 1);
    } else {
      enter(scope, base, 1, 1, static_cast<int>(rest));
    }
    emit_body(scope, depth + 1);
  };
  Values none;
  if (!low && s.unroll) {
    for (int64_t i = 0; i < size; ++i) inside(s.parent, [&] { run(i64(i), false); });
    return;
  }
  if (const Limits& limits = limits_[scope]; limits.low || limits.high) {
    Value *begin = i64(0), *end = i64(size);
    if (low) {
      begin = low;
      end = b_.CreateAdd(low, i64(chunk ? nest_->chunk : step));
      end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(size));
    }
    if (whole > 0) {
      inside(s.parent, [&] {
        Value* last = rest ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(whole)) : end;
        limited_loop(scope, begin, last, step, none,
                     [&](Value* i, bool interior) { run(i, false, interior); });
      });
    }
    if (rest > 0) {
      inside(s.parent, [&] {
        Value* reached = b_.CreateICmpSGT(end, i64(whole));
        if (limits.high) reached = b_.CreateAnd(reached, b_.CreateICmpSGT(limits.high, i64(whole)));
        when(reached, none, [&] { run(i64(whole), true); });
      });
    }
    return;
  }
  if (!low) {
    if (whole > 0) {
      inside(s.parent, [&] {
        if (whole == step) {
          run(i64(0), false);
        } else {
          loop(i64(0), i64(whole), step, false, none, [&](Value* i) { run(i, false); });
        }
      });
    }
    if (rest > 0) inside(s.parent, [&] { run(i64(whole), true); });
    return;
  }
  if (!chunk && rest == 0) {
    inside(s.parent, [&] { run(low, false); });
    return;
  }
  // Part of the range: [low, high), of which the last vector may be short.
  Value* high = b_.CreateAdd(low, i64(chunk ? nest_->chunk : step));
  high = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, i64(size));
  Value* whole_high =
      rest ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, i64(whole)) : high;
  if (whole > 0) {
    inside(s.parent,
           [&] { loop(low, whole_high, step, rest != 0, none, [&](Value* i) { run(i, false); }); });
  }
  if (rest > 0) {
    inside(s.parent,
           [&] { when(b_.CreateICmpSGT(high, i64(whole)), none, [&] { run(i64(whole), true); }); });
  }
}

// --- folds ---------------------------------------------------------------------------------------

static ReduceOp reduce_op(const Graph& graph, int fold) { return fold_arg(graph.node(fold)).op; }

void Emitter::emit_group(int group) {
  const FoldGroup& g = nest_->groups[group];
  if (g.first == g.scope) {  // nothing to repeat
    for (int fold : g.folds) {
      Values results;
      if (graph_.fold_ranges(fold).empty) {
        results.push_back(arith_.identity(reduce_op(graph_, fold), graph_[fold].dtype, 1));
      } else {
        int source = graph_.source(fold, 0);
        results = value(source, g.scope);
      }
      open_[g.scope].values[{fold, kWhole}] = results;
    }
    return;
  }
  const bool vector = nest_->scopes[g.last].lanes > 1;
  Values accumulators = identities(group);
  fold_scope(group, g.first, accumulators);
  size_t next = 0;
  for (int fold : g.folds) {
    const DType dtype = graph_[fold].dtype;
    const auto count = static_cast<size_t>(instances(fold, g.scope));
    llvm::ArrayRef<Value*> sums(accumulators.data() + next, count);
    next += count;
    Values results(sums.begin(), sums.end());
    if (vector) {
      const int lanes = target_.vector_bits / int(sums[0]->getType()->getScalarSizeInBits());
      auto ends = arith_.horizontals(reduce_op(graph_, fold), dtype, sums, lanes,
                                     nest_->scopes[g.last].by_quads);
      results.assign(ends.begin(), ends.end());
    }
    for (Value*& result : results) result = arith_.rounded(result, dtype);
    open_[g.scope].values[{fold, kWhole}] = results;
  }
}

// The accumulators of all folds in one list, instance by instance.
Emitter::Values Emitter::identities(int group) {
  const FoldGroup& g = nest_->groups[group];
  const bool vector = nest_->scopes[g.last].lanes > 1;
  Values all;
  for (int fold : g.folds) {
    int lanes = vector ? nest_->scopes[g.last].lanes : lanes_of(graph_.source(fold, 0), g.scope);
    Value* identity = arith_.identity(reduce_op(graph_, fold), graph_[fold].dtype, lanes);
    all.append(static_cast<size_t>(instances(fold, g.scope)), identity);
  }
  return all;
}

void Emitter::add_block(int group, Values& accumulators, const Values& block) {
  const FoldGroup& g = nest_->groups[group];
  size_t next = 0;
  for (int fold : g.folds) {
    for (int i = 0; i < instances(fold, g.scope); ++i, ++next) {
      accumulators[next] = arith_.combine(reduce_op(graph_, fold), graph_[fold].dtype,
                                          accumulators[next], block[next]);
    }
  }
}

int64_t Emitter::terms_of_step(int scope) const {
  const int next = nest_->scopes[scope].next;
  if (next < 0) return 1;
  const Scope& inner = nest_->scopes[next];
  const int64_t steps = (graph_.range(inner.range).size + inner.lanes - 1) / inner.lanes;
  return terms_in_turn(steps, terms_of_step(next));
}

void Emitter::in_blocks(int group, int scope, Value* begin, Value* end, int64_t block,
                        int64_t smallest, Values& accumulators,
                        llvm::function_ref<void(Value*, Value*, Values&)> part) {
  const Limits& limits = limits_[scope];
  if (limits.low) {
    Value* first = b_.CreateMul(b_.CreateUDiv(limits.low, i64(block)), i64(block));
    begin = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, begin, first);
  }
  if (limits.high) end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, limits.high);
  loop(begin, end, block, limits.low || limits.high, accumulators, [&](Value* at) {
    Values sums = identities(group);
    Value* last =
        b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, b_.CreateAdd(at, i64(block)), end);
    if (block > smallest) {
      in_blocks(group, scope, at, last, block / kTermsInTurn, smallest, sums, part);
    } else {
      part(at, last, sums);
    }
    add_block(group, accumulators, sums);
  });
}

void Emitter::fold_scope(int group, int scope, Values& accumulators) {
  const Scope& s = nest_->scopes[scope];
  int64_t size = graph_.range(s.range).size, rest = size % s.lanes, whole = size - rest;
  const Limits& limits = limits_[scope];
  const bool careful = std::ranges::any_of(nest_->groups[group].folds, [&](int fold) {
    return loses_digits(reduce_op(graph_, fold), graph_[fold].dtype);
  });
  const int64_t smallest =
      careful ? steps_of_block(terms_of_step(scope)) * s.lanes : std::max<int64_t>(size, 1);
  if (s.unroll) {
    for (int64_t i = 0; i < size; ++i) {
      inside(s.parent, [&] {
        enter(scope, i64(i), 1, 1, 1);
        if (size <= smallest) {
          fold_body(group, scope, accumulators);
          return;
        }
        Values sums = identities(group);
        fold_body(group, scope, sums);
        add_block(group, accumulators, sums);
      });
    }
    return;
  }
  if (whole > 0) {
    inside(s.parent, [&] {
      auto run = [&](Value* i, Values& sums, bool interior) {
        enter(scope, i, s.lanes, s.lanes, 1, interior);
        fold_body(group, scope, sums);
      };
      auto part = [&](Value* begin, Value* end, Values& sums) {
        if (limits.low || limits.high) {
          limited_loop(scope, begin, end, s.lanes, sums,
                       [&](Value* i, bool interior) { run(i, sums, interior); });
        } else {
          loop(begin, end, s.lanes, false, sums, [&](Value* i) { run(i, sums, false); });
        }
      };
      if (whole == s.lanes && !limits.low && !limits.high) {
        run(i64(0), accumulators, false);
      } else if (whole <= smallest) {
        part(i64(0), i64(whole), accumulators);
      } else {
        int64_t block = smallest;
        while (block * kTermsInTurn < whole) block *= kTermsInTurn;
        in_blocks(group, scope, i64(0), i64(whole), block, smallest, accumulators, part);
      }
    });
  }
  if (rest > 0) {
    inside(s.parent, [&] {
      auto last = [&] {
        enter(scope, i64(whole), static_cast<int>(std::bit_ceil(static_cast<uint64_t>(rest))),
              static_cast<int>(rest), 1);
        fold_body(group, scope, accumulators);
      };
      if (limits.high) {
        when(b_.CreateICmpSGT(limits.high, i64(whole)), accumulators, last);
      } else {
        last();
      }
    });
  }
}

void Emitter::fold_body(int group, int scope, Values& accumulators) {
  const Scope& s = nest_->scopes[scope];
  for (int inner : s.groups) emit_group(inner);
  if (s.next >= 0) {
    fold_scope(group, s.next, accumulators);
    return;
  }
  const FoldGroup& g = nest_->groups[group];
  const Open& open = open_[scope];
  size_t next = 0;
  for (int fold : g.folds) {
    ReduceOp op = reduce_op(graph_, fold);
    DType dtype = graph_[fold].dtype;
    int source = graph_.source(fold, 0);
    int count = instances(fold, g.scope);
    for (int i = 0; i < count; ++i) {
      Value*& accumulator = accumulators[next++];
      auto* type = llvm::dyn_cast<llvm::FixedVectorType>(accumulator->getType());
      int wanted = type ? static_cast<int>(type->getNumElements()) : 1;
      int lanes = s.lanes > 1 ? open.lanes : wanted;
      Value* x = (lanes > 1 ? splatted(source, lanes, scope)
                            : value(source, scope))[instance_of(fold, i, source, scope)];
      if (s.lanes > 1) {
        if (open.active < open.lanes) {
          llvm::SmallVector<llvm::Constant*, 64> mask(size_t(open.lanes), b_.getInt1(false));
          for (int n = 0; n < open.active; ++n)
            mask[size_t(lane_of(n, open.lanes, s.by_quads))] = b_.getInt1(true);
          x = b_.CreateSelect(llvm::ConstantVector::get(mask), x,
                              arith_.identity(op, dtype, open.lanes));
        }
        // A short last vector: the other lanes meet the identity.
        if (open.lanes == 1 && wanted > 1) {
          x = b_.CreateInsertElement(arith_.identity(op, dtype, wanted), x, uint64_t{0});
        } else if (open.lanes < wanted) {
          llvm::SmallVector<int, 64> mask(size_t(wanted), open.lanes);
          for (int n = 0; n < open.lanes; ++n)
            mask[size_t(lane_of(n, wanted, s.by_quads))] = lane_of(n, open.lanes, s.by_quads);
          x = b_.CreateShuffleVector(x, arith_.identity(op, dtype, open.lanes), mask);
        }
      }
      llvm::IRBuilder<>::FastMathFlagGuard flags(b_);
      if (graph_[fold].contracts) b_.setFastMathFlags(contraction());
      accumulator = arith_.combine(op, dtype, accumulator, x);
    }
  }
}

}  // namespace tinyshard::codegen
