// Measures what a rank has, all ranks at the same time: neighbours share memory, bus and disk in a job, too.
#pragma once
#include <string>

#include "cli/figures.h"
#include "core/runtime/communicator.h"

namespace tinyshard::cli {

// `folder` is where checkpoints would go, on each host; empty: no disk is measured. Every rank calls
// it.
Figures measure_rank(Communicator& world, const std::string& folder);
Expected expected_of_device();

}  // namespace tinyshard::cli
