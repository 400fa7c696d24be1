// The passes between the user's graph and the schedule, as one list that reads as the story. Each
// is timed (DEBUG=1), printed (DEBUG=3), verified after (SPEC=2) and can be left out by name
// (TS_DISABLE_PASSES) where that is safe.
#pragma once
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "core/passes/operands.h"
#include "core/passes/products.h"
#include "core/passes/tidy.h"
#include "core/runtime/device.h"
#include "multi/mesh.h"

namespace tinyshard {

struct PassContext {
  std::vector<UOp> roots;
  std::vector<Sharding> shardings;  // of the roots, once `shard` has run
  std::function<bool(const LibraryCall&)> library_supports;
  SplitLimits split;
  SmallProducts small_products;
  WorthCopying worth_copying;
};

struct Pass {
  std::string_view name;
  std::string_view purpose;
  bool required;
  void (*run)(PassContext&);
};
std::span<const Pass> passes();

// Runs them in order. UserError for a name in TS_DISABLE_PASSES that is unknown or required.
void run_passes(PassContext& context);

// Checks every node below roots: element types, values of arguments, and that nothing is left that
// the given stage has done away with. InternalError naming the node.
enum class Stage { Global, Local, Scheduled };
void verify(std::span<const UOp> roots, Stage stage);

}  // namespace tinyshard
