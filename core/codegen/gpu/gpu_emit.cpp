// The control of a GPU kernel: which thread takes which steps, loops over the rounds that are left,
// and the order of folds and stores. values.cpp computes what is inside, folds.cpp lets a team
// reduce, memory.cpp loads and stores, tile.cpp transposes.
//
// The steps of a space are numbered; a step's digits are the values of its ranges. For the rows of
// a softmax, [64, 1000] in teams of 32 threads, 8 teams a block and 4 lanes:
//
//   items      i < 64                   step = block * 8 + team
//   sections   j < 1000: 250 steps      step = round * 32 + member, 8 rounds, j = 4 * step
//
// In the last round steps 250 to 255 do not exist: those threads repeat step 249, add nothing to
// the fold and store nothing, since a thread that left would be missed at the next barrier.
#include "core/codegen/gpu/gpu_emit.h"

#include <limits>

#include "core/base/error.h"
#include "core/uop/args.h"

namespace tinyshard::codegen::gpu {

using llvm::BasicBlock;
using llvm::PHINode;
using llvm::Value;

namespace {

bool is_false(Value* x) {
  auto* c = llvm::dyn_cast<llvm::ConstantInt>(x);
  return c && c->isZero();
}

}  // namespace

Emitter::Emitter(const Graph& graph, const GpuPlan& plan, const Target& target,
                 llvm::Module& module)
    : graph_(graph),
      plan_(plan),
      target_(target),
      dialect_(*GpuDialect::of(target)),
      module_(module),
      b_(module.getContext()),
      arith_(b_, module, target) {}

BasicBlock* Emitter::block(const char* name) {
  return BasicBlock::Create(b_.getContext(), name, function_);
}

void Emitter::emit_entry(const std::string& name) {
  for (int node = 0; node < graph_.size(); ++node) {
    if (graph_[node].op == Op::DeviceCoordinate)
      coordinate_count_ = std::max(
          coordinate_count_, static_cast<int>(coordinate_arg(graph_.node(node)).mesh_axis) + 1);
    coordinate_count_ = std::max(coordinate_count_, graph_[node].scalar + 1);
  }
  std::vector<llvm::Type*> types(static_cast<size_t>(graph_.params()),
                                 b_.getPtrTy(dialect_.words().global_space));
  types.insert(types.end(), static_cast<size_t>(coordinate_count_), b_.getInt64Ty());
  function_ = llvm::Function::Create(llvm::FunctionType::get(b_.getVoidTy(), types, false),
                                     llvm::Function::ExternalLinkage, name, module_);
  function_->addFnAttr(llvm::Attribute::NoUnwind);
  for (int slot = 0; slot < graph_.params(); ++slot) {
    auto at = static_cast<unsigned>(slot);
    function_->addParamAttr(at,
                            llvm::Attribute::getWithAlignment(b_.getContext(), llvm::Align(16)));
    // A parameter that nobody writes may come through the read-only path.
    if (graph_.param(slot).written || graph_.aliased(slot)) continue;
    function_->addParamAttr(at, llvm::Attribute::NoAlias);
    function_->addParamAttr(at, llvm::Attribute::ReadOnly);
  }
  // Rows kept by several blocks: one block loads while another waits for its neighbours.
  const bool shares_rows = plan_.cluster > 1 && plan_.works[0].kept;
  dialect_.make_entry(*function_, plan_.block, shares_rows ? std::max(1, 1024 / plan_.block) : 0);

  b_.SetInsertPoint(block("entry"));
  auto ranged = [&](llvm::CallInst* call, int64_t below) {
    call->setMetadata(
        llvm::LLVMContext::MD_range,
        llvm::MDBuilder(b_.getContext())
            .createRange(llvm::APInt(32, 0), llvm::APInt(32, static_cast<uint64_t>(below))));
    return call;
  };
  thread_ = ranged(dialect_.thread_in_block(b_), plan_.block);
  Value* block_id = ranged(dialect_.block_in_grid(b_), std::numeric_limits<int32_t>::max());
  // The launch then takes no time of its own. What depends on this kernel may begin likewise once
  // each of its blocks is here.
  waits_itself_ = dialect_.wait_for_others(b_, target_);
  // The works' blocks follow each other.
  int64_t first = 0;
  for (const Work& work : plan_.works) {
    Value* own = b_.CreateSub(block_id, i32(first));
    if (&work == &plan_.works.back()) {
      emit_work(work, own);
      break;
    }
    BasicBlock *mine = block("work"), *next = block("next");
    b_.CreateCondBr(b_.CreateICmpULT(own, i32(work.blocks)), mine, next);
    b_.SetInsertPoint(mine);
    emit_work(work, own);
    b_.CreateRetVoid();
    b_.SetInsertPoint(next);
    first += work.blocks;
  }
  b_.CreateRetVoid();
  size_shared();
}

void Emitter::emit_work(const Work& work, Value* block) {
  work_ = &work;
  frames_.clear();
  kept_open_ = false;
  push(0);
  find_limits();
  open_fixed();
  if (!work.tile.staged.empty()) {
    emit_tile(block);
    return;
  }
  int inner = work.items_fastest ? work.teams : work.team;
  Value *low = inner == 1 ? i32(0) : b_.CreateURem(thread_, i32(inner)),
        *high = inner == plan_.block ? i32(0) : b_.CreateUDiv(thread_, i32(inner));
  team_ = work.items_fastest ? low : high;
  member_ = work.items_fastest ? high : low;
  rank_ = i32(0);
  share_ = member_;
  if (work.cluster > 1) {
    rank_ = b_.CreateURem(block, i32(work.cluster));
    block = b_.CreateUDiv(block, i32(work.cluster));
    share_ = b_.CreateAdd(b_.CreateMul(rank_, i32(work.team)), member_);
  }
  Value* any = any_item(block);
  open(work.items.space, team_, work.teams, block, std::nullopt);
  when(any, [&] { emit_items(); });
  // No block ends while another may read its memory.
  if (work.cluster > 1) dialect_.cluster_barrier(b_);
}

// Returns the bound of a range of `size` values, moved into 0 to `most` where it lies outside.
Value* Emitter::bound_value(const RangeBound& bound, int64_t size, int64_t most) {
  auto clamped = [&](Value* x, int64_t least, int64_t greatest) {
    x = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, x, i64(least));
    return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, x, i64(greatest));
  };
  // Numbers beyond these admit all values or none, as they do.
  const int64_t far = size + std::abs(bound.offset) + 2;
  Value* x = clamped(b_.CreateSExtOrTrunc(value(bound.node)[0], b_.getInt64Ty()), -far, far);
  x = b_.CreateAdd(b_.CreateMul(x, i64(bound.scale)), i64(bound.offset));
  return clamped(x, 0, most);
}

