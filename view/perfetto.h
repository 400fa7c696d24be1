// All ranks of a job in one file for ui.perfetto.dev and chrome://tracing: a process for each rank, its runs with
// their items and waits, compilations, and a counter of its memory. Clocks are those of the hosts.
#pragma once
#include <string>
#include <vector>

#include "view/view_page.h"

namespace tinyshard {

// The JSON text of these .tsview files. Lines that are none of such a file are left out.
std::string perfetto_trace(const std::vector<ViewInput>& inputs);

}  // namespace tinyshard
