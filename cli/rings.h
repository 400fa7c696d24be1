// `tinyshard blame` and `tinyshard ps`: what the rings of a job say.
#pragma once
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "transport/recorder/ring_reader.h"

namespace tinyshard::cli {

// Reads the job that began last in a folder, and the others that run still; of a name only that one.
// UserError where there is none.
std::vector<recorder::JobRings> jobs_in(const std::string& folder, std::string_view name = {});

// Returns where the processes of this user keep rings: TS_RECORD in their environments.
std::set<std::string> folders_of_processes();

// A sentence, and a line for each ring that could not be used: of this job, or of the one that began last
// and of others that run. UserError where the folder has none.
std::string blame_report(const std::string& folder, std::string_view job = {});

void add_rings(CLI::App& app, int& status);

}  // namespace tinyshard::cli
