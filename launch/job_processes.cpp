// A process of the job is one with the same name of a job in its environment as this process, which
// /proc shows to the same user: TS_JOB of our own launcher, else PMIX_NAMESPACE. Example: mpirun
// starts 4 ranks, rank 1 dies while the others are in MPI_Init, rank 2 is stopped and rank 3 still
// reads its data. Rank 0 finds ranks 0, 2 and 3; of these 0 has a thread that joins, 2 is in state
// T, and 3 has no such thread. So it says: "rank 1 has ended; rank 2 (process 12) is stopped; rank
// 3 (process 13) runs, but has not come".
#include "launch/job_processes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace tinyshard {
namespace {

namespace fs = std::filesystem;

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::string content;
  std::array<char, 4096> buffer;
  // A process may end while it is read, which an iterator over the file would throw.
  while (in.read(buffer.data(), buffer.size()), in.gcount() > 0)
    content.append(buffer.data(), size_t(in.gcount()));
  return content;
}

std::optional<int> number(std::string_view digits) {
  int value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return value;
}

// The value of a variable in NAME=value texts that end with a zero byte each.
std::optional<std::string_view> variable(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
    if (entry.starts_with(name) && entry.size() > name.size() && entry[name.size()] == '=')
      return entry.substr(name.size() + 1);
  }
  return std::nullopt;
}

// The letter after "pid (name) ": names may hold anything, so it is looked for from the end.
char state_letter(const fs::path& process) {
  const std::string stat = content_of(process / "stat");
  const size_t name_end = stat.rfind(')');
  return name_end != std::string::npos && name_end + 2 < stat.size() ? stat[name_end + 2] : 'X';
}

bool has_joining_thread(const fs::path& process) {
  std::error_code error;
  for (fs::directory_iterator it(process / "task", error), end; !error && it != end;
       it.increment(error)) {
    if (content_of(it->path() / "comm") == std::string(kJoiningThread) + "\n") return true;
  }
  return false;
}

}  // namespace

std::vector<JobProcess> job_processes() {
  std::vector<JobProcess> found;
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0' ? value : nullptr;
  };
  const bool own = set("TS_JOB") != nullptr;
  const char *job_name = own ? "TS_JOB" : "PMIX_NAMESPACE",
             *rank_name = own ? "TS_RANK" : "PMIX_RANK";
  const char* job = set(job_name);
  if (job == nullptr) return found;
  std::error_code error;
  for (fs::directory_iterator it("/proc", error), end; !error && it != end; it.increment(error)) {
    const std::optional<int> pid = number(it->path().filename().native());
    if (!pid) continue;
    const std::string environment = content_of(it->path() / "environ");
    if (variable(environment, job_name) != job) continue;
    const std::optional<int> rank = number(variable(environment, rank_name).value_or(""));
    const char state = state_letter(it->path());
    if (!rank || state == 'Z' || state == 'X') continue;
    found.push_back({.rank = *rank,
                     .pid = *pid,
                     .stopped = state == 'T' || state == 't',
                     .joining = has_joining_thread(it->path())});
  }
  std::ranges::sort(found, {}, [](const JobProcess& p) { return std::pair(p.rank, p.pid); });
  return found;
}

std::string missing_ranks(const std::vector<JobProcess>& processes, int own_rank,
                          const std::vector<bool>& expected, int* culprit) {
  enum Kind { Ended, Stopped, Absent, kKinds };
  std::array<int, kKinds> first = {-1, -1, -1};
  std::string text;
  auto add = [&](Kind kind, int rank, const std::string& what) {
    if (first[kind] < 0) first[kind] = rank;
    if (!text.empty()) text += "; ";
    text += what;
  };
  *culprit = -1;
  // Where not even this process is found, the table shows nothing.
  if (std::ranges::none_of(processes, [&](const auto& p) { return p.rank == own_rank; })) return {};
  for (int rank = 0; rank < int(expected.size()); ++rank) {
    if (rank == own_rank) continue;
    const auto own = std::ranges::equal_range(processes, rank, {}, &JobProcess::rank);
    if (own.empty()) {
      if (expected[size_t(rank)]) add(Ended, rank, fmt::format("rank {} has ended", rank));
      continue;
    }
    const auto stopped = std::ranges::find_if(own, &JobProcess::stopped);
    if (stopped != own.end()) {
      add(Stopped, rank, fmt::format("rank {} (process {}) is stopped", rank, stopped->pid));
    } else if (std::ranges::none_of(own, &JobProcess::joining)) {
      add(Absent, rank,
          fmt::format("rank {} (process {}) runs, but has not come", rank, own.back().pid));
    }
  }
  for (int rank : first) {
    if (*culprit < 0) *culprit = rank;
  }
  return text;
}

}  // namespace tinyshard
