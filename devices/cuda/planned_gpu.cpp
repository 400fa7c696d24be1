// Target and answers of an H200 as gpu.cpp gives them, with the numbers that its driver tells.
#include "devices/cuda/planned_gpu.h"

#include "devices/cuda/gpu_target.h"
#include "devices/cuda/library_calls.h"
#include "devices/cuda/matmul.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::cuda {

PlannedDevice planned_h200() {
  constexpr int kDriver = 12040, kMultiprocessors = 132, kSharedBytes = 48 << 10;
  Target target = gpu_target(9, 0, kDriver);
  target.multiprocessors = kMultiprocessors;
  target.shared_bytes = kSharedBytes;
  auto worth_copying = [target](const LibraryCall& call, int operand) {
    return call.node.op() == Op::Dot ? matmul_worth_copying(target, call, operand) : 0;
  };
  return {.kind = "NULL_H200",
          .target = target,
          .profile = gpu_profile(),
          .supports = [target](const LibraryCall& call,
                               std::string* why) { return library_expresses(target, call, why); },
          .provider = &gpu::products_provider(),
          .worth_copying = worth_copying};
}

}  // namespace tinyshard::cuda