// A place outside of the range becomes one inside of it, where the masks of stores admit nothing.
void Emitter::open_fixed() {
  if (work_->fixed.empty()) return;
  llvm::SmallVector<Value*, 2> places;
  RangeSet own = 0;
  for (const FixedLoop& loop : work_->fixed) {
    const int64_t size = graph_.range(loop.range).size;
    Value* place = bound_value(loop.value, size, std::max<int64_t>(size, 1) - 1);
    const bool narrow = size < std::numeric_limits<int32_t>::max();
    places.push_back(narrow ? b_.CreateTrunc(place, b_.getInt32Ty()) : place);
    own |= bit(loop.range);
  }
  Frame& frame = push(own);
  frame.active.push_back(nullptr);
  for (size_t i = 0; i < places.size(); ++i)
    frame.digits[work_->fixed[i].range].push_back(places[i]);
}

void Emitter::find_limits() {
  limits_.clear();
  llvm::DenseMap<int, const Extent*> known;
  for (const Scope& scope : work_->nest.scopes) {
    if (scope.range < 0) continue;
    auto [found, is_new] = known.try_emplace(scope.range, &scope.extent);
    // Groups of folds may share a range that ends at different places.
    if (!is_new && found->second->high != scope.extent.high) found->second = nullptr;
    if (!found->second) limits_.erase(scope.range);
    if (!is_new || !found->second) continue;
    const int64_t size = graph_.range(scope.range).size;
    for (const RangeBound& bound : scope.extent.high) {
      Value* x = bound_value(bound, size, size);
      Value*& high = limits_[scope.range];
      high = high ? b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, high, x) : x;
    }
  }
}

