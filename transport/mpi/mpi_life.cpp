// Start, farewells and end of MPI. Example of an early end, 3 ranks: rank 0 returns from main at
// step 7. Its exit handler sends a farewell to 1 and 2 and waits for theirs. Ranks 1 and 2, in the
// all-reduce of step 7, ask for the state of rank 0 every 10 ms, find its farewell and fail; as
// they end without a farewell, rank 0 sees their processes gone and ends without MPI_Finalize,
// which makes the launcher end what is left.
#include "transport/mpi/mpi_life.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "launch/hosts.h"
#include "launch/job_processes.h"
#include "launch/termination.h"
#include "transport/endpoint.h"
#include "transport/process_watch.h"

namespace tinyshard::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kFarewellTag = 1;  // on a communicator of its own
constexpr auto kLookEvery = milliseconds(100);

// A rank tells this of itself when all meet. Plain bytes on the wire.
struct Card {
  ProcessAddress process;
  std::array<char, 64> host = {};
};

struct Life {
  std::mutex mutex;  // of all below but the atomics
  LaunchEnvironment launch;
  bool begun = false;
  std::chrono::nanoseconds timeout{};
  std::atomic<bool> healthy{true};  // no group has failed

  std::vector<ProcessWatch> watches;   // by rank
  std::vector<std::string> processes;  // by rank, for messages
  // Where this process began MPI, and so will end it.
  MPI_Comm farewells = MPI_COMM_NULL;
  MPI_Request incoming = MPI_REQUEST_NULL;
  int incoming_rank = -1, own_rank = -1;  // the memory of messages
  const int forks = times_forked();       // a child of this process has no part in the job
  std::vector<bool> left;                 // by rank
  int left_count = 0;
};

Life& life() {
  static auto& instance = *new Life;  // used while the process exits
  return instance;
}

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
    return fmt::format("MPI error {}", code);
  return std::string(text, static_cast<size_t>(length));
}

// Polls until `done` or a reason to stop, one of which is that a rank was seen and then ended.
// Returns that reason as the end of a sentence, empty where it is done. `joining`: a rank that has
// come shows it (kJoiningThread).
template <class Done>
std::string poll_for_others(Deadline deadline, bool joining, int* culprit, Done&& done) {
  const LaunchEnvironment& launch = life().launch;
  // By rank: whether it has to be on this host; whether its process was seen; how many looks have
  // missed it since.
  std::vector<bool> expected(static_cast<size_t>(launch.size), launch.local_size == launch.size);
  std::vector<int> seen(expected.size()), missed(expected.size());
  Deadline next_look = Clock::now() + kLookEvery;
  for (int polls = 0;; ++polls) {
    if (done()) return {};
    const Deadline now = Clock::now();
    const bool over = now >= deadline || terminated();
    if (over || now >= next_look) {
      std::vector<JobProcess> processes = job_processes();
      for (int& looks : missed) ++looks;
      for (JobProcess& p : processes) {
        p.joining = p.joining || !joining;
        if (p.rank >= launch.size) continue;
        const auto rank = static_cast<size_t>(p.rank);
        expected[rank] = true;
        seen[rank] = 1;
        missed[rank] = 0;
      }
      // A process that becomes another program has no environment for a moment.
      bool lost = false;
      for (size_t rank = 0; rank < seen.size(); ++rank)
        lost = lost || (seen[rank] != 0 && missed[rank] > 1);
      if (over || lost) {
        const std::string missing = missing_ranks(processes, launch.rank, expected, culprit);
        std::string why = terminated() ? kTerminated
                          : over       ? "the other ranks did not come"
                                       : "the job cannot begin";
        return missing.empty() ? why : why + "; " + missing;
      }
      next_look = Clock::now() + kLookEvery;
    }
    if (polls > 100) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

[[noreturn]] void give_up(const char* operation, int culprit, Deadline begun, std::string detail) {
  set_unhealthy();
  throw CommError({.rank = life().launch.rank,
                   .peer = culprit,
                   .operation = operation,
                   .elapsed_s = std::chrono::duration<double>(Clock::now() - begun).count(),
                   .detail = std::move(detail)});
}

// MPI_Init waits for the other ranks and knows no deadline, so it runs on a thread that may be left
// behind.
int initialize(Deadline deadline) {
  struct Start {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    int code = MPI_SUCCESS, level = MPI_THREAD_SINGLE;
  };
  const Deadline begun = Clock::now();
  auto start = std::make_shared<Start>();
  std::thread([start] {
    pthread_setname_np(pthread_self(), kJoiningThread);
    int provided = MPI_THREAD_SINGLE;
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    std::lock_guard guard(start->mutex);
    start->code = code;
    start->level = provided;
    start->done = true;
    start->changed.notify_all();
  }).detach();
  int culprit = -1;
  const std::string problem = poll_for_others(deadline, true, &culprit, [&] {
    std::unique_lock guard(start->mutex);
    return start->changed.wait_for(guard, milliseconds(10), [&] { return start->done; });
  });
  if (!problem.empty()) give_up("MPI_Init_thread", culprit, begun, problem);
  check(start->code, -1, "MPI_Init_thread");
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  return start->level;
}

// Everyone learns where everyone runs.
void meet(Deadline deadline) {
  Life& l = life();
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  // The last element is the own card.
  auto cards = std::make_shared<std::vector<Card>>(static_cast<size_t>(ranks) + 1);
  cards->back().process = ProcessAddress::own();
  own_host_name().copy(cards->back().host.data(), cards->back().host.size() - 1);
  keep_for_good(cards);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(&cards->back(), sizeof(Card), MPI_BYTE, cards->data(), sizeof(Card),
                       MPI_BYTE, MPI_COMM_WORLD, &request),
        -1, "MPI_Iallgather");
  await(request, deadline, "connect");
  for (int peer = 0; peer < ranks; ++peer) {
    Card& card = (*cards)[static_cast<size_t>(peer)];
    card.host.back() = '\0';
    l.watches.push_back(peer == rank ? ProcessWatch() : ProcessWatch(card.process));
    l.processes.push_back(fmt::format("process {} on {}", card.process.pid, card.host.data()));
  }
  l.own_rank = rank;
  l.left.resize(static_cast<size_t>(ranks));
}

// With the mutex held.
void take_farewells() {
  Life& l = life();
  for (int done = 0; l.incoming != MPI_REQUEST_NULL;) {
    if (MPI_Test(&l.incoming, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || !done) return;
    l.left[static_cast<size_t>(l.incoming_rank)] = true;
    if (++l.left_count + 1 == static_cast<int>(l.left.size())) return;
    MPI_Irecv(&l.incoming_rank, 1, MPI_INT, MPI_ANY_SOURCE, kFarewellTag, l.farewells, &l.incoming);
  }
}

// Returns whether the others will come to their exits, too, as far as can be seen. They may take
// their time; a rank that ended otherwise never comes, a stopped one has the time of a collective.
bool others_may_come(std::vector<int>& ended_looks, Deadline begun) {
  Life& l = life();
  for (size_t peer = 0; peer < l.watches.size(); ++peer) {
    if (l.left[peer] || static_cast<int>(peer) == l.own_rank) continue;
    const PeerState state = l.watches[peer].state();
    // Its farewell may still be on its way when it is first seen to have ended.
    if (state.gone && ++ended_looks[peer] > 1) return false;
    if (state.suspect && Clock::now() - begun >= l.timeout) return false;
  }
  return true;
}

void end_at_exit(int status, void*) {
  Life& l = life();
  int finalized = 0;
  if (l.forks != times_forked()) return;
  if (status != 0 || !l.healthy || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized) return;
  std::lock_guard lock(l.mutex);
  const int ranks = static_cast<int>(l.left.size());
  std::vector<MPI_Request> sends;
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer == l.own_rank) continue;
    MPI_Isend(&l.own_rank, 1, MPI_INT, peer, kFarewellTag, l.farewells, &sends.emplace_back());
  }
  const Deadline begun = Clock::now();
  std::vector<int> ended_looks(static_cast<size_t>(ranks));
  Deadline next_look = begun + kLookEvery;
  for (int polls = 0;; ++polls) {
    take_farewells();
    int sent = 0;
    MPI_Testall(static_cast<int>(sends.size()), sends.data(), &sent, MPI_STATUSES_IGNORE);
    if (sent && l.left_count + 1 == ranks) break;
    if (terminated()) return;
    if (Clock::now() >= next_look) {
      next_look = Clock::now() + kLookEvery;
      if (!others_may_come(ended_looks, begun)) return;
    }
    if (polls > 100) std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  MPI_Finalize();
}

}  // namespace

