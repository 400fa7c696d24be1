// simulator: runs jobs that are drawn from seeds on a virtual clock, with faults, and tells which
// promises were broken. See --help; docs/notes/search.md says what is simulated.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tests/simulator/run.h"

int main(int argc, char** argv) {
  CLI::App app(
      "Runs simulated jobs: ranks on a virtual clock that compute, commit and re-form by the "
      "library's own code, while they are killed, stopped, slowed, cut off and led astray. One "
      "seed "
      "is one run. Ends with status 1 where a promise was broken, and says how to see that run "
      "again.");
  uint64_t seed = 0, runs = 0, findings = 5;
  int jobs = 1;
  bool show = false;
  app.add_option("--seed", seed, "the first seed; alone: this one run, with what happened in it")
      ->required();
  app.add_option("--runs", runs, "run this many, of consecutive seeds");
  app.add_option("--jobs", jobs, "threads")->check(CLI::Range(1, 256));
  app.add_option("--findings", findings, "end after so many broken runs")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  if (runs == 0) {
    runs = 1;
    show = true;
  }

  std::mutex mutex;
  std::atomic<uint64_t> next{0}, done{0}, broken{0}, formations{0}, errors{0}, commits{0},
      collectives{0}, finished{0}, checkpoints{0};
  const auto begin = std::chrono::steady_clock::now();
  const auto work = [&] {
    for (uint64_t i; (i = next++) < runs && broken < findings; ++done) {
      const simulator::Scenario scenario = simulator::draw(seed + i);
      const simulator::Outcome outcome = simulator::run(scenario, show);
      formations += uint64_t(outcome.formations);
      errors += uint64_t(outcome.errors);
      commits += uint64_t(outcome.commits);
      collectives += uint64_t(outcome.collectives);
      finished += uint64_t(outcome.finished);
      checkpoints += uint64_t(outcome.checkpoints);
      if (!outcome.broken.empty()) ++broken;
      if (outcome.broken.empty() && !show) continue;
      const std::lock_guard lock(mutex);
      fmt::print("{}{}", simulator::describe(scenario), outcome.log);
      for (const std::string& promise : outcome.broken) fmt::print("broken promise: {}\n", promise);
      if (!show)
        fmt::print("found in run {}; what happened in it: simulator --seed {}\n", i + 1, seed + i);
      std::fflush(stdout);
    }
  };
  std::vector<std::jthread> threads;
  for (int i = 1; i < jobs; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  fmt::print(
      "{} runs from seed {}, {} with a broken promise; {} formations, {} errors, {} collectives, "
      "{} commits, {} checkpoints, {} ranks finished; {:.1f} s, {:.0f} runs/s\n",
      done.load(), seed, broken.load(), formations.load(), errors.load(), collectives.load(),
      commits.load(), checkpoints.load(), finished.load(), seconds, double(done.load()) / seconds);
  return broken == 0 ? 0 : 1;
}
