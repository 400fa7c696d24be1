// Compiled kernels in the file cache (core/runtime/file_cache.h): what a file holds is a kernel as
// bytes and which version of the code generator compiled it. Internal to core/codegen.
#pragma once
#include <memory>
#include <string>

#include "core/codegen/kernel.h"

namespace tinyshard::codegen {

// Null when the kernel is not there or another version compiled it. Any thread.
std::shared_ptr<const CompiledKernel> load_kernel(const std::string& key);
void store_kernel(const std::string& key, const CompiledKernel& kernel);

}  // namespace tinyshard::codegen
