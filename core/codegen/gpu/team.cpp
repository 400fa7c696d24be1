// The threads of a block do this together. Every thread takes part in every call, and partial
// results are combined in a fixed order: results have the same bits in all threads and runs.
#include "core/codegen/gpu/gpu_emit.h"

namespace tinyshard::codegen::gpu {

using llvm::BasicBlock;
using llvm::Value;

namespace {

constexpr size_t kBatchBytes = 8192;  // of shared memory, for one batch of results

// Values travel between threads as whole words.
llvm::Type* word_type(llvm::IRBuilder<>& b, llvm::Type* type) {
  return b.getIntNTy(std::max(32u, type->getScalarSizeInBits()));
}

Value* to_word(llvm::IRBuilder<>& b, Value* x) {
  llvm::Type* word = word_type(b, x->getType());
  return x->getType()->getScalarSizeInBits() < 32 ? b.CreateZExt(x, word)
                                                  : b.CreateBitCast(x, word);
}

Value* from_word(llvm::IRBuilder<>& b, Value* word, llvm::Type* type) {
  unsigned bits = type->getScalarSizeInBits();
  if (bits < 32) return b.CreateTrunc(word, type);
  return b.CreateBitCast(word, type);
}

}  // namespace

Value* Emitter::shared(size_t which, int64_t bytes) {
  llvm::GlobalVariable*& memory = shared_[which];
  if (!memory) {
    memory =
        new llvm::GlobalVariable(module_, b_.getInt8Ty(), false, llvm::GlobalValue::InternalLinkage,
                                 llvm::UndefValue::get(b_.getInt8Ty()), "sizing", nullptr,
                                 llvm::GlobalValue::NotThreadLocal, dialect_.words().shared_space);
  }
  shared_bytes_[which] = std::max(shared_bytes_[which], bytes);
  return memory;
}

void Emitter::size_shared() {
  for (size_t which = 0; which < std::size(shared_); ++which) {
    if (!shared_[which]) continue;
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), static_cast<uint64_t>(shared_bytes_[which]));
    auto* memory = new llvm::GlobalVariable(
        module_, type, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type),
        "shared" + std::to_string(which), nullptr, llvm::GlobalValue::NotThreadLocal,
        dialect_.words().shared_space);
    memory->setAlignment(llvm::Align(16));
    shared_[which]->replaceAllUsesWith(memory);
    shared_[which]->eraseFromParent();
    shared_[which] = memory;
  }
}

// x of the thread whose number in the warp differs by the bit `distance`.
Value* Emitter::shuffle(Value* x, int distance) {
  auto exchange = [&](Value* word) { return dialect_.exchanged(b_, target_, word, distance); };
  Value* word = to_word(b_, x);
  if (word->getType()->getScalarSizeInBits() == 32)
    return from_word(b_, exchange(word), x->getType());
  Value* low = exchange(b_.CreateTrunc(word, b_.getInt32Ty()));
  Value* high = exchange(b_.CreateTrunc(b_.CreateLShr(word, 32), b_.getInt32Ty()));
  word = b_.CreateOr(b_.CreateShl(b_.CreateZExt(high, b_.getInt64Ty()), 32),
                     b_.CreateZExt(low, b_.getInt64Ty()));
  return from_word(b_, word, x->getType());
}

// Over `count` threads of the warp that are `apart` from each other; all of them get the result.
Value* Emitter::warp_reduce(ReduceOp op, DType dtype, Value* x, int apart, int count) {
  for (int distance = apart; distance < apart * count; distance *= 2)
    x = arith_.combine(op, dtype, x, shuffle(x, distance));
  return x;
}

// Batches, so that many results need few barriers and yet little shared memory.
void Emitter::team_reduce(llvm::MutableArrayRef<Partial> partials, bool first_only) {
  if (work_->team * work_->cluster == 1) return;
  const int warp = dialect_.warp(target_);
  size_t most =
      std::max<size_t>(1, kBatchBytes / (8 * static_cast<size_t>(plan_.block / warp) *
                                         static_cast<size_t>(std::min(work_->teams, warp))));
  for (; !partials.empty(); partials = partials.drop_front(std::min(most, partials.size())))
    reduce_batch(partials.take_front(std::min(most, partials.size())), first_only);
}

