// AMD's GPUs: LLVM writes an object, of which a code object is linked (code_object.h). GPUs of the
// families gfx9 (GCN, CDNA) have warps of 64 threads, later ones (RDNA) of 32.
//
// Words of other threads come by the cheapest way that reaches as far as their distance:
//
//   1, 2      within groups of four lanes: the second operand of an instruction may be permuted (DPP)
//   up to 8   within rows of sixteen: DPP of RDNA
//   up to 16  within 32: ds_swizzle
//   32        ds_bpermute, which takes the number of a lane
#include <mutex>

#include <llvm/IR/IntrinsicsAMDGPU.h>
#include <llvm/IR/Module.h>

#include "core/base/error.h"
#include "core/codegen/gpu/code_object.h"
#include "core/codegen/gpu/dialect.h"

extern "C" {
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTarget();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUAsmPrinter();
}

namespace tinyshard::codegen {
namespace {

bool is_gfx9(const Target& target) { return target.cpu.starts_with("gfx9"); }

// LLVM reads all arguments where a kernel begins. Those of a kernel of many works would find no registers:
// they are read where a work needs them.
void read_late(llvm::Function& kernel) {
  constexpr unsigned kMost = 32, kBytes = 8;  // of arguments that find registers; of each
  if (kernel.arg_size() <= kMost) return;
  llvm::IRBuilder<> b(&kernel.getEntryBlock(), kernel.getEntryBlock().begin());
  llvm::Value* all = b.CreateIntrinsic(llvm::Intrinsic::amdgcn_kernarg_segment_ptr, {}, {});
  all->setName("arguments");
  for (llvm::Argument& argument : kernel.args()) {
    llvm::DenseMap<llvm::BasicBlock*, llvm::Value*> read;  // at the beginning of each user's block
    for (llvm::Use& use : llvm::make_early_inc_range(argument.uses())) {
      auto* user = llvm::cast<llvm::Instruction>(use.getUser());
      auto* phi = llvm::dyn_cast<llvm::PHINode>(user);
      llvm::BasicBlock* block = phi ? phi->getIncomingBlock(use) : user->getParent();
      llvm::Value*& value = read[block];
      if (!value) {
        const bool first = block == &kernel.getEntryBlock();
        b.SetInsertPoint(block, first ? std::next(block->begin()) : block->getFirstInsertionPt());
        llvm::Value* place = b.CreateConstGEP1_32(b.getInt8Ty(), all, kBytes * argument.getArgNo());
        llvm::LoadInst* load = b.CreateAlignedLoad(argument.getType(), place, llvm::Align(kBytes));
        load->setMetadata(llvm::LLVMContext::MD_invariant_load,
                          llvm::MDNode::get(b.getContext(), {}));
        value = load;
      }
      use.set(value);
    }
  }
}

class AmdgpuDialect final : public GpuDialect {
 public:
  AmdgpuDialect()
      : GpuDialect({.triple = "amdgcn",
                    .form = "AMDGCN assembly",
                    .objects = true,
                    .global_space = 1,
                    .shared_space = 3,
                    .table_space = 4}) {}

  void initialise() const override {
    static std::once_flag once;
    std::call_once(once, [] {
      LLVMInitializeAMDGPUTargetInfo();
      LLVMInitializeAMDGPUTarget();
      LLVMInitializeAMDGPUTargetMC();
      LLVMInitializeAMDGPUAsmPrinter();
    });
  }

  // Functions become a part of the kernel: a call would need a stack in memory. Generic targets are
  // there since version 6 of code objects.
  void prepare(llvm::Module& module, const Target& target) const override {
    for (llvm::Function& function : module) {
      if (function.getCallingConv() == llvm::CallingConv::AMDGPU_KERNEL) read_late(function);
      if (!function.hasInternalLinkage()) continue;
      function.removeFnAttr(llvm::Attribute::NoInline);
      function.addFnAttr(llvm::Attribute::AlwaysInline);
    }
    if (target.cpu.ends_with("-generic"))
      module.addModuleFlag(llvm::Module::Error, "amdhsa_code_object_version", 600);
  }
  std::vector<char> finished(llvm::StringRef code, int) const override {
    return gpu::link_code_object({code.data(), code.size()});
  }

  int warp(const Target& target) const override { return is_gfx9(target) ? 64 : 32; }
  bool has_clusters(const Target&) const override { return false; }

  void make_entry(llvm::Function& function, int block, int) const override {
    function.setCallingConv(llvm::CallingConv::AMDGPU_KERNEL);
    // Its descriptor refers to it, in the same file.
    function.setVisibility(llvm::GlobalValue::ProtectedVisibility);
    const std::string threads = std::to_string(block) + "," + std::to_string(block);
    function.addFnAttr("amdgpu-flat-work-group-size", threads);
    function.addFnAttr("uniform-work-group-size", "true");
    // Arguments and registers that a launch would set up for nothing.
    for (const char* unused :
         {"dispatch-ptr", "queue-ptr", "implicitarg-ptr", "dispatch-id", "workgroup-id-y",
          "workgroup-id-z", "workitem-id-y", "workitem-id-z", "hostcall-ptr", "multigrid-sync-arg",
          "heap-ptr", "default-queue", "completion-action", "lds-kernel-id"})
      function.addFnAttr("amdgpu-no-" + std::string(unused));
  }

