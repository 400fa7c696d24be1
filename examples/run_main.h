// How a program with a command line ends; for the examples and the benchmarks.
#pragma once
#include <functional>
#include <tinyshard/tinyshard.h>

#include <CLI/CLI.hpp>

namespace training {

using tinyshard::tell_failure;

// Parses the command line and runs: the exit status is 0, 1 after a mistake that is told in one
// line, 2 after a command line that makes no sense.
inline int run_main(const char* name, CLI::App& app, int argc, char** argv,
                    const std::function<void()>& run) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    return tell_failure(name, e);
  }
}

}  // namespace training
