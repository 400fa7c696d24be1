// cuBLASLt, as far as we use it: our own declarations, found at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/runtime/vendor_library.h"
#include "devices/cuda/driver.h"

namespace tinyshard::cuda {

using LtStatus = int;
using LtHandle = struct LtHandleTag*;
using LtMatmul = struct LtMatmulTag*;          // what to compute
using LtLayout = struct LtLayoutTag*;          // how a matrix lies
using LtPreference = struct LtPreferenceTag*;  // what an algorithm may use

struct LtAlgorithm {
  uint64_t data[8];
};
struct LtCandidate {
  LtAlgorithm algorithm;
  size_t workspace;
  LtStatus state;
  float waves;
  int reserved[4];
};

enum LtType : int { kLtF32 = 0, kLtF64 = 1, kLtF16 = 2, kLtBf16 = 14 };
enum LtCompute : int { kLtComputeF32 = 68, kLtComputeF64 = 70, kLtComputeTf32 = 77 };
enum LtMatmulAttribute : int {
  kLtPointerMode = 2,
  kLtTransposeA = 3,
  kLtTransposeB = 4,
  kLtEpilogue = 7,
  kLtBiasPointer = 8,
  kLtAuxPointer = 11,
  kLtAuxLd = 12
};
enum LtPointerMode : int32_t { kLtFactorsOnDevice = 1 };
// The operation on the sums. "Aux" is the value before the GELU: stored going forward, read going
// back.
enum LtEpilogue : uint32_t {
  kLtPlain = 1,
  kLtBias = 4,
  kLtReluBias = 2 | 4,
  kLtGeluBias = 32 | 4,
  kLtGeluAuxBias = 128 | 32 | 4,
  kLtGeluBackward = 128 | 64
};
enum LtLayoutAttribute : int { kLtBatchCount = 5, kLtBatchStride = 6 };
enum LtPreferenceAttribute : int {
  kLtMaxWorkspace = 1,
  kLtAlignmentA = 5,
  kLtAlignmentB = 6,
  kLtAlignmentC = 7,
  kLtAlignmentD = 8
};

#define TINYSHARD_CUBLASLT_FUNCTIONS(X)                                                       \
  X(create, "cublasLtCreate", (LtHandle*))                                                    \
  X(destroy, "cublasLtDestroy", (LtHandle))                                                   \
  X(matmul_create, "cublasLtMatmulDescCreate", (LtMatmul*, int compute, int scale))           \
  X(matmul_destroy, "cublasLtMatmulDescDestroy", (LtMatmul))                                  \
  X(matmul_set, "cublasLtMatmulDescSetAttribute", (LtMatmul, int, const void*, size_t))       \
  X(layout_create, "cublasLtMatrixLayoutCreate",                                              \
    (LtLayout*, int type, uint64_t rows, uint64_t cols, int64_t ld))                          \
  X(layout_destroy, "cublasLtMatrixLayoutDestroy", (LtLayout))                                \
  X(layout_set, "cublasLtMatrixLayoutSetAttribute", (LtLayout, int, const void*, size_t))     \
  X(preference_create, "cublasLtMatmulPreferenceCreate", (LtPreference*))                     \
  X(preference_destroy, "cublasLtMatmulPreferenceDestroy", (LtPreference))                    \
  X(preference_set, "cublasLtMatmulPreferenceSetAttribute",                                   \
    (LtPreference, int, const void*, size_t))                                                 \
  X(heuristic, "cublasLtMatmulAlgoGetHeuristic",                                              \
    (LtHandle, LtMatmul, LtLayout, LtLayout, LtLayout, LtLayout, LtPreference, int wanted,    \
     LtCandidate*, int* found))                                                               \
  X(algorithm_check, "cublasLtMatmulAlgoCheck",                                               \
    (LtHandle, LtMatmul, LtLayout, LtLayout, LtLayout, LtLayout, const LtAlgorithm*,          \
     LtCandidate*))                                                                           \
  X(matmul, "cublasLtMatmul",                                                                 \
    (LtHandle, LtMatmul, const void* alpha, const void* a, LtLayout, const void* b, LtLayout, \
     const void* beta, const void* c, LtLayout, void* d, LtLayout, const LtAlgorithm*,        \
     void* workspace, size_t workspace_bytes, gpu::Stream))

class CublasLt : public VendorLibrary {
 public:
  // Opened at the first call; later calls return the same.
  static const CublasLt& get();

  std::string version() const;  // and where it was found
  size_t version_number() const { return get_version_(); }

  // Throws DeviceError unless the status is success.
  void check(LtStatus status, std::string_view device, std::string_view asked) const {
    if (status != 0) fail(status, device, asked);
  }

#define TINYSHARD_CUBLASLT_MEMBER(name, symbol, parameters) LtStatus(*name) parameters = nullptr;
  TINYSHARD_CUBLASLT_FUNCTIONS(TINYSHARD_CUBLASLT_MEMBER)
#undef TINYSHARD_CUBLASLT_MEMBER

 private:
  CublasLt();
  [[noreturn]] void fail(LtStatus status, std::string_view device, std::string_view asked) const;

  size_t (*get_version_)() = nullptr;
  const char* (*status_name_)(LtStatus) = nullptr;
};

}  // namespace tinyshard::cuda