// A word of each partial for each of `slots`, this thread's at `slot` if it writes at all (null: it
// does). Where the words of each partial begin.
Emitter::Values Emitter::write_partials(llvm::ArrayRef<Partial> partials, size_t which, Value* slot,
                                        int slots, Value* writes) {
  int64_t bytes = 0;
  Values words, places;
  for (const Partial& p : partials) {
    words.push_back(to_word(b_, p.value));
    int64_t size = words.back()->getType()->getScalarSizeInBits() / 8;
    bytes = (bytes + size - 1) / size * size;
    places.push_back(b_.CreateConstGEP1_32(b_.getInt8Ty(), shared(which, bytes + size * slots),
                                           static_cast<unsigned>(bytes)));
    bytes += size * slots;
  }
  when(writes, [&] {
    for (size_t i = 0; i < partials.size(); ++i)
      b_.CreateStore(words[i], b_.CreateGEP(words[i]->getType(), places[i], slot));
  });
  return places;
}

// Replaces the partials of the threads that read (null: all of them) by what `parts` have in
// memory, `at(i, word, part)` for partial i: each neighbour reads a share.
void Emitter::read_partials(llvm::MutableArrayRef<Partial> partials, const Neighbours& near,
                            int parts, Value* reads,
                            llvm::function_ref<Value*(size_t, llvm::Type*, Value*)> at) {
  int readers = std::min(near.together, parts);
  Value* reader = b_.CreateURem(near.inside, i32(readers));
  Values results;
  BasicBlock *others = b_.GetInsertBlock(), *done = nullptr;
  when(reads, [&] {
    for (size_t i = 0; i < partials.size(); ++i) {
      const Partial& p = partials[i];
      llvm::Type *type = p.value->getType(), *word = word_type(b_, type);
      Value* result = nullptr;
      for (int k = 0; k < parts; k += readers) {
        Value* there = at(i, word, b_.CreateAdd(reader, i32(k)));
        Value* y = from_word(b_, b_.CreateLoad(word, there), type);
        result = result ? arith_.combine(p.op, p.dtype, result, y) : y;
      }
      results.push_back(warp_reduce(p.op, p.dtype, result, near.apart, readers));
    }
    done = b_.GetInsertBlock();
  });
  for (size_t i = 0; i < partials.size(); ++i) {
    Value*& value = partials[i].value;
    if (reads) {
      llvm::PHINode* either = b_.CreatePHI(value->getType(), 2);
      either->addIncoming(results[i], done);
      either->addIncoming(value, others);
      value = either;
    } else {
      value = results[i];
    }
  }
}

// Within the warp, then between the parts of the team that lie in different warps, then between the
// blocks of the cluster. With `first_only` the threads of the first part alone read what the others
// wrote: a part is of one warp, or as wide as all of them.
void Emitter::reduce_batch(llvm::MutableArrayRef<Partial> partials, bool first_only) {
  int team = work_->team, teams = work_->teams;
  bool rows = !work_->items_fastest;
  Neighbours near;
  near.apart = rows ? 1 : teams;
  near.together = std::max(1, std::min(team, dialect_.warp(target_) / near.apart));
  for (Partial& p : partials)
    p.value = warp_reduce(p.op, p.dtype, p.value, near.apart, near.together);
  near.inside = b_.CreateURem(member_, i32(near.together));
  Value* in_first = first_only ? b_.CreateICmpULT(member_, i32(near.together)) : nullptr;

  if (int parts = team / near.together; parts > 1) {
    int stride = rows ? 1 : teams;  // between the slots of a team
    Value* first = rows ? b_.CreateMul(team_, i32(parts)) : team_;
    auto slot = [&](Value* part) { return b_.CreateAdd(first, b_.CreateMul(part, i32(stride))); };
    Value* writes = near.together > 1 ? b_.CreateICmpEQ(near.inside, i32(0)) : nullptr;
    Values places =
        write_partials(partials, static_cast<size_t>(reductions_++ % 2),
                       slot(b_.CreateUDiv(member_, i32(near.together))), parts * teams, writes);
    dialect_.barrier(b_);
    read_partials(partials, near, parts, in_first, [&](size_t i, llvm::Type* word, Value* part) {
      return b_.CreateGEP(word, places[i], slot(part));
    });
  }
  if (work_->cluster > 1) {
    Value* writes = b_.CreateICmpEQ(member_, i32(0));
    Value* reads = first_only ? both(in_first, b_.CreateICmpEQ(rank_, i32(0))) : nullptr;
    Values places =
        write_partials(partials, 2 + static_cast<size_t>(exchanges_++ % 2), team_, teams, writes);
    dialect_.cluster_barrier(b_);
    auto of_rank = [&](size_t i, llvm::Type* word, Value* rank) -> Value* {
      Value* own = b_.CreateAddrSpaceCast(b_.CreateGEP(word, places[i], team_), b_.getPtrTy());
      return dialect_.of_block(b_, own, rank);
    };
    read_partials(partials, near, work_->cluster, reads, of_rank);
  }
}

}  // namespace tinyshard::codegen::gpu
