// What the threads of a block do together. Every thread takes part in every call, and partial
// results are combined in a fixed order: results have the same bits in all threads and runs.
#include <llvm/IR/IntrinsicsNVPTX.h>

#include "core/codegen/gpu/emit.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

namespace {

constexpr int kWarp = 32;
constexpr unsigned kShared = 3;  // address space

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

Value* Emitter::team_reduce(ReduceOp op, DType dtype, Value* x) {
  int team = work_->team, teams = work_->teams;
  if (team == 1) return cluster_reduce(op, dtype, x);
  // Within the warp, where neighbours of a team are `apart` threads from each other.
  bool rows = !work_->items_fastest;
  int apart = rows ? 1 : teams, together = std::max(1, std::min(team, kWarp / apart));
  x = warp_reduce(op, dtype, x, apart, together);
  int parts = team / together;
  if (parts == 1) return cluster_reduce(op, dtype, x);

  // One value of each part of the team through shared memory: those of a team lie `stride` apart.
  Value *first = team_, *part = b_.CreateUDiv(member_, i32(together)), *writes = nullptr;
  int stride = rows ? 1 : teams;
  if (rows) first = b_.CreateMul(team_, i32(parts));
  auto slot = [&](Value* of) { return b_.CreateAdd(first, b_.CreateMul(of, i32(stride))); };
  Value* inside = b_.CreateURem(member_, i32(together));  // which thread of its part
  if (together > 1) writes = b_.CreateICmpEQ(inside, i32(0));
  Value* word = to_word(b_, x);
  llvm::Type* type = word->getType();
  int64_t bytes = type->getScalarSizeInBits() / 8;
  Value* memory = shared(static_cast<size_t>(reductions_++ % 2), bytes * parts * teams);
  Value* own = slot(part);
  when(writes, [&] { b_.CreateStore(word, b_.CreateGEP(type, memory, own)); });
  barrier();
  // The threads of each part read what all parts wrote, each a share of it.
  int readers = std::min(together, parts);
  Value *reader = b_.CreateURem(inside, i32(readers)), *result = nullptr;
  for (int k = 0; k < parts; k += readers) {
    Value* at = slot(b_.CreateAdd(reader, i32(k)));
    Value* y = from_word(b_, b_.CreateLoad(type, b_.CreateGEP(type, memory, at)), x->getType());
    result = result ? arith_.combine(op, dtype, result, y) : y;
  }
  return cluster_reduce(op, dtype, warp_reduce(op, dtype, result, apart, readers));
}

// x of the same team of all blocks of the cluster.
Value* Emitter::cluster_reduce(ReduceOp op, DType dtype, Value* x) {
  if (work_->cluster == 1) return x;
  Value* word = to_word(b_, x);
  llvm::Type* type = word->getType();
  int64_t bytes = type->getScalarSizeInBits() / 8;
  Value* memory = shared(2 + static_cast<size_t>(exchanges_++ % 2), bytes * work_->teams);
  Value* own = b_.CreateGEP(type, memory, team_);
  when(b_.CreateICmpEQ(member_, i32(0)), [&] { b_.CreateStore(word, own); });
  cluster_barrier();
  Value *generic = b_.CreateAddrSpaceCast(own, b_.getPtrTy()), *result = nullptr;
  for (int rank = 0; rank < work_->cluster; ++rank) {
    Value* there = b_.CreateIntrinsic(llvm::Intrinsic::nvvm_mapa, {}, {generic, i32(rank)});
    Value* y = from_word(b_, b_.CreateLoad(type, there), x->getType());
    result = result ? arith_.combine(op, dtype, result, y) : y;
  }
  return result;
}

}  // namespace tinyshard::codegen::gpu
