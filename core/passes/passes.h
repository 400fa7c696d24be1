// The passes between the user's graph and the schedule, as one list that reads as the story. Each
// is timed, printed, verified after and can be left out by name where that is safe
// (core/base/steps.h).
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/steps.h"
#include "core/passes/operands.h"
#include "core/passes/products.h"
#include "core/passes/scans.h"
#include "core/passes/sorts.h"
#include "core/passes/tidy.h"
#include "core/runtime/library_provider.h"
#include "multi/rewrite.h"

namespace tinyshard {

struct PassContext {
  Graph graph;
  std::vector<Sharding> shardings;      // of the roots, once `shard` has run
  Planning planning = Planning::Alone;  // for `shard`
  // Left by `shard` where observers read records.
  std::vector<PlacedValue> values;
  std::vector<Movement> movements;
  // Called after each pass, where it is set.
  std::function<void(std::string_view pass, const PassContext&)> after_pass;
  std::function<bool(const LibraryCall&)> library_supports;
  // The providers of the devices, each once: they find what their libraries fuse with products.
  std::vector<const LibraryProvider*> providers;
  // Tells, where it is set, which products and convolutions stay a library's. What follows one that
  // stayed is a question of library_supports.
  std::function<bool(const LibraryCall&)> products_by_library;
  SplitLimits split;
  SmallProducts small_products;
  SortLimits sorts;
  ScanLimits scans;
  WorthCopying worth_copying;
};

using Pass = Step<PassContext>;
std::span<const Pass> passes();

// Runs them in order.
void run_passes(PassContext& context);

// Checks every node below roots: element types, values of arguments, and that nothing is left that
// the given stage has done away with. verify() throws an InternalError naming the node.
enum class Stage { Global, Local, Scheduled };
struct Misfit {
  UOp node;
  const char* why;
};
std::optional<Misfit> find_misfit(std::span<const UOp> roots, Stage stage);
void verify(std::span<const UOp> roots, Stage stage);

}  // namespace tinyshard
