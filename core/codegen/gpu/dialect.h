// A dialect holds the names that LLVM has for one maker's GPUs: intrinsics, address spaces, the width
// of a warp. The emitter, the arithmetic and the planner ask a dialect and name none.
// A further maker is one file with a subclass, and one row of dialect.cpp.
//
//   dialect.barrier(b)              NVIDIA: call void @llvm.nvvm.barrier0()
//   dialect.exchanged(b, x, 4)      NVIDIA: call i32 @llvm.nvvm.shfl.sync.bfly.i32(-1, x, 4, 31)
//
// Internal to core/codegen; includes LLVM.
#pragma once
#include <string>

#include <llvm/IR/IRBuilder.h>

#include "core/dtype/dtype.h"
#include "core/runtime/target.h"

namespace tinyshard::codegen {

class GpuDialect {
 public:
  using Builder = llvm::IRBuilder<>;
  using Value = llvm::Value;

  // Returns the dialect of the target's triple; null where there is none: the target is a CPU.
  static const GpuDialect* of(const Target& target);

  virtual ~GpuDialect() = default;
  GpuDialect(const GpuDialect&) = delete;
  GpuDialect& operator=(const GpuDialect&) = delete;

  // Words of the tables: what lies where, and how many threads run in step.
  struct Words {
    const char* triple;  // what a target's begins with
    const char* form;    // of the code, for listings
    unsigned global_space, shared_space;
    int warp;
  };
  const Words& words() const { return words_; }

  // Once in a process, before LLVM is asked for the target.
  virtual void initialise() const = 0;
  // Makes what LLVM wrote fit for the driver: blocks of a cluster may still have to be said.
  virtual std::string finished(std::string code, int cluster) const = 0;

  // Makes a function an entry of `block` threads. `resident`: so many blocks shall fit one
  // multiprocessor; 0 leaves that to the driver.
  virtual void make_entry(llvm::Function& function, int block, int resident) const = 0;
  virtual llvm::CallInst* thread_in_block(Builder& b) const = 0;  // i32
  virtual llvm::CallInst* block_in_grid(Builder& b) const = 0;    // i32
  // Lets a kernel begin before those that it depends on have ended, and wait here until they have.
  // False, and no code, where the GPU cannot.
  virtual bool wait_for_others(Builder& b, const Target& target) const = 0;

  virtual void barrier(Builder& b) const = 0;  // of the block's threads
  // The i32 of the thread of this warp whose number differs by the bit `distance`.
  virtual Value* exchanged(Builder& b, Value* word, int distance) const = 0;
  // Only targets with clusters have these: a barrier of all threads of a cluster, and an address
  // that block `rank` of the cluster has under `address`, which is generic.
  virtual void cluster_barrier(Builder& b) const = 0;
  virtual Value* of_block(Builder& b, Value* address, Value* rank) const = 0;

  // Two f32, each rounded to the 16 bits of `dtype`, in one word. A NaN becomes the GPU's own.
  virtual Value* pair(Builder& b, DType dtype, Value* low, Value* high) const = 0;
  // Both take f32: 2^x with a relative error of 2^-22 at most, subnormal results and special values
  // included; a / b to two ulps, without a rare branch.
  virtual Value* exp2(Builder& b, Value* x) const = 0;
  virtual Value* quotient(Builder& b, Value* x, Value* by) const = 0;

 protected:
  explicit GpuDialect(const Words& words) : words_(words) {}

 private:
  Words words_;
};

const GpuDialect& nvptx_dialect();

}  // namespace tinyshard::codegen
