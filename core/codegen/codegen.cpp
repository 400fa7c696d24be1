// The way of a list of kernels through the caches. Each kernel is known by its key (key.h): bytes
// of its structure, its parameters and the target.
//
//   sources    softmax of 64 x 33, softmax of 64 x 33 of another layer, sum of 7
//   keys       A, A, B
//   memory     has B: a hit. A is missing, and asked for once
//   disk       has A or not; where not, one thread plans, emits and links it and stores it there
//   results    A, A, B: one CompiledKernel per key, shared by all that asked
#include "core/codegen/codegen.h"

#include <algorithm>
#include <cctype>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/bounded_cache.h"
#include "core/base/debug_text.h"
#include "core/base/error.h"
#include "core/base/observer.h"
#include "core/base/options.h"
#include "core/base/process.h"
#include "core/codegen/backend.h"
#include "core/codegen/disk_cache.h"
#include "core/codegen/gpu/backend.h"
#include "core/codegen/gpu/dialect.h"
#include "core/codegen/key.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

using codegen::Graph;
using codegen::PhaseTimes;
using codegen::Plan;

using KernelPointer = std::shared_ptr<const CompiledKernel>;

constexpr size_t kOfKernel = 512;  // beside its key and its code

struct Cache {
  std::mutex mutex;
  BoundedCache<std::string, const CompiledKernel> kernels;  // by key
  CodegenStatistics statistics;
};

Cache& cache() {
  static Cache* cache = new Cache;  // outlives every static user
  return *cache;
}

std::string symbol_name(const std::string& name) {
  std::string symbol = "k_";
  for (char c : name) symbol += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return symbol;
}

// Writes the text that bench/kernel_replay.cpp reads back.
std::string listing(const KernelSource& kernel) {
  std::string params = "params", loops = "loops";
  for (const ParamInfo& p : kernel.params) {
    params += fmt::format(" {}:{}:{}:{}", name(p.dtype), p.numel, p.written ? "w" : "r", p.alias);
  }
  for (const UOp& loop : kernel.loops) loops += fmt::format(" {}", range_arg(*loop).id);
  return fmt::format("kernel {}\n{}\n{}\n{}", kernel.name, params, loops, print(kernel.sink));
}

KernelPointer compile_one(const KernelSource& source, const Target& target, PhaseTimes& times) {
  check_not_exiting("a kernel cannot be compiled");
  auto kernel = std::make_shared<CompiledKernel>();
  kernel->name = source.name;
  kernel->code.entry = symbol_name(source.name);
  double start = codegen::thread_cpu_ms();
  Graph graph(source);
  if (codegen::GpuDialect::of(target)) {
    codegen::gpu::GpuPlan plan = codegen::gpu::make_gpu_plan(graph, target, source.choice);
    times.plan_ms += codegen::thread_cpu_ms() - start;
    kernel->cost_ns = plan.cost_ns;
    kernel->bytes_moved = plan.bytes_moved;
    kernel->code = codegen::gpu::build_code(graph, plan, target, kernel->code.entry, times);
    return kernel;
  }
  Plan plan = codegen::make_plan(graph, target, source.choice);
  times.plan_ms += codegen::thread_cpu_ms() - start;
  kernel->code.work_items = plan.items;
  kernel->code.min_items = plan.min_items;
  kernel->cost_ns = plan.cost_ns;
  kernel->bytes_moved = plan.bytes_moved;
  if (options().check.memory) kernel->code.checked_buffers = int(source.params.size());
  kernel->code.bytes = codegen::build_image(graph, plan, target, kernel->code.entry, times);
  return kernel;
}

}  // namespace

std::vector<KernelPointer> compile_kernels(std::span<const KernelSource* const> sources,
                                           const Target& target, const ParallelFor& parallel) {
  std::vector<KernelPointer> results(sources.size());
  std::vector<std::string> keys(sources.size());
  for (size_t i = 0; i < sources.size(); ++i) keys[i] = codegen::kernel_key(*sources[i], target);

  // First users of each key that memory does not have.
  std::vector<size_t> missing;
  std::unordered_map<std::string_view, size_t> first;
  CodegenStatistics counts;
  {
    std::lock_guard lock(cache().mutex);
    for (size_t i = 0; i < sources.size(); ++i) {
      results[i] = cache().kernels.find(keys[i]);
      if (results[i]) {
        ++counts.memory_hits;
      } else if (first.try_emplace(keys[i], i).second) {
        missing.push_back(i);
      } else {
        ++counts.memory_hits;
      }
    }
  }
  follow_debug_option();
  const CodeForm read = listings_are_read();
  if (read >= CodeForm::Graph) {
    for (size_t i : missing) {
      observe([&] {
        return ObservedEvent{.kind = EventKind::Listing,
                             .name = "graph of kernel " + sources[i]->name,
                             .after = listing(*sources[i])};
      });
    }
  }
  std::vector<size_t> unknown;
  for (size_t i : missing) {
    results[i] = read >= CodeForm::Llvm ? nullptr : codegen::load_kernel(keys[i]);
    if (results[i]) {
      ++counts.disk_hits;
    } else {
      unknown.push_back(i);
    }
  }
  std::vector<PhaseTimes> times(unknown.size());
  auto compile = [&](int n) {
    size_t i = unknown[static_cast<size_t>(n)];
    results[i] = compile_one(*sources[i], target, times[static_cast<size_t>(n)]);
    codegen::store_kernel(keys[i], *results[i]);
  };
  if (parallel && unknown.size() > 1) {
    parallel(static_cast<int>(unknown.size()), compile);
  } else {
    for (size_t n = 0; n < unknown.size(); ++n) compile(static_cast<int>(n));
  }
  for (size_t i = 0; i < sources.size(); ++i) {
    if (!results[i]) results[i] = results[first.at(keys[i])];
  }

  std::lock_guard lock(cache().mutex);
  CodegenStatistics& s = cache().statistics;
  s.requested += static_cast<int64_t>(sources.size());
  s.memory_hits += counts.memory_hits;
  s.disk_hits += counts.disk_hits;
  s.compiled += static_cast<int64_t>(unknown.size());
  for (const PhaseTimes& t : times) {
    s.plan_ms += t.plan_ms;
    s.emit_ms += t.emit_ms;
    s.optimise_ms += t.optimise_ms;
    s.codegen_ms += t.codegen_ms;
    s.link_ms += t.link_ms;
  }
  for (size_t i : missing) {
    const size_t bytes = kOfKernel + keys[i].size() + results[i]->code.bytes.size();
    cache().kernels.add(std::move(keys[i]), results[i], bytes);
  }
  const auto limit = static_cast<size_t>(options().kernel_bytes);
  if (limit > 0 && cache().kernels.is_full(limit)) cache().kernels.trim(limit);
  return results;
}

bool choices_keep_bits(const Target& target) { return !codegen::GpuDialect::of(target); }

CodegenStatistics codegen_statistics() {
  std::lock_guard lock(cache().mutex);
  return cache().statistics;
}

void clear_codegen_cache() {
  std::lock_guard lock(cache().mutex);
  cache().kernels.clear();
}

}  // namespace tinyshard
