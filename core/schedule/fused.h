// Two kernels as one, as far as their expressions go. Which memory they use, and who waits for whom,
// is asked by those who fuse them (vertical.cpp).
#pragma once
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/rewrite/symbolic.h"
#include "core/schedule/lower.h"

namespace tinyshard {

struct FusedKernel {
  KernelDraft draft;
  std::vector<UOp> loads;  // all of its loads
};

// Remembers what it fused: in a deep model most pairs of kernels are those of another layer, but
// for the buffers in their slots. Threads: one thread at a time.
class KernelFuser {
 public:
  explicit KernelFuser(FreeRanges& free_ranges) : free_ranges_(free_ranges) {}

  // The consumer, which computes what it reads of the producer, and stores that too, behind its own
  // outputs. Nothing where it reads none of it, where it does not read each element once, or where
  // the kernel would be too large or would compute a fold more than once.
  std::optional<FusedKernel> into_consumer(const KernelDraft& producer,
                                           const KernelDraft& consumer);

  // `other`, with the outputs of `one` behind its own. They have the same_loops. Nothing where it
  // would be too large, store in two orders, or compute a fold more than once.
  std::optional<FusedKernel> beside(const KernelDraft& one, const KernelDraft& other);
  static bool same_loops(const KernelDraft& one, const KernelDraft& other);

 private:
  // The output of the producer that each slot of the consumer reads; -1 for none.
  using Stored = std::vector<int>;
  // The expressions of both, and how their slots are related.
  using Key = std::pair<std::vector<const Node*>, std::vector<int>>;

  std::optional<FusedKernel> fused(const KernelDraft& producer, const KernelDraft& consumer,
                                   const Stored& stored);
  std::optional<FusedKernel> settled(KernelDraft draft, bool one_order);

  FreeRanges& free_ranges_;
  Simplifier simplify_;  // of all kernels: what most of them have in common is simplified once
  std::map<Key, std::optional<FusedKernel>> known_;
  std::vector<UOp> alive_;  // nodes that keys point to
};

}  // namespace tinyshard
