// Entries of kernels that are emitted by hand.
#include "core/codegen/gpu/entry.h"

#include <vector>

#include "core/codegen/backend.h"
#include "core/codegen/gpu/backend.h"

namespace tinyshard::codegen::gpu {

llvm::Function* begin_entry(llvm::IRBuilder<>& b, llvm::Module& module, const GpuDialect& dialect,
                            const std::string& name, unsigned pointers, unsigned numbers,
                            int threads) {
  std::vector<llvm::Type*> types(pointers, b.getPtrTy(dialect.words().global_space));
  types.insert(types.end(), numbers, b.getInt64Ty());
  llvm::Function* function =
      llvm::Function::Create(llvm::FunctionType::get(b.getVoidTy(), types, false),
                             llvm::Function::ExternalLinkage, name, module);
  function->addFnAttr(llvm::Attribute::NoUnwind);
  dialect.make_entry(*function, threads, 0);
  b.SetInsertPoint(llvm::BasicBlock::Create(b.getContext(), "entry", function));
  return function;
}

ObjectCode built(const std::string& entry, int threads, int64_t blocks, int numbers,
                 const Target& target, const std::function<void(llvm::Module&)>& fill) {
  ObjectCode code;
  code.entry = entry;
  code.block = threads;
  code.work_items = blocks;
  code.coordinates = numbers;
  if (blocks == 0) return code;
  PhaseTimes times;
  code.bytes = build_module(target, entry.c_str(), 1, times, fill);
  return code;
}

}  // namespace tinyshard::codegen::gpu
