// Checks of memory accesses in the generated code, for TS_CHECK=memory (AddressSanitizer does not
// see this code). They look at the addresses that are used, not at the index expressions, so that
// what vectors, tails, spans and guards make of an index is checked, too. There are no branches in
// the kernel itself: the builder may stand in the middle of a block.
//
//   x = load <8 x float>, p1 + 4 * i                      becomes
//   at = i + <0..7>;  bad = at >= numel (unsigned);  any = or of bad
//   call note(fault, any, slot, largest of at where bad, numel, 0)
//   x = load <8 x float>, any ? zeros : p1 + 4 * i
#include <bit>
#include <cstddef>

#include "core/base/error.h"
#include "core/codegen/emit.h"
#include "core/runtime/image.h"

namespace tinyshard::codegen {

using llvm::Value;

// Takes the fault from behind the buffers, and makes the function that fills it:
//   void note(fault, any, param, element, numel, stores) { if (any && the first) *fault = ... }
void Emitter::begin_checks(Value* buffers) {
  llvm::Type *pointer = b_.getPtrTy(), *i64_type = b_.getInt64Ty();
  fault_ = b_.CreateAlignedLoad(
      pointer,
      b_.CreateConstInBoundsGEP1_64(pointer, buffers, static_cast<uint64_t>(graph_.params())),
      llvm::Align(8));
  auto* type = llvm::FunctionType::get(
      b_.getVoidTy(), {pointer, b_.getInt1Ty(), i64_type, i64_type, i64_type, i64_type}, false);
  note_ = llvm::Function::Create(type, llvm::Function::InternalLinkage, "note", module_);
  note_->addFnAttr(llvm::Attribute::NoUnwind);
  note_->addFnAttr(llvm::Attribute::NoInline);
  llvm::IRBuilder<>::InsertPointGuard guard(b_);
  const auto block = [&](const char* name) {
    return llvm::BasicBlock::Create(b_.getContext(), name, note_);
  };
  auto *entry = block("entry"), *found = block("found"), *fill = block("fill"),
       *done = block("done");
  const auto field = [&](size_t offset) {
    return b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), note_->getArg(0), offset);
  };
  b_.SetInsertPoint(entry);
  b_.CreateCondBr(note_->getArg(1), found, done);
  b_.SetInsertPoint(found);  // several threads may be here
  auto* first = b_.CreateAtomicCmpXchg(field(offsetof(AccessFault, found)), i64(0), i64(1),
                                       llvm::MaybeAlign(8), llvm::AtomicOrdering::Monotonic,
                                       llvm::AtomicOrdering::Monotonic);
  b_.CreateCondBr(b_.CreateExtractValue(first, 1), fill, done);
  b_.SetInsertPoint(fill);
  const size_t fields[] = {offsetof(AccessFault, param), offsetof(AccessFault, element),
                           offsetof(AccessFault, numel), offsetof(AccessFault, stores)};
  for (unsigned i = 0; i < std::size(fields); ++i)
    b_.CreateAlignedStore(note_->getArg(2 + i), field(fields[i]), llvm::Align(8));
  b_.CreateBr(done);
  b_.SetInsertPoint(done);
  b_.CreateRetVoid();
}

Value* Emitter::checked(int access, Value* address, int elements, Value* mask) {
  if (!fault_) return address;
  const int slot = graph_.slot(access);
  const ParamInfo& info = graph_.param(slot);
  const bool store = graph_[access].op == Op::Store;
  auto* addresses = llvm::dyn_cast<llvm::FixedVectorType>(address->getType());
  const int lanes = addresses ? static_cast<int>(addresses->getNumElements()) : elements;
  Value* base = b_.CreatePtrToInt(param(slot), b_.getInt64Ty());
  if (addresses) base = arith_.splat(base, lanes);
  Value* at = b_.CreateSub(b_.CreatePtrToInt(address, base->getType()), base);
  at = b_.CreateAShr(at, static_cast<uint64_t>(std::countr_zero(itemsize(info.dtype))));
  if (!addresses && lanes > 1)
    at = b_.CreateAdd(arith_.splat(at, lanes), arith_.ramp(b_.getInt64Ty(), lanes, 1));
  Value* bad = b_.CreateICmpUGE(
      at, llvm::ConstantInt::get(at->getType(), static_cast<uint64_t>(info.numel)));
  if (mask) bad = b_.CreateAnd(bad, arith_.splat(mask, lanes));
  Value *any = bad, *element = at;
  if (at->getType()->isVectorTy()) {
    any = b_.CreateOrReduce(bad);
    element = b_.CreateIntMaxReduce(
        b_.CreateSelect(bad, at, llvm::Constant::getNullValue(at->getType())), false);
  }
  b_.CreateCall(note_, {fault_, any, i64(slot), element, i64(info.numel), i64(store ? 1 : 0)});
  Value* elsewhere = store ? b_.CreateConstInBoundsGEP1_64(b_.getInt8Ty(), fault_,
                                                           offsetof(AccessFault, elsewhere))
                           : zeros();
  if (addresses) return b_.CreateSelect(bad, b_.CreateVectorSplat(lanes, elsewhere), address);
  return b_.CreateSelect(any, elsewhere, address);
}

}  // namespace tinyshard::codegen
