// How much of its parameters a kernel touches, for the summary of a plan.
#pragma once
#include <cstdint>
#include <vector>

#include "core/codegen/kernel.h"

namespace tinyshard {

struct ParamTraffic {
  int64_t bytes_read = 0, bytes_written = 0;
};

// Of each parameter, by slot: the bytes of distinct elements that are read and written. They are upper
// estimates, of at most all of what the kernel may touch: a row that is looked up counts as one row, and
// of rows of which a mask admits one, one counts.
std::vector<ParamTraffic> traffic_of(const KernelSource& kernel);

}  // namespace tinyshard
