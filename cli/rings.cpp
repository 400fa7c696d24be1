// `tinyshard blame` and `ps`: both read the rings that the ranks of a job write (transport/recorder),
// and print one sentence or one line a rank.
#include "cli/rings.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "transport/recorder/blame.h"
#include "transport/recorder/ring_reader.h"

namespace tinyshard::cli {
namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

recorder::JobRings rings_in(const std::string& folder) {
  recorder::JobRings found = recorder::read_rings(folder);
  if (!found.rings.empty()) return found;
  std::string why = fmt::format("{} has no ring of a job", folder);
  for (const std::string& problem : found.problems) why += "; " + problem;
  throw UserError(why);
}

// Where the processes of this user keep rings: TS_RECORD in their environments.
std::set<std::string> folders_of_processes() {
  std::set<std::string> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string number = entry.path().filename().string();
    if (number.find_first_not_of("0123456789") != std::string::npos) continue;
    // Nothing can be read of other users' processes, and of those that have ended meanwhile.
    std::ifstream environment(entry.path() / "environ");
    for (std::string variable; std::getline(environment, variable, '\0');) {
      if (variable.starts_with("TS_RECORD=")) folders.emplace(variable.substr(10));
    }
  }
  return folders;
}

std::string problems_of(const recorder::JobRings& found) {
  std::string text;
  for (const std::string& problem : found.problems) text += problem + "\n";
  return text;
}

std::string ps_report(const std::string& folder) {
  const recorder::JobRings found = rings_in(folder);
  return what_ranks_do(found.rings, now_ns()) + problems_of(found);
}

int ps(const std::string& folder) {
  if (!folder.empty()) {
    std::cout << ps_report(folder);
    return EXIT_SUCCESS;
  }
  int shown = 0;
  for (const std::string& of : folders_of_processes()) {
    try {
      const std::string text = ps_report(of);
      std::cout << of << '\n' << text;
      ++shown;
    } catch (const UserError& error) {
      std::cerr << "tinyshard ps: " << error.what() << '\n';
    }
  }
  if (shown > 0) return EXIT_SUCCESS;
  std::cerr << "tinyshard ps: no process of yours keeps a ring: start the job with TS_RECORD=DIR "
               "or tinyshard run --log-dir DIR\n";
  return EXIT_FAILURE;
}

}  // namespace

std::string blame_report(const std::string& folder) {
  const recorder::JobRings found = rings_in(folder);
  return recorder::tell(found, now_ns()) + problems_of(found);
}

void add_rings(CLI::App& app, int& status) {
  auto folder = std::make_shared<std::string>();
  CLI::App* blame = app.add_subcommand(
      "blame", "says who is gone, stopped, late or diverged, from the rings of a job");
  blame->add_option("folder", *folder, "What --log-dir or TS_RECORD named")->required();
  blame->callback([folder] { std::cout << blame_report(*folder); });
  CLI::App* list = app.add_subcommand("ps", "what each rank is doing, from the rings of jobs");
  list->add_option("folder", *folder, "Without it: all jobs of this user on this host");
  list->callback([folder, &status] { status = ps(*folder); });
}

}  // namespace tinyshard::cli
