// cuDNN's graph interface, as far as we use it: our own declarations, found at run time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/runtime/vendor_library.h"
#include "devices/cuda/driver.h"

namespace tinyshard::cuda {

using DnnStatus = int;  // its thousands tell the kind of error
using DnnHandle = struct DnnHandleTag*;
using DnnDescriptor = void*;

constexpr DnnStatus kDnnNotSupported = 3000;

enum DnnType : int {
  kDnnF32 = 0,
  kDnnF64 = 1,
  kDnnF16 = 2,
  kDnnI32 = 4,
  kDnnBf16 = 9,
  kDnnBool = 11
};

// The type of a descriptor.
enum DnnKind : int {
  kDnnPointwise = 0,
  kDnnConvolution = 1,
  kDnnEngine = 2,
  kDnnEngineConfig = 3,
  kDnnHeuristics = 4,
  kDnnPlan = 5,
  kDnnConvForwardOp = 10,
  kDnnConvWeightOp = 11,
  kDnnConvDataOp = 12,
  kDnnPointwiseOp = 13,
  kDnnGraph = 15,
  kDnnArguments = 16,
  kDnnTensor = 17,
  kDnnMatmul = 18,
  kDnnMatmulOp = 19,
  kDnnReduction = 21,
  kDnnReductionOp = 22,
  kDnnReshapeOp = 31,
  kDnnDevice = 38
};

// Attributes of descriptors; the name starts with the kind.
enum DnnAttribute : int {
  kDnnPointwiseMode = 0,
  kDnnPointwiseCompute = 1,
  kDnnPointwiseAxis = 9,
  kDnnConvolutionCompute = 100,
  kDnnConvolutionMode = 101,
  kDnnConvolutionDilation = 102,
  kDnnConvolutionStride = 103,
  kDnnConvolutionPadHigh = 104,
  kDnnConvolutionPadLow = 105,
  kDnnConvolutionRank = 106,
  kDnnHeuristicsMode = 200,
  kDnnHeuristicsGraph = 201,
  kDnnHeuristicsResults = 202,
  kDnnHeuristicsDevice = 204,
  kDnnEngineConfigEngine = 300,
  kDnnPlanHandle = 400,
  kDnnPlanEngineConfig = 401,
  kDnnPlanWorkspace = 402,
  kDnnPlanDevice = 407,
  // The first attribute of each of the three ops: alpha; beta, the convolution, w, x, y follow.
  kDnnConvForwardOpFirst = 700,
  kDnnConvDataOpFirst = 706,
  kDnnConvWeightOpFirst = 712,
  kDnnPointwiseOpDescriptor = 750,
  kDnnPointwiseOpX = 751,
  kDnnPointwiseOpB = 752,
  kDnnPointwiseOpY = 753,
  kDnnPointwiseOpT = 758,
  kDnnGraphHandle = 800,
  kDnnGraphOps = 801,
  kDnnTensorAlignment = 900,
  kDnnTensorType = 901,
  kDnnTensorDims = 902,
  kDnnTensorStrides = 903,
  kDnnTensorId = 906,
  kDnnTensorVirtual = 907,
  kDnnTensorByValue = 908,
  kDnnArgumentsIds = 1000,
  kDnnArgumentsPointers = 1001,
  kDnnArgumentsWorkspace = 1003,
  kDnnEngineNotes = 1303,
  kDnnMatmulCompute = 1500,
  kDnnMatmulOpA = 1520,
  kDnnMatmulOpB = 1521,
  kDnnMatmulOpC = 1522,
  kDnnMatmulOpDescriptor = 1523,
  kDnnReductionOperator = 1600,
  kDnnReductionCompute = 1601,
  kDnnReductionOpX = 1610,
  kDnnReductionOpY = 1611,
  kDnnReductionOpDescriptor = 1612,
  kDnnReshapeOpX = 2200,
  kDnnReshapeOpY = 2201,
  kDnnDeviceJson = 2702
};

// The types of attributes' values.
enum DnnValue : int {
  kDnnValueHandle = 0,
  kDnnValueType = 1,
  kDnnValueBool = 2,
  kDnnValueInt64 = 3,
  kDnnValueFloat = 4,
  kDnnValuePointer = 6,
  kDnnValueConvolutionMode = 7,
  kDnnValueHeuristicsMode = 8,
  kDnnValueNote = 11,
  kDnnValuePointwise = 14,
  kDnnValueDescriptor = 15,
  kDnnValueReduction = 18,
  kDnnValueChar = 24
};

enum DnnMode : int { kDnnModeFallback = 2, kDnnModeA = 3 };

// The numerical properties of an engine.
enum DnnNote : int { kDnnTensorCores = 0, kDnnNarrowsInputs = 1, kDnnNotRepeatable = 4 };

enum class DnnUnary : int { Exp = 13, Log = 15, Identity = 21, Index = 501 };
enum class DnnBinary : int { Add = 0, Mul = 1, Div = 6, Sub = 9, GreaterEqual = 303 };
constexpr int kDnnSelect = 601;
enum class DnnReduce : int { Sum = 0, Max = 3 };

#define TINYSHARD_CUDNN_FUNCTIONS(X)                                                              \
  X(create, "cudnnCreate", (DnnHandle*))                                                          \
  X(destroy, "cudnnDestroy", (DnnHandle))                                                         \
  X(set_stream, "cudnnSetStream", (DnnHandle, gpu::Stream))                                       \
  X(create_descriptor, "cudnnBackendCreateDescriptor", (int kind, DnnDescriptor*))                \
  X(destroy_descriptor, "cudnnBackendDestroyDescriptor", (DnnDescriptor))                         \
  X(finalize, "cudnnBackendFinalize", (DnnDescriptor))                                            \
  X(set_attribute, "cudnnBackendSetAttribute",                                                    \
    (DnnDescriptor, int attribute, int value_type, int64_t count, const void* values))            \
  X(get_attribute, "cudnnBackendGetAttribute",                                                    \
    (DnnDescriptor, int attribute, int value_type, int64_t wanted, int64_t* count, void* values)) \
  X(execute, "cudnnBackendExecute", (DnnHandle, DnnDescriptor plan, DnnDescriptor arguments))

class Cudnn : public VendorLibrary {
 public:
  // Opened at the first call; later calls return the same.
  static const Cudnn& get();

  size_t number() const { return get_version_(); }  // 91900 for 9.19.0
  std::string version() const;
  std::string last_error() const;  // of this thread

  // Throws DeviceError unless the status is success.
  void check(DnnStatus status, std::string_view asked) const {
    if (status != 0) fail(status, asked);
  }

#define TINYSHARD_CUDNN_MEMBER(name, symbol, parameters) DnnStatus(*name) parameters = nullptr;
  TINYSHARD_CUDNN_FUNCTIONS(TINYSHARD_CUDNN_MEMBER)
#undef TINYSHARD_CUDNN_MEMBER

 private:
  Cudnn();
  [[noreturn]] void fail(DnnStatus status, std::string_view asked) const;

  size_t (*get_version_)() = nullptr;
  const char* (*status_name_)(DnnStatus) = nullptr;
  void (*last_error_)(char*, size_t) = nullptr;
};

}  // namespace tinyshard::cuda