Value* Emitter::needed_rounds(const Space& space, int64_t together) {
  if (space.ranges.empty()) return nullptr;
  Value* high = limits_.lookup(space.ranges.front());
  if (!high) return nullptr;
  // Steps per value of the outermost range, or values per step where there is no other one.
  Value* steps = high;
  if (space.ranges.size() == 1) {
    steps = b_.CreateSub(steps, i64(space.begin));
    steps = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, steps, i64(0));
    steps = b_.CreateUDiv(b_.CreateAdd(steps, i64(space.lanes - 1)), i64(space.lanes));
  } else {
    int64_t each = 1;
    for (size_t k = 1; k < space.ranges.size(); ++k) each *= graph_.range(space.ranges[k]).size;
    steps = b_.CreateMul(steps, i64((each + space.lanes - 1) / space.lanes));
  }
  steps = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, steps, i64(space.steps));
  Value* count = b_.CreateUDiv(b_.CreateAdd(steps, i64(together - 1)), i64(together));
  return b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, count, i64(1));
}

// A block's steps follow each other. Where all outer digits of the first and the last one are the
// same, the limited digit only grows between them.
Value* Emitter::any_item(Value* block) {
  const Space& space = work_->items.space;
  const int64_t together = int64_t{space.chunks} * work_->teams;
  Value* any = nullptr;
  int64_t inner = 1;
  for (size_t k = space.ranges.size(); k-- > 0;) {
    const bool last = k + 1 == space.ranges.size();
    const int64_t lanes = last ? space.lanes : 1;
    const int64_t count = graph_.range(space.ranges[k]).size / lanes;
    if (Value* high = limits_.lookup(space.ranges[k])) {
      Value* first = b_.CreateMul(b_.CreateZExt(block, b_.getInt64Ty()), i64(together));
      Value* end = b_.CreateAdd(first, i64(together - 1));
      end = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smin, end, i64(space.steps - 1));
      Value *from = b_.CreateUDiv(first, i64(inner)), *to = b_.CreateUDiv(end, i64(inner));
      Value* digit = b_.CreateMul(b_.CreateURem(from, i64(count)), i64(lanes));
      if (last && space.begin > 0) digit = b_.CreateAdd(digit, i64(space.begin));
      // Values that do not vary with the range are stored where it is 0.
      high = b_.CreateBinaryIntrinsic(llvm::Intrinsic::smax, high, i64(1));
      Value* some = b_.CreateICmpSLT(digit, high);
      if (k > 0)
        some = b_.CreateOr(
            some, b_.CreateICmpNE(b_.CreateUDiv(from, i64(count)), b_.CreateUDiv(to, i64(count))));
      any = both(any, some);
    }
    inner *= count;
  }
  return any;
}

void Emitter::emit_items() {
  if (work_->kept) open_kept();
  for (std::span<const int> groups = work_->items.groups; !groups.empty();) {
    size_t together = independent(groups);
    emit_groups(groups.first(together), true);
    groups = groups.subspan(together);
  }
  if (!work_->inner.empty()) emit_inner(0);
  if (work_->kept) {
    close();
    kept_open_ = false;
  }
  const std::vector<int>& stores = work_->items.stores;
  if (stores.empty()) return;
  if (work_->team * work_->cluster == 1) {
    emit_stores(stores, nullptr);
    return;
  }
  // A single thread stores; where all of them may have read what it replaces, it waits for them.
  bool in_place = std::ranges::any_of(stores, [&](int store) {
    for (int node = 0; node < graph_.size(); ++node) {
      if (graph_[node].op == Op::Load &&
          (graph_.slot(node) == graph_.slot(store) || graph_.aliased(graph_.slot(store))))
        return true;
    }
    return false;
  });
  if (in_place) {
    for (int store : stores) value(graph_.source(store, 2));
    if (work_->cluster > 1) {
      dialect_.cluster_barrier(b_);
    } else {
      dialect_.barrier(b_);
    }
  }
  emit_stores(stores, b_.CreateICmpEQ(share_, i32(0)));
}

// --- spaces --------------------------------------------------------------------------------------

Emitter::Frame& Emitter::push(RangeSet own) {
  RangeSet outer = frames_.empty() ? 0 : frames_.back().open;
  Frame& frame = frames_.emplace_back();
  frame.own = own;
  frame.open = outer | own;
  return frame;
}

