// `tinyshard blame` and `ps`: both read the rings that the ranks of a job write (transport/recorder),
// and print one sentence or one line a rank.
#include "cli/rings.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "core/base/error.h"
#include "transport/recorder/blame.h"
#include "transport/recorder/ring_reader.h"
#include "transport/text_field.h"

namespace tinyshard::cli {
namespace {

std::string_view name_of(const recorder::JobRings& job) { return text_in(job.origin().job); }

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Gives each of several jobs a heading.
template <class Tell>
std::string tell_all(const std::vector<recorder::JobRings>& jobs, Tell&& tell) {
  std::string text;
  for (const recorder::JobRings& job : jobs) {
    if (jobs.size() > 1)
      text += fmt::format("job {} ({}):\n", name_of(job), text_in(job.origin().program));
    text += tell(job);
    for (const std::string& problem : job.problems) text += problem + "\n";
  }
  return text;
}

std::string ps_report(const std::string& folder) {
  return tell_all(jobs_in(folder),
                  [](const recorder::JobRings& job) { return what_ranks_do(job.rings, now_ns()); });
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

std::vector<recorder::JobRings> jobs_in(const std::string& folder, std::string_view name) {
  std::vector<recorder::JobRings> found;
  std::string why = fmt::format("{} has no ring of {}", folder,
                                name.empty() ? "a job" : fmt::format("job {}", name));
  for (recorder::JobRings& job : recorder::read_jobs(folder)) {
    for (const std::string& problem : job.problems) why += "; " + problem;
    if (job.rings.empty() || (!name.empty() && name_of(job) != name)) continue;
    if (name.empty() && !found.empty() && !job.runs()) continue;
    found.push_back(std::move(job));
  }
  if (found.empty()) throw UserError(why);
  return found;
}

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

std::string blame_report(const std::string& folder, std::string_view job) {
  return tell_all(jobs_in(folder, job),
                  [](const recorder::JobRings& of) { return recorder::tell(of, now_ns()); });
}

void add_rings(CLI::App& app, int& status) {
  auto folder = std::make_shared<std::string>();
  CLI::App* blame = app.add_subcommand(
      "blame", "says who is gone, stopped, late or diverged, from the rings of a job");
  auto job = std::make_shared<std::string>();
  blame->add_option("folder", *folder, "What --log-dir or TS_RECORD named")->required();
  blame->add_option(
      "--job", *job,
      "Name of the job (TS_JOB); without it the one that began last in the folder, and "
      "others that still run there");
  blame->callback([folder, job] { std::cout << blame_report(*folder, *job); });
  CLI::App* list = app.add_subcommand("ps", "what each rank is doing, from the rings of jobs");
  list->add_option("folder", *folder, "Without it: all jobs of this user on this host");
  list->callback([folder, &status] { status = ps(*folder); });
}

}  // namespace tinyshard::cli
