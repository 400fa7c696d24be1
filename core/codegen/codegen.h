// Kernels to machine code, or to PTX for a GPU target. Compiled kernels are kept in memory by
// structure (names and range ids do not count) and on disk (disk_cache.h), so that equal layers are
// compiled once. Thread safe.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/codegen/kernel.h"

namespace tinyshard {

// Calls body(0) ... body(n - 1), possibly at once on several threads; returns when all are done.
using ParallelFor = std::function<void(int n, const std::function<void(int)>& body)>;

// Returns one result per source; equal kernels share one. Without `parallel` the caller does it
// all. Throws InternalError for a malformed kernel.
std::vector<std::shared_ptr<const CompiledKernel>> compile_kernels(
    std::span<const KernelSource* const> sources, const Target& target,
    const ParallelFor& parallel = nullptr);

// Tells whether folds have the same bits by each of the generator's plans (KernelSource::choice).
bool choices_keep_bits(const Target& target);

struct CodegenStatistics {
  int64_t requested = 0, memory_hits = 0, disk_hits = 0, compiled = 0;
  // CPU time, summed over threads.
  double plan_ms = 0, emit_ms = 0, optimise_ms = 0, codegen_ms = 0, link_ms = 0;
};
CodegenStatistics codegen_statistics();

// For tests and tuning: forgets the kernels held in memory.
void clear_codegen_cache();

}  // namespace tinyshard
