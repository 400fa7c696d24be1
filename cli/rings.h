// `tinyshard blame` and `tinyshard ps`: what the rings of a job say.
#pragma once
#include <string>

#include <CLI/App.hpp>

namespace tinyshard::cli {

// A sentence, and a line for each ring that could not be used. UserError where the folder has none.
std::string blame_report(const std::string& folder);

void add_rings(CLI::App& app, int& status);

}  // namespace tinyshard::cli
