// A share of this host's cores for each of its ranks.
#pragma once
#include <vector>

#include <hwloc.h>

namespace tinyshard {

// Shares of the cores that this process may use; unusable where there are fewer cores than ranks.
class CoreShares {
 public:
  explicit CoreShares(int ranks);
  ~CoreShares();
  CoreShares(const CoreShares&) = delete;
  CoreShares& operator=(const CoreShares&) = delete;

  bool usable() const { return !sets_.empty(); }
  int cores(int rank) const;
  void take(int rank) const;  // binds this process: a request, which a host may not allow

 private:
  hwloc_topology_t topology_ = nullptr;
  std::vector<hwloc_cpuset_t> sets_;
};

}  // namespace tinyshard