  llvm::CallInst* thread_in_block(Builder& b) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_workitem_id_x, {}, {});
  }
  llvm::CallInst* block_in_grid(Builder& b) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_workgroup_id_x, {}, {});
  }
  bool wait_for_others(Builder&, const Target&) const override { return false; }

  // The instruction alone orders no accesses: fences keep those of shared memory on their side.
  void barrier(Builder& b) const override {
    llvm::LLVMContext& context = b.getContext();
    const auto scope = context.getOrInsertSyncScopeID("workgroup");
    auto* shared_only = llvm::MDNode::get(context, {llvm::MDString::get(context, "amdgpu-as"),
                                                    llvm::MDString::get(context, "local")});
    auto fence = [&](llvm::AtomicOrdering order) {
      b.CreateFence(order, scope)->setMetadata(llvm::LLVMContext::MD_mmra, shared_only);
    };
    fence(llvm::AtomicOrdering::Release);
    b.CreateIntrinsic(llvm::Intrinsic::amdgcn_s_barrier, {}, {});
    fence(llvm::AtomicOrdering::Acquire);
  }

  // Waves run in step, and their accesses to shared memory in order: nothing may be moved across it.
  void warp_barrier(Builder& b) const override {
    b.CreateIntrinsic(llvm::Intrinsic::amdgcn_wave_barrier, {}, {});
  }
  Value* exchanged(Builder& b, const Target& target, Value* word, int distance) const override {
    const auto flip = static_cast<uint32_t>(distance);
    if (distance < 4) return permuted(b, word, distance == 1 ? 0xb1 : 0x4e);        // of 2301, 1032
    if (distance < 16 && !is_gfx9(target)) return permuted(b, word, 0x160 | flip);  // row_xmask
    if (distance < 32) {
      constexpr uint32_t kAllLanes = 0x1f;
      return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_ds_swizzle, {},
                               {word, b.getInt32(flip << 10 | kAllLanes)});
    }
    Value* address = b.CreateShl(b.CreateXor(lane(b), b.getInt32(flip)), 2);
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_ds_bpermute, {}, {address, word});
  }
  // Lanes below this one, of all: in two steps, for the halves of a mask.
  Value* lane(Builder& b) const override {
    Value* low =
        b.CreateIntrinsic(llvm::Intrinsic::amdgcn_mbcnt_lo, {}, {b.getInt32(~0u), b.getInt32(0)});
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_mbcnt_hi, {}, {b.getInt32(~0u), low});
  }
  Value* ballot(Builder& b, const Target& target, Value* bit) const override {
    llvm::Type* mask = b.getIntNTy(static_cast<unsigned>(warp(target)));
    return b.CreateZExt(b.CreateIntrinsic(llvm::Intrinsic::amdgcn_ballot, {mask}, {bit}),
                        b.getInt64Ty());
  }
  Value* of_lane(Builder& b, Value* word, Value* lane) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_readlane, {b.getInt32Ty()}, {word, lane});
  }
  void cluster_barrier(Builder&) const override { no_clusters(); }
  Value* of_block(Builder&, Value*, Value*) const override { no_clusters(); }

  Value* pair(Builder& b, DType dtype, Value* low, Value* high) const override {
    if (dtype == DType::BF16)
      return b.CreateOr(b.CreateLShr(upper_half(b, low), 16), upper_half(b, high));
    Value* both = llvm::PoisonValue::get(llvm::FixedVectorType::get(b.getHalfTy(), 2));
    both = b.CreateInsertElement(both, b.CreateFPTrunc(low, b.getHalfTy()), uint64_t{0});
    return b.CreateInsertElement(both, b.CreateFPTrunc(high, b.getHalfTy()), uint64_t{1});
  }
  // v_exp_f32, with a step around it where the result is subnormal.
  Value* exp2(Builder& b, Value* x) const override {
    return b.CreateUnaryIntrinsic(llvm::Intrinsic::exp2, x);
  }
  Value* quotient(Builder& b, Value* x, Value* by) const override { return b.CreateFDiv(x, by); }

 private:
  static Value* permuted(Builder& b, Value* word, uint32_t control) {
    constexpr uint32_t kAll = 0xf;
    return b.CreateIntrinsic(llvm::Intrinsic::amdgcn_update_dpp, {b.getInt32Ty()},
                             {llvm::PoisonValue::get(b.getInt32Ty()), word, b.getInt32(control),
                              b.getInt32(kAll), b.getInt32(kAll), b.getTrue()});
  }

  // The bits of x rounded to bf16, where they are those of an f32; zeros below.
  static Value* upper_half(Builder& b, Value* x) {
    Value* bits = b.CreateBitCast(x, b.getInt32Ty());
    Value* odd = b.CreateAnd(b.CreateLShr(bits, 16), 1);
    Value* rounded = b.CreateAdd(bits, b.CreateAdd(odd, b.getInt32(0x7fff)));
    Value* quiet = b.CreateOr(bits, b.getInt32(0x400000));
    Value* chosen = b.CreateSelect(b.CreateFCmpUNO(x, x), quiet, rounded);
    return b.CreateAnd(chosen, b.getInt32(0xffff0000u));
  }

  [[noreturn]] static void no_clusters() {
    throw InternalError("blocks of AMD's GPUs form no clusters");
  }
};

}  // namespace

const GpuDialect& amdgpu_dialect() {
  static const auto& dialect = *new AmdgpuDialect;  // outlives every static tensor
  return dialect;
}

}  // namespace tinyshard::codegen
