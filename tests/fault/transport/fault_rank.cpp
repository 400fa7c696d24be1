// A rank of a job that something is done to: joins, works until a call fails, and prints what it
// was told.
//   fault_rank <scenario> <timeout in seconds>
// The scenario "diverge:<rank>:<call>:<how>:<ms>" makes that rank leave the path of the others at
// that call: it runs an extra call, leaves it out, or runs one of another op, type or count. But for
// the next rank the others come so much later, and hear of it before they make a call that shows
// on whose path they are.
// With "_small" behind a scenario the messages are small, for hosts between which little goes through.
// In the scenarios that begin with "tell" it ends as programs do, by tell_failure, and prints no
// report.
// Lines (rank first, so that the test can tell them apart):
//   <rank> ready <pid>                                          all ranks have met
//   <rank> report <peer> <steady clock, ns> <elapsed ms of the call> <again ms> <error text>   and
//   exits with 3
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "launch/environment.h"
#include "launch/failure.h"
#include "tests/fault/transport/rank.h"
#include "transport/world.h"

using namespace tinyshard;
using namespace tinyshard::test;

namespace {

struct Diverging {
  int rank = -1, call = -1, others_pause_ms = 0;
  std::string how;
  explicit Diverging(const std::string& scenario) {
    std::stringstream words(scenario);
    std::string word;
    std::getline(words, word, ':');
    if (word != "diverge") return;
    std::getline(words, word, ':');
    rank = std::stoi(word);
    std::getline(words, word, ':');
    call = std::stoi(word);
    std::getline(words, how, ':');
    if (std::getline(words, word)) others_pause_ms = std::stoi(word);
  }
  bool pauses(int other) const { return other != rank && other != rank + 1; }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const Diverging diverging(argv[1]);
  std::string_view scenario = argv[1];
  constexpr std::string_view kSmall = "_small";
  const bool small = scenario.ends_with(kSmall);
  if (small) scenario.remove_suffix(kSmall.size());
  const int rank = read_launch_environment().rank;
  const std::string prefix = std::to_string(rank) + " ";
  CommOptions options;
  options.timeout = std::chrono::milliseconds(static_cast<int>(std::stod(argv[2]) * 1000));

  Clock::time_point begun = Clock::now();
  std::unique_ptr<Communicator> world;
  std::vector<float> values(small ? 3000 : 300000, 1.0f);
  const CommBuffer buffer{values.data()};
  int calls = 0;
  try {
    if (scenario == "late" && rank == 1) {
      print_line(prefix + "ready " + std::to_string(getpid()));
      std::this_thread::sleep_for(std::chrono::seconds(30));
    }
    if (scenario == "tell_mistake") throw UserError("no such corpus");
    world = connect_world(1, options);
    world->barrier().wait();
    print_line(prefix + "ready " + std::to_string(getpid()));
    // Rank 0 waits for rank 1, which computes; nobody waits for rank 2.
    if (scenario == "chain") {
      begun = Clock::now();
      if (rank == 0) world->recv(buffer, 1, DType::F32, 1, 0).wait();
      std::this_thread::sleep_for(std::chrono::seconds(15));
    }
    while (true) {
      begun = Clock::now();
      if (rank == 1 && calls == 3) {
        if (scenario == "exit_0") std::exit(0);
        if (scenario == "return") return 0;
        if (scenario == "exit_1") std::exit(1);
        if (scenario == "throw") {
          const auto owned = std::exchange(world, nullptr);
          throw UserError("no such corpus");
        }
        if (scenario == "abort") {
          world->abort("no such corpus");
          std::this_thread::sleep_for(std::chrono::seconds(1));
          return 4;
        }
      }
      if (rank == diverging.rank && calls == diverging.call) {
        const CommBuffer all[] = {buffer};
        if (diverging.how == "extra") world->all_reduce(all, all, 100, DType::F32).wait();
        if (diverging.how == "missing") ++calls;
        if (diverging.how == "op") world->broadcast(all, all, 4, DType::F32, 0).wait();
        if (diverging.how == "type") world->all_reduce(all, all, 8, DType::I16).wait();
        if (diverging.how == "count") world->all_reduce(all, all, 5, DType::F32).wait();
      }
      if (calls == diverging.call && diverging.pauses(rank))
        std::this_thread::sleep_for(std::chrono::milliseconds(diverging.others_pause_ms));
      world
          ->all_reduce({&buffer, 1}, {&buffer, 1}, ++calls % 2 == 0 ? 4 : values.size(), DType::F32,
                       ReduceOp::Max)
          .wait();
      if (calls < 20) continue;
      if (scenario == "done") return 0;
      // Rank 1 saves something, without a word to the others.
      if (scenario == "save" && rank == 1) std::this_thread::sleep_for(std::chrono::seconds(3));
      if (scenario == "save") return 0;
    }
  } catch (const CommError& error) {
    if (scenario.starts_with("tell")) return tell_failure("fault_rank", error);
    const double elapsed = milliseconds_since(begun);
    const auto at = Clock::now();
    double again = -1;
    if (world) {
      const auto retry = Clock::now();
      try {
        world->barrier().wait();
      } catch (const CommError&) {
        again = milliseconds_since(retry);
      }
    }
    print_report(rank, error, elapsed, at, again);
    // The first rank to leave makes mpirun end the others: give them the time to report, too.
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return 3;
  } catch (const UserError& error) {
    if (scenario.starts_with("tell")) return tell_failure("fault_rank", error);
    print_line(prefix + "user_error " + error.what());
    std::this_thread::sleep_for(std::chrono::milliseconds(400));
    return 5;
  }
}
