// NVIDIA's GPUs: LLVM writes PTX, of which the driver makes machine code.
#include <mutex>
#include <string>

#include <llvm/IR/InlineAsm.h>
#include <llvm/IR/IntrinsicsNVPTX.h>
#include <llvm/IR/Module.h>

#include "core/base/error.h"
#include "core/codegen/gpu/dialect.h"

extern "C" {
void LLVMInitializeNVPTXTargetInfo();
void LLVMInitializeNVPTXTarget();
void LLVMInitializeNVPTXTargetMC();
void LLVMInitializeNVPTXAsmPrinter();
}

namespace tinyshard::codegen {
namespace {

constexpr int kWarp = 32;

class NvptxDialect final : public GpuDialect {
 public:
  NvptxDialect()
      : GpuDialect({.triple = "nvptx",
                    .form = "PTX",
                    .objects = false,
                    .global_space = 1,
                    .shared_space = 3,
                    .table_space = 0}) {}

  void initialise() const override {
    static std::once_flag once;
    std::call_once(once, [] {
      LLVMInitializeNVPTXTargetInfo();
      LLVMInitializeNVPTXTarget();
      LLVMInitializeNVPTXTargetMC();
      LLVMInitializeNVPTXAsmPrinter();
    });
  }

  void prepare(llvm::Module&, const Target&) const override {}
  std::vector<char> finished(llvm::StringRef code, int cluster) const override {
    std::string text = code.str();
    if (cluster > 1) {
      const size_t directive = text.find(".maxntid");  // LLVM 19 has no words for clusters
      check_internal(directive != std::string::npos, "PTX without .maxntid");
      text.insert(directive,
                  ".explicitcluster\n.reqnctapercluster " + std::to_string(cluster) + ", 1, 1\n");
    }
    return {text.c_str(), text.c_str() + text.size() + 1};
  }

  int warp(const Target&) const override { return kWarp; }
  bool has_clusters(const Target& target) const override { return target.cpu.starts_with("sm_9"); }

  void make_entry(llvm::Function& function, int block, int resident) const override {
    function.setCallingConv(llvm::CallingConv::PTX_Kernel);
    llvm::LLVMContext& context = function.getContext();
    auto annotate = [&](const char* key, int value) {
      llvm::Metadata* row[] = {llvm::ValueAsMetadata::get(&function),
                               llvm::MDString::get(context, key),
                               llvm::ConstantAsMetadata::get(llvm::ConstantInt::get(
                                   llvm::Type::getInt32Ty(context), static_cast<uint64_t>(value)))};
      function.getParent()
          ->getOrInsertNamedMetadata("nvvm.annotations")
          ->addOperand(llvm::MDNode::get(context, row));
    };
    annotate("kernel", 1);
    annotate("maxntidx", block);
    if (resident > 0) annotate("minctasm", resident);
  }

  llvm::CallInst* thread_in_block(Builder& b) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_tid_x, {}, {});
  }
  llvm::CallInst* block_in_grid(Builder& b) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_ctaid_x, {}, {});
  }

  bool wait_for_others(Builder& b, const Target& target) const override {
    if (!has_clusters(target)) return false;  // as old as clusters
    auto* type = llvm::FunctionType::get(b.getVoidTy(), false);
    for (const char* word : {"griddepcontrol.wait;", "griddepcontrol.launch_dependents;"})
      b.CreateCall(type, llvm::InlineAsm::get(type, word, "~{memory}", true));
    return true;
  }

  void barrier(Builder& b) const override {
    b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier0, {}, {});
  }
  void warp_barrier(Builder& b) const override {
    b.CreateIntrinsic(llvm::Intrinsic::nvvm_bar_warp_sync, {}, {b.getInt32(~0u)});
  }
  Value* exchanged(Builder& b, const Target&, Value* word, int distance) const override {
    auto i32 = [&](int x) { return b.getInt32(static_cast<uint32_t>(x)); };
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_shfl_sync_bfly_i32, {},
                             {i32(-1), word, i32(distance), i32(kWarp - 1)});
  }
  Value* lane(Builder& b) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_read_ptx_sreg_laneid, {}, {});
  }
  Value* ballot(Builder& b, const Target&, Value* bit) const override {
    Value* mask =
        b.CreateIntrinsic(llvm::Intrinsic::nvvm_vote_ballot_sync, {}, {b.getInt32(~0u), bit});
    return b.CreateZExt(mask, b.getInt64Ty());
  }
  Value* of_lane(Builder& b, Value* word, Value* lane) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_shfl_sync_idx_i32, {},
                             {b.getInt32(~0u), word, lane, b.getInt32(kWarp - 1)});
  }
  void cluster_barrier(Builder& b) const override {
    b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier_cluster_arrive_aligned, {}, {});
    b.CreateIntrinsic(llvm::Intrinsic::nvvm_barrier_cluster_wait_aligned, {}, {});
  }
  Value* of_block(Builder& b, Value* address, Value* rank) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_mapa, {}, {address, rank});
  }

  Value* pair(Builder& b, DType dtype, Value* low, Value* high) const override {
    return b.CreateIntrinsic(dtype == DType::BF16 ? llvm::Intrinsic::nvvm_ff2bf16x2_rn
                                                  : llvm::Intrinsic::nvvm_ff2f16x2_rn,
                             {}, {high, low});
  }
  Value* exp2(Builder& b, Value* x) const override {
    return b.CreateIntrinsic(llvm::Intrinsic::nvvm_ex2_approx_f, {}, {x});
  }
  Value* quotient(Builder& b, Value* x, Value* by) const override {
    llvm::Type* f32 = b.getFloatTy();
    auto* divide = llvm::InlineAsm::get(llvm::FunctionType::get(f32, {f32, f32}, false),
                                        "div.full.f32 $0, $1, $2;", "=f,f,f", false);
    return b.CreateCall(divide, {x, by});
  }
};

}  // namespace

const GpuDialect& nvptx_dialect() {
  static const auto& dialect = *new NvptxDialect;  // outlives every static tensor
  return dialect;
}

}  // namespace tinyshard::codegen
