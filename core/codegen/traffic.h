// How much of its parameters a kernel touches, for the summary of a plan.
#pragma once
#include <cstdint>
#include <vector>

#include "core/codegen/kernel.h"

namespace tinyshard {

struct ParamTraffic {
  int64_t bytes_read = 0, bytes_written = 0;
};

// Returns the bytes of distinct elements that are read and written of each parameter, by slot. They
// are upper estimates, and at most all of what the kernel may touch: a row that is looked up counts
// as one row, and where a mask admits one of several rows, one counts.
std::vector<ParamTraffic> traffic_of(const KernelSource& kernel);

}  // namespace tinyshard
