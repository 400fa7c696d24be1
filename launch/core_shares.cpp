// hwloc divides the tree of the machine, so that cores of one share lie together. Where cores are
// fewer than ranks, or there is one rank, nothing is bound.
#include "launch/core_shares.h"

#include <climits>

namespace tinyshard {

CoreShares::CoreShares(int ranks) {
  if (hwloc_topology_init(&topology_) != 0) return;
  if (hwloc_topology_load(topology_) != 0) return;
  hwloc_obj_t root = hwloc_get_root_obj(topology_);
  const int cores = hwloc_get_nbobjs_by_type(topology_, HWLOC_OBJ_CORE);
  if (cores < ranks || ranks < 2) return;
  sets_.resize(size_t(ranks));
  if (hwloc_distrib(topology_, &root, 1, sets_.data(), unsigned(ranks), INT_MAX, 0) != 0)
    sets_.clear();
}

CoreShares::~CoreShares() {
  for (hwloc_cpuset_t set : sets_) hwloc_bitmap_free(set);
  if (topology_ != nullptr) hwloc_topology_destroy(topology_);
}

int CoreShares::cores(int rank) const {
  return hwloc_get_nbobjs_inside_cpuset_by_type(topology_, sets_[size_t(rank)], HWLOC_OBJ_CORE);
}

void CoreShares::take(int rank) const {
  hwloc_set_cpubind(topology_, sets_[size_t(rank)], HWLOC_CPUBIND_PROCESS);
}

}  // namespace tinyshard