// Steps (round * chunks + c) * threads + thread of `space`.
Emitter::Frame& Emitter::open(const Space& space, Value* thread, int threads, Value* round,
                              std::optional<Bounds> known) {
  RangeSet own = 0;
  for (int r : space.ranges) own |= bit(r);
  Frame& frame = push(own);
  frame.chunks = space.chunks;
  frame.lanes = space.lanes;
  if (space.lanes > 1) frame.lane_ranges = bit(space.ranges.back());
  int64_t together = int64_t{space.chunks} * threads;
  int64_t most = (space.steps + together) * space.lanes + space.begin;  // of a digit, too
  bool narrow = most < std::numeric_limits<int32_t>::max();
  unsigned width = narrow ? 32 : 64;
  auto number = [&](int64_t x) { return b_.getIntN(width, static_cast<uint64_t>(x)); };
  Value* base = whole_mul(b_.CreateZExtOrTrunc(round, b_.getIntNTy(width)), number(together));
  base = whole_add(base, b_.CreateZExtOrTrunc(thread, b_.getIntNTy(width)));
  for (int c = 0; c < space.chunks; ++c) {
    Value* step = whole_add(base, number(int64_t{c} * threads));
    Value* active = nullptr;
    std::optional<Bounds> steps;
    if (known)
      steps = {known->low * together + int64_t{c} * threads,
               known->high * together + int64_t{c + 1} * threads - 1};
    if (space.steps % together != 0 && (!steps || steps->high >= space.steps)) {
      active = b_.CreateICmpULT(step, number(space.steps));
      step = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, step, number(space.steps - 1));
      auto* certain = llvm::dyn_cast<llvm::ConstantInt>(active);
      if (certain && certain->isOne()) active = nullptr;
    }
    frame.active.push_back(active);
    if (steps) steps->high = std::min(steps->high, space.steps - 1);
    digits_of(frame, space, step, steps);
  }
  return frame;
}

void Emitter::digits_of(Frame& frame, const Space& space, Value* step,
                        std::optional<Bounds> known) {
  if (known && space.ranges.size() == 1)
    frame.bounds[space.ranges[0]].push_back(
        {known->low * space.lanes + space.begin, known->high * space.lanes + space.begin});
  for (size_t k = space.ranges.size(); k-- > 0;) {
    int range = space.ranges[k], lanes = k + 1 == space.ranges.size() ? space.lanes : 1;
    auto* count = llvm::ConstantInt::get(step->getType(),
                                         static_cast<uint64_t>(graph_.range(range).size / lanes));
    Value* digit = step;
    if (k > 0) {
      digit = b_.CreateURem(step, count);
      step = b_.CreateUDiv(step, count);
    }
    auto number = [&](int64_t x) {
      return llvm::ConstantInt::get(digit->getType(), static_cast<uint64_t>(x));
    };
    if (lanes > 1) digit = whole_mul(digit, number(lanes));
    if (space.begin > 0 && k + 1 == space.ranges.size())
      digit = whole_add(digit, number(space.begin));
    frame.digits[range].push_back(digit);
  }
}

// All sections at once: their ranges have the same values in a thread.
void Emitter::open_kept() {
  std::vector<const Space*> spaces;
  for (int group : work_->items.groups) {
    auto& levels = work_->folds[static_cast<size_t>(group)];
    if (!levels.empty()) spaces.push_back(&levels.front().space);
  }
  if (!work_->inner.empty()) spaces.push_back(&work_->inner.front().space);
  const Space& first = *spaces.front();
  Frame& frame = open(first, share_, work_->team * work_->cluster, i32(0), Bounds{0, 0});
  for (const Space* other : spaces) {
    for (size_t k = 0; k < first.ranges.size(); ++k) {
      frame.own |= bit(other->ranges[k]);
      Values digits = frame.digits[first.ranges[k]];
      frame.digits[other->ranges[k]] = digits;
      auto known = frame.bounds.lookup(first.ranges[k]);
      if (!known.empty()) frame.bounds[other->ranges[k]] = known;
    }
    if (frame.lanes > 1) frame.lane_ranges |= bit(other->ranges.back());
  }
  frame.open |= frame.own;
  kept_open_ = true;
}

