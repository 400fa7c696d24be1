// `tinyshard sbatch`: a batch script for Slurm.
#pragma once
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace tinyshard::cli {

void add_sbatch(CLI::App& app, std::vector<std::string> program);

}  // namespace tinyshard::cli
