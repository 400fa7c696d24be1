// How a kernel's loads and stores lie in memory, for planning. Internal to core/codegen/gpu.
#pragma once
#include <span>
#include <vector>

#include "core/codegen/kernel_graph.h"
#include "core/codegen/plan.h"

namespace tinyshard::codegen::gpu {

class Accesses {
 public:
  static constexpr int64_t kWidest = 16;  // bytes of one thread at a time

  Accesses(const Graph& graph, const Nest& nest);

  std::span<const int> all() const { return accesses_; }
  int64_t bytes(int access) const;  // of an element
  bool contiguous(int access, int range) const;
  // Bytes of the whole kernel accessed contiguously along `range`; stores count double.
  double contiguity(int range) const;
  // True if no access takes neighbours along `range` from further apart than `most` elements.
  bool near(int range, int64_t most) const;
  // How many neighbours along `range` most of some accesses can take at once, in up to kWidest
  // bytes. `whole`: the range is made of whole vectors.
  int lanes_along(std::span<const int> accesses, int range, bool whole = true) const;
  int lanes_along(int range, bool whole = true) const {
    return lanes_along(accesses_, range, whole);
  }

 private:
  bool whole_vector(int access, int range, int lanes) const;

  const Graph& graph_;
  std::vector<int> accesses_;
  RangeSet single_ = 0;  // ranges of which one value matters
};

}  // namespace tinyshard::codegen::gpu
