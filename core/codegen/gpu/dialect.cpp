// Which dialect speaks for a target: a row for each maker. "nvptx64-nvidia-cuda" begins with "nvptx",
// "amdgcn-amd-amdhsa" with "amdgcn".
#include "core/codegen/gpu/dialect.h"

#include "core/base/error.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen {

const GpuDialect* GpuDialect::of(const Target& target) {
  for (const GpuDialect* dialect : {&nvptx_dialect(), &amdgpu_dialect()}) {
    if (target.triple.starts_with(dialect->words().triple)) return dialect;
  }
  return nullptr;
}

int gpu::warp_of(const Target& target) { return GpuDialect::of(target)->warp(target); }
bool gpu::has_clusters(const Target& target) {
  return GpuDialect::of(target)->has_clusters(target);
}

}  // namespace tinyshard::codegen
