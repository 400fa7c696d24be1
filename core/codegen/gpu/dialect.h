// A dialect holds the names that LLVM has for one maker's GPUs: intrinsics, address spaces, the width
// of a warp. The emitter, the arithmetic and the planner ask a dialect and name none.
// A further maker is one file with a subclass, and one row of dialect.cpp.
//
//   dialect.barrier(b)                 NVIDIA: call void @llvm.nvvm.barrier0()
//   dialect.exchanged(b, target, x, 4) NVIDIA: call i32 @llvm.nvvm.shfl.sync.bfly.i32(-1, x, 4, 31)
//                                      AMD: call i32 @llvm.amdgcn.ds.swizzle(x, xor of 4)
//
// Internal to core/codegen; includes LLVM.
#pragma once
#include <vector>

#include <llvm/ADT/StringRef.h>
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

  // Words of the tables: what lies where.
  struct Words {
    const char* triple;  // what a target's begins with
    const char* form;    // of the code, for listings
    bool objects;        // LLVM's code is an object file; else text
    unsigned global_space, shared_space;
    unsigned table_space;  // of constants that the code reads by an index
  };
  const Words& words() const { return words_; }

  // Once in a process, before LLVM is asked for the target.
  virtual void initialise() const = 0;
  // Before the passes run on a module in which all functions are.
  virtual void prepare(llvm::Module& module, const Target& target) const = 0;
  // Makes what LLVM wrote fit for the driver: links an object, or says the blocks of a cluster.
  virtual std::vector<char> finished(llvm::StringRef code, int cluster) const = 0;

  // How many threads run in step, and exchange words.
  virtual int warp(const Target& target) const = 0;
  // Blocks may form clusters that share their memory.
  virtual bool has_clusters(const Target& target) const = 0;

  // Makes a function an entry of `block` threads. `resident`: so many blocks shall fit one
  // multiprocessor; 0 leaves that to the driver.
  virtual void make_entry(llvm::Function& function, int block, int resident) const = 0;
  virtual llvm::CallInst* thread_in_block(Builder& b) const = 0;  // i32
  virtual llvm::CallInst* block_in_grid(Builder& b) const = 0;    // i32
  // Lets a kernel begin before those that it depends on have ended, and wait here until they have.
  // False, and no code, where the GPU cannot.
  virtual bool wait_for_others(Builder& b, const Target& target) const = 0;

  virtual void barrier(Builder& b) const = 0;       // of the block's threads
  virtual void warp_barrier(Builder& b) const = 0;  // of the warp's: they see each other's words
  // The i32 of the thread of this warp whose number differs by the bit `distance`.
  virtual Value* exchanged(Builder& b, const Target& target, Value* word, int distance) const = 0;
  // This thread's number in its warp; the threads of the warp for which `bit` holds, a bit of an i64
  // each; the i32 that thread `lane` has, a number that all threads of the warp agree on. Threads that
  // have left or are elsewhere do not count.
  virtual Value* lane(Builder& b) const = 0;
  virtual Value* ballot(Builder& b, const Target& target, Value* bit) const = 0;
  virtual Value* of_lane(Builder& b, Value* word, Value* lane) const = 0;
  // Only targets with clusters have these: a barrier of all threads of a cluster, and an address
  // that block `rank` of the cluster has under `address`, which is generic.
  virtual void cluster_barrier(Builder& b) const = 0;
  virtual Value* of_block(Builder& b, Value* address, Value* rank) const = 0;

  // Two f32, each rounded to the 16 bits of `dtype`, in one word. A NaN becomes the GPU's own.
  virtual Value* pair(Builder& b, DType dtype, Value* low, Value* high) const = 0;
  // Both take f32: 2^x with a relative error of 2^-22 at most, subnormal results and special values
  // included; a / b to as many ulps as Target::division_ulps says, without a rare branch.
  virtual Value* exp2(Builder& b, Value* x) const = 0;
  virtual Value* quotient(Builder& b, Value* x, Value* by) const = 0;

 protected:
  explicit GpuDialect(const Words& words) : words_(words) {}

 private:
  Words words_;
};

const GpuDialect& nvptx_dialect();
const GpuDialect& amdgpu_dialect();

}  // namespace tinyshard::codegen