void check(int code, int peer, const char* call) {
  if (code != MPI_SUCCESS) throw ChannelError(peer, fmt::format("{}: {}", call, error_text(code)));
}

void begin(const LaunchEnvironment& launch, std::chrono::nanoseconds timeout) {
  Life& l = life();
  std::lock_guard lock(l.mutex);
  int initialized = 0, finalized = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized)
    throw UserError("connecting to the other ranks: MPI has been finalized in this process");
  if (l.begun) return;
  l.launch = launch;
  l.timeout = timeout;
  const Deadline deadline = Clock::now() + timeout;
  if (initialized) {
    MPI_Query_thread(&level);
  } else {
    watch_for_termination();
    level = initialize(deadline);
  }
  if (level < MPI_THREAD_SERIALIZED) {
    throw UserError(fmt::format(
        "MPI was started with thread level {}, MPI_THREAD_SERIALIZED ({}) or more is needed", level,
        static_cast<int>(MPI_THREAD_SERIALIZED)));
  }
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank != launch.rank || ranks != launch.size) {
    throw UserError(fmt::format(
        "{} says that this is rank {} of {}, MPI says rank {} of {}: the launcher has to be the "
        "one of this MPI library (mpirun, or srun --mpi=pmix)",
        name(launch.launcher), launch.rank, launch.size, rank, ranks));
  }
  meet(deadline);
  if (!initialized) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(MPI_COMM_WORLD, &l.farewells, &request), -1, "MPI_Comm_idup");
    await(request, deadline, "connect");
    MPI_Comm_set_errhandler(l.farewells, MPI_ERRORS_RETURN);
    MPI_Irecv(&l.incoming_rank, 1, MPI_INT, MPI_ANY_SOURCE, kFarewellTag, l.farewells, &l.incoming);
    on_exit(end_at_exit, nullptr);
  }
  l.begun = true;
}

void await(MPI_Request& request, Deadline deadline, const char* operation) {
  const Deadline begun = Clock::now();
  int culprit = -1;
  const std::string problem = poll_for_others(deadline, false, &culprit, [&] {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), -1, operation);
    return done != 0;
  });
  if (!problem.empty()) give_up(operation, culprit, begun, problem);
}

PeerState state_of(int rank) {
  Life& l = life();
  std::lock_guard lock(l.mutex);
  take_farewells();
  PeerState state = l.watches[static_cast<size_t>(rank)].state();
  if (!l.left[static_cast<size_t>(rank)]) return state;
  state.left = true;
  state.text = "its main returned, or it called exit(0)";
  return state;
}

std::string process_of(int rank) {
  Life& l = life();
  std::lock_guard lock(l.mutex);
  return l.processes[static_cast<size_t>(rank)];
}

void set_unhealthy() { life().healthy = false; }

}  // namespace tinyshard::mpi
