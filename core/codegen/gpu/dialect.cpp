// Which dialect speaks for a target: a row for each maker. "nvptx64-nvidia-cuda" begins with "nvptx".
#include "core/codegen/gpu/dialect.h"

#include "core/base/error.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen {

const GpuDialect* GpuDialect::of(const Target& target) {
  for (const GpuDialect* dialect : {&nvptx_dialect()}) {
    if (target.triple.starts_with(dialect->words().triple)) return dialect;
  }
  return nullptr;
}

int gpu::warp_of(const Target& target) { return GpuDialect::of(target)->words().warp; }

}  // namespace tinyshard::codegen
