// From an LLVM module to an image (core/runtime/image.h). Internal to core/codegen; no LLVM in
// here.
#pragma once
#include <string>
#include <vector>

#include "core/codegen/kernel_graph.h"
#include "core/codegen/plan.h"

namespace tinyshard::codegen {

struct PhaseTimes {
  double plan_ms = 0, emit_ms = 0, optimise_ms = 0, codegen_ms = 0, link_ms = 0;
};

double thread_cpu_ms();  // CPU time of this thread

// The image of the kernel whose entry is called `name`. Throws InternalError where LLVM refuses.
std::vector<char> build_image(const Graph& graph, const Plan& plan, const Target& target,
                              const std::string& name, PhaseTimes& times);

}  // namespace tinyshard::codegen
