// What the threads of a block do together. Every thread takes part in every call, and partial
// results are combined in a fixed order: results have the same bits in all threads and runs.
#include <llvm/IR/IntrinsicsNVPTX.h>

#include "core/codegen/gpu/emit.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

namespace {

constexpr int kWarp = 32;
constexpr size_t kBatchBytes = 8192;  // of shared memory, for one batch of results
constexpr unsigned kShared = 3;       // address space

// Values travel between threads as whole words.
Value* to_word(llvm::IRBuilder<>& b, Value* x) {
  unsigned bits = x->getType()->getScalarSizeInBits();
  if (bits < 32) return b.CreateZExt(x, b.getInt32Ty());
  return b.CreateBitCast(x, b.getIntNTy(bits));
}

Value* from_word(llvm::IRBuilder<>& b, Value* word, llvm::Type* type) {
  unsigned bits = type->getScalarSizeInBits();
  if (bits < 32) return b.CreateTrunc(word, type);
  return b.CreateBitCast(word, type);
}

}  // namespace

void Emitter::barrier() { b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {}); }

void Emitter::cluster_barrier() {
  b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier_cluster_arrive_aligned, {}, {});
  b_.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier_cluster_wait_aligned, {}, {});
}

Value* Emitter::shared(size_t which, int64_t bytes) {
  llvm::GlobalVariable*& memory = shared_[which];
  if (!memory) {
    memory =
        new llvm::GlobalVariable(module_, b_.getInt8Ty(), false, llvm::GlobalValue::InternalLinkage,
                                 llvm::UndefValue::get(b_.getInt8Ty()), "sizing", nullptr,
                                 llvm::GlobalValue::NotThreadLocal, kShared);
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
        "shared" + std::to_string(which), nullptr, llvm::GlobalValue::NotThreadLocal, kShared);
    memory->setAlignment(llvm::Align(16));
    shared_[which]->replaceAllUsesWith(memory);
    shared_[which]->eraseFromParent();
    shared_[which] = memory;
  }
}

// x of the thread whose number in the warp differs by the bit `distance`.
Value* Emitter::shuffle(Value* x, int distance) {
  auto exchange = [&](Value* word) -> Value* {
    return b_.CreateIntrinsic(llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
                              {i32(-1), word, i32(distance), i32(kWarp - 1)});
  };
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
  size_t most =
      std::max<size_t>(1, kBatchBytes / (8 * static_cast<size_t>(plan_.block / kWarp) *
                                         static_cast<size_t>(std::min(work_->teams, kWarp))));
  for (; !partials.empty(); partials = partials.drop_front(std::min(most, partials.size())))
    reduce_batch(partials.take_front(std::min(most, partials.size())), first_only);
}

void Emitter::reduce_batch(llvm::MutableArrayRef<Partial> partials, bool first_only) {
  int team = work_->team, teams = work_->teams;
  // Within the warp, where neighbours of a team are `apart` threads from each other.
  bool rows = !work_->items_fastest;
  int apart = rows ? 1 : teams, together = std::max(1, std::min(team, kWarp / apart));
  for (Partial& p : partials) p.value = warp_reduce(p.op, p.dtype, p.value, apart, together);
  Value* inside = b_.CreateURem(member_, i32(together));  // which thread of its part

  // The parts of a team write a value each. Then the threads of each part, or of the first alone,
  // read them all, each thread a share of them. A part is of one warp, or as wide as all of them.
  Value* in_first = first_only ? b_.CreateICmpULT(member_, i32(together)) : nullptr;
  auto exchange = [&](int parts, Value* writes, Value* reads, size_t which,
                      llvm::function_ref<void()> wait, Value* slot, int slots,
                      llvm::function_ref<Value*(Value*, llvm::Type*, Value*)> theirs) {
    int64_t bytes = 0;
    llvm::SmallVector<Value*, 8> words, places;
    for (Partial& p : partials) {
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
    wait();
    int readers = std::min(together, parts);
    Value* reader = b_.CreateURem(inside, i32(readers));
    llvm::SmallVector<Value*, 8> results;
    llvm::BasicBlock *others = b_.GetInsertBlock(), *done = nullptr;
    when(reads, [&] {
      for (size_t i = 0; i < partials.size(); ++i) {
        const Partial& p = partials[i];
        llvm::Type *type = p.value->getType(), *word = words[i]->getType();
        Value* result = nullptr;
        for (int k = 0; k < parts; k += readers) {
          Value* at = theirs(places[i], word, b_.CreateAdd(reader, i32(k)));
          Value* y = from_word(b_, b_.CreateLoad(word, at), type);
          result = result ? arith_.combine(p.op, p.dtype, result, y) : y;
        }
        results.push_back(warp_reduce(p.op, p.dtype, result, apart, readers));
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
  };

  if (int parts = team / together; parts > 1) {
    int stride = rows ? 1 : teams;  // between the slots of a team
    Value* first = rows ? b_.CreateMul(team_, i32(parts)) : team_;
    auto slot = [&](Value* part) { return b_.CreateAdd(first, b_.CreateMul(part, i32(stride))); };
    exchange(
        parts, together > 1 ? b_.CreateICmpEQ(inside, i32(0)) : nullptr, in_first,
        static_cast<size_t>(reductions_++ % 2), [&] { barrier(); },
        slot(b_.CreateUDiv(member_, i32(together))), parts * teams,
        [&](Value* base, llvm::Type* word, Value* part) {
          return b_.CreateGEP(word, base, slot(part));
        });
  }
  if (work_->cluster > 1) {  // the same between the blocks of the cluster
    exchange(
        work_->cluster, b_.CreateICmpEQ(member_, i32(0)),
        first_only ? both(in_first, b_.CreateICmpEQ(rank_, i32(0))) : nullptr,
        2 + static_cast<size_t>(exchanges_++ % 2), [&] { cluster_barrier(); }, team_, teams,
        [&](Value* base, llvm::Type* word, Value* rank) -> Value* {
          Value* own = b_.CreateAddrSpaceCast(b_.CreateGEP(word, base, team_), b_.getPtrTy());
          return b_.CreateIntrinsic(llvm::Intrinsic::nvvm_mapa, {}, {own, rank});
        });
  }
}

}  // namespace tinyshard::codegen::gpu
