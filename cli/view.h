// `tinyshard view`: the page of what a program did.
#pragma once
#include <string>
#include <vector>

#include <CLI/App.hpp>

namespace tinyshard::cli {

// Writes the page of these files; returns its path. UserError where one cannot be read or written.
std::string write_view(const std::vector<std::string>& paths, const std::string& output);

// The page of a job whose ranks wrote `file`, or file.rank0.tsview and so on: a sentence with its path, or
// why there is none.
std::string write_job_view(const std::string& file);

void add_view(CLI::App& app, int& status);

}  // namespace tinyshard::cli
