// The structure of a kernel as bytes: equal keys mean equal machine code. Names and range ids do
// not count, and neither does the process. Internal to core/codegen.
#pragma once
#include <string>

#include "core/codegen/kernel.h"

namespace tinyshard::codegen {

std::string kernel_key(const KernelSource& kernel, const Target& target);

}  // namespace tinyshard::codegen
