// `tinyshard blame` and `tinyshard ps`: what the rings of a job say.
#pragma once
#include <string>
#include <string_view>

#include <CLI/App.hpp>

namespace tinyshard::cli {

// A sentence, and a line for each ring that could not be used: of this job, or of the one that began last
// and of others that run. UserError where the folder has none.
std::string blame_report(const std::string& folder, std::string_view job = {});

void add_rings(CLI::App& app, int& status);

}  // namespace tinyshard::cli
