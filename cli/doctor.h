// `tinyshard doctor`: whether hosts can run a job together.
#pragma once
#include <CLI/App.hpp>

namespace tinyshard::cli {

void add_doctor(CLI::App& app, int& status);

}  // namespace tinyshard::cli
