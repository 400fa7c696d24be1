// From a kernel to the text that a GPU's driver takes. Internal to core/codegen; no LLVM in here.
#pragma once
#include <string>

#include "core/codegen/backend.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace tinyshard::codegen::gpu {

// The code of the kernel whose entry is called `name`, as ObjectCode describes it.
ObjectCode build_code(const Graph& graph, const GpuPlan& plan, const Target& target,
                      const std::string& name, PhaseTimes& times);

}  // namespace tinyshard::codegen::gpu
