// Who prints, and when. Example: 4 ranks, rank 2 is killed, mpirun would end the others a second
// later. Ranks 0, 1 and 3 get a CommError within some milliseconds; rank 0 prints it and ends; 1
// and 3 find half a second later that rank 0 has gone, and say nothing. If rank 0 is the one that
// was killed, 1, 2 and 3 print at once.
#include "launch/failure.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <string>
#include <thread>

#include "core/base/error.h"
#include "core/base/termination.h"
#include "launch/environment.h"
#include "launch/job_processes.h"
#include "launch/rank_process.h"

namespace tinyshard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstRanksTurn{500};
// The launcher ends a job sooner than this after a rank has ended; one that does not, never will.
constexpr milliseconds kLaunchersTurn{3000};

// Returns whether a process of rank 0 is seen on this host.
bool first_rank_lives() {
  return std::ranges::any_of(job_processes(), [](const JobProcess& p) { return p.rank == 0; });
}

// Gives rank 0 its turn.
void wait_for_first_rank(const std::exception& error) {
  const auto* failure = dynamic_cast<const CommError*>(&error);
  if (failure != nullptr && failure->info().peer == 0) return;
  // From here on the launcher's SIGTERM ends this process as it ends others: without a word. Who was
  // told to end has nothing to wait for.
  std::signal(SIGTERM, SIG_DFL);
  if (terminated()) std::raise(SIGTERM);
  const bool lived = first_rank_lives();
  std::this_thread::sleep_for(kFirstRanksTurn);
  // Rank 0 may have told of a mistake that all ranks make before this rank came to it. Who lost a
  // peer tells it, unless rank 0 was there to do so.
  const bool told = (lived || failure == nullptr) && !first_rank_lives();
  if (told) std::this_thread::sleep_for(kLaunchersTurn);
}

// tinyshard run asks for one line: whom this rank blames, and what for (rank_group.h).
void report_to_launcher(const std::exception& error) {
  const auto* failure = dynamic_cast<const CommError*>(&error);
  std::string line = std::to_string(failure == nullptr ? -1 : failure->info().peer) + " ";
  for (const char* c = error.what(); *c != '\0'; ++c) line += *c == '\n' ? ' ' : *c;
  report_to_agent(line);
}

}  // namespace

int tell_failure(std::string_view program, const std::exception& error) noexcept {
  try {
    report_to_launcher(error);
    if (read_launch_environment().rank != 0) wait_for_first_rank(error);
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // That the environment makes no sense is the error to tell, then.
  }
  const bool no_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
  std::fprintf(stderr, "%.*s: %s\n", int(program.size()), program.data(),
               no_memory ? "this host has no memory left" : error.what());
  return 1;
}

}  // namespace tinyshard
