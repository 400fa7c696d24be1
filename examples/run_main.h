// How a program with a command line ends; for the examples and the benchmarks.
#pragma once
#include <functional>
#include <limits>
#include <string>
#include <tinyshard/tinyshard.h>

#include <CLI/CLI.hpp>

namespace training {

using tinyshard::tell_failure;

// The sentence that says what is wrong with a command line. The parser names both bounds of a
// number that is too small; the upper one, the largest double, has 309 digits and is left out.
inline std::string command_line_mistake(const CLI::App*, const CLI::Error& e) {
  std::string text = e.what();
  const std::string largest = std::to_string(std::numeric_limits<double>::max());
  if (const size_t at = text.find(" not in range"); text.find(largest) != std::string::npos)
    text = text.substr(0, at) + " is not what it takes, INT or FLOAT: POSITIVE or NONNEGATIVE";
  return text + "\nRun with --help for more information.\n";
}

// Parses the command line and runs: the exit status is 0, 1 after a mistake that is told in one
// line, 2 after a command line that makes no sense, 143 after a SIGTERM that let it save.
inline int run_main(const char* name, CLI::App& app, int argc, char** argv,
                    const std::function<void()>& run) {
  app.failure_message(command_line_mistake);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    run();
    return tinyshard::termination_status();
  } catch (const std::exception& e) {
    return tell_failure(name, e);
  }
}

}  // namespace training
