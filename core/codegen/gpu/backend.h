// From a kernel to what a GPU's driver takes. Internal to core/codegen; no LLVM in here.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/codegen/backend.h"
#include "core/codegen/gpu/gpu_plan.h"

namespace llvm {
class Module;
}

namespace tinyshard::codegen::gpu {

// Makes what ObjectCode::bytes holds of a module that `fill` writes one entry into; `cluster`: blocks
// that share their memory, 1 for none. Throws InternalError where LLVM refuses.
std::vector<char> build_module(const Target& target, const std::string& name, int cluster,
                               PhaseTimes& times, const std::function<void(llvm::Module&)>& fill);

// The code of the kernel whose entry is called `name`, as ObjectCode describes it.
ObjectCode build_code(const Graph& graph, const GpuPlan& plan, const Target& target,
                      const std::string& name, PhaseTimes& times);

}  // namespace tinyshard::codegen::gpu
