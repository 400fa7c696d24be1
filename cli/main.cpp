// The `tinyshard` command: what this machine offers, what the environment says, what the kernel
// cache holds, and the launcher of programs. Only its doctor runs a kernel.

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/doctor.h"
#include "cli/report.h"
#include "cli/rings.h"
#include "cli/run.h"
#include "cli/sbatch.h"
#include "cli/top.h"
#include "cli/view.h"
#include "core/base/error.h"

namespace {

int run(int argc, char** argv) {
  CLI::App app("tinyshard " TINYSHARD_VERSION ": tensors over CPUs, GPUs and hosts");
  app.set_version_flag("--version", std::string("tinyshard " TINYSHARD_VERSION));
  app.require_subcommand(1);
  app.add_subcommand("devices", "devices, libraries and transports found, and why one is missing")
      ->callback([] { std::cout << tinyshard::cli::devices_report(); });
  app.add_subcommand("env", "every environment variable, its value and meaning")->callback([] {
    std::cout << tinyshard::cli::environment_report();
  });
  auto* cache =
      app.add_subcommand("cache", "the folder of compiled kernels")->require_subcommand(1);
  cache->add_subcommand("stats", "where it is and what it holds")->callback([] {
    std::cout << tinyshard::cli::cache_report();
  });
  cache->add_subcommand("clear", "deletes the compiled kernels")->callback([] {
    std::cout << tinyshard::cli::clear_cache();
  });
  int status = EXIT_SUCCESS;
  tinyshard::cli::add_rings(app, status);
  // Words behind "--" belong to the program that is started: our parser does not see them.
  const auto mark = std::find_if(argv, argv + argc,
                                 [](const char* word) { return std::string_view(word) == "--"; });
  const std::vector<std::string> program(std::min(mark + 1, argv + argc), argv + argc);
  tinyshard::cli::add_run(app, program, status);
  tinyshard::cli::add_sbatch(app, program);
  tinyshard::cli::add_doctor(app, status);
  tinyshard::cli::add_top(app, status);
  tinyshard::cli::add_view(app, status);
  try {
    app.parse(int(mark - argv), argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  } catch (const std::exception& error) {
    std::cerr << "tinyshard: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {
    return EXIT_FAILURE;  // not even the message could be made
  }
}