void Emitter::rounds(int64_t count, Value* limit, Values& carried,
                     llvm::function_ref<void(Value*)> body) {
  if (count == 1) {
    body(i32(0));
    return;
  }
  llvm::Type* type =
      count < std::numeric_limits<int32_t>::max() ? b_.getInt32Ty() : b_.getInt64Ty();
  BasicBlock *from = b_.GetInsertBlock(), *head = block("loop"), *exit = block("end");
  llvm::Instruction* enter = b_.CreateBr(head);
  llvm::SmallVector<Frame*, 6> outside;
  for (Frame& frame : frames_) {
    if (!frame.before) {
      frame.before = enter;
      outside.push_back(&frame);
    }
  }
  b_.SetInsertPoint(head);
  PHINode* round = b_.CreatePHI(type, 2, "round");
  round->addIncoming(llvm::ConstantInt::get(type, 0), from);
  llvm::SmallVector<PHINode*, 8> phis;
  for (Value*& v : carried) {
    PHINode* phi = b_.CreatePHI(v->getType(), 2);
    phi->addIncoming(v, from);
    phis.push_back(phi);
    v = phi;
  }
  body(round);
  BasicBlock* last = b_.GetInsertBlock();
  Value* next = b_.CreateNUWAdd(round, llvm::ConstantInt::get(type, 1));
  round->addIncoming(next, last);
  for (size_t i = 0; i < phis.size(); ++i) phis[i]->addIncoming(carried[i], last);
  llvm::BranchInst* back = b_.CreateCondBr(
      b_.CreateICmpULT(next, limit ? b_.CreateTrunc(limit, type)
                                   : llvm::ConstantInt::get(type, static_cast<uint64_t>(count))),
      head, exit);
  // A round is not unrolled: it has all the loads in flight that there are registers for.
  llvm::LLVMContext& context = b_.getContext();
  auto* rolled =
      llvm::MDNode::get(context, llvm::MDString::get(context, "llvm.loop.unroll.disable"));
  llvm::MDNode* loop = llvm::MDNode::getDistinct(context, {nullptr, rolled});
  loop->replaceOperandWith(0, loop);
  back->setMetadata(llvm::LLVMContext::MD_loop, loop);
  b_.SetInsertPoint(exit);
  for (Frame* frame : outside) frame->before = nullptr;
}

void Emitter::when(Value* condition, llvm::function_ref<void()> body) {
  if (!condition) {
    body();
    return;
  }
  if (is_false(condition)) return;
  BasicBlock *then = block("then"), *next = block("on");
  b_.CreateCondBr(condition, then, next);
  b_.SetInsertPoint(then);
  body();
  b_.CreateBr(next);
  b_.SetInsertPoint(next);
}

void Emitter::in_section(const Section& section, bool shared, Values& carried,
                         llvm::function_ref<void(Value*)> body) {
  Value* thread = shared ? share_ : i32(0);
  int threads = shared ? work_->team * work_->cluster : 1;
  auto once = [&](Value* round, Bounds known) {
    open(section.space, thread, threads, round, known);
    for (int group : section.groups) emit_groups({&group, 1}, false);
    body(round);
    close();
  };
  // The last round by itself where it is not a whole one: the others then ask for nothing.
  int64_t count = section.space.rounds(threads);
  int64_t together = int64_t{section.space.chunks} * threads;
  Value* needed = needed_rounds(section.space, together);
  bool apart = shared && count > 1 && section.space.steps % together != 0 && !needed;
  int64_t whole = apart ? count - 1 : count;
  rounds(whole, needed, carried, [&](Value* round) { once(round, {0, whole - 1}); });
  if (apart) once(i32(count - 1), {count - 1, count - 1});
}

void Emitter::emit_inner(size_t level) {
  const Section& section = work_->inner[level];
  auto inside = [&] {
    if (level + 1 < work_->inner.size()) emit_inner(level + 1);
    emit_stores(section.stores, nullptr);
  };
  if (level == 0 && kept_open_) {
    for (int group : section.groups) emit_groups({&group, 1}, false);
    inside();
    return;
  }
  Values none;
  in_section(section, level == 0, none, [&](Value*) { inside(); });
}

}  // namespace tinyshard::codegen::gpu
