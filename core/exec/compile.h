// From the kernels of a schedule to code: what is known from before is taken, the rest made by many
// threads at once.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/codegen/codegen.h"
#include "core/schedule/schedule.h"

namespace tinyshard {

// Compiles each item that is a kernel, in their order; null where this process has no device of the
// item. Items of a schedule that runs once take the steps of kernel_steps.h, unless BEAM chooses among
// plans of other bits. With BEAM the plans of the kernels are chosen then, and noted in the items.
std::vector<std::shared_ptr<const CompiledKernel>> compile_items(std::span<Item> items,
                                                                 bool runs_once);

}  // namespace tinyshard
