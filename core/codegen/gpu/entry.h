// The frame of kernels that are emitted by hand: sorts and scatters.
//
// Internal to core/codegen; includes LLVM.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/gpu/dialect.h"
#include "core/runtime/target.h"

namespace tinyshard::codegen::gpu {

// Adds an entry that takes so many pointers to memory and then so many 64-bit integers, and leaves the
// builder in its first block. `threads`: of a block.
llvm::Function* begin_entry(llvm::IRBuilder<>& b, llvm::Module& module, const GpuDialect& dialect,
                            const std::string& name, unsigned pointers, unsigned numbers,
                            int threads);

// The code of an entry that `fill` adds to a module, and how it is launched; no code where no blocks are.
ObjectCode built(const std::string& entry, int threads, int64_t blocks, int numbers,
                 const Target& target, const std::function<void(llvm::Module&)>& fill);

}  // namespace tinyshard::codegen::gpu
