// The `tinyshard` command: what this machine offers, what the environment says, what the kernel
// cache holds. It needs no model and runs no kernel.

#include <cstdlib>
#include <iostream>

#include <CLI/CLI.hpp>

#include "cli/report.h"
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? EXIT_SUCCESS : 2;
  } catch (const std::exception& error) {
    std::cerr << "tinyshard: " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (...) {
    return EXIT_FAILURE;  // not even the message could be made
  }
}
