// Starts itself as the ranks of a job, as `tinyshard run` starts a program: what keeps the hosts
// from meeting (names, ports, keys, versions) is then said as a job would say it. Ranks that have
// met tell who they are, compare their clocks and measure each pair, one after the other.
#include "cli/doctor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <sys/utsname.h>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "cli/run.h"
#include "launch/command_line.h"
#include "launch/hosts.h"
#include "transport/world.h"

namespace tinyshard::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBytes = 16 << 20;  // of one message of the measured
constexpr int kMessages = 5, kPings = 50;
constexpr double kClocksDiffer = 1;  // seconds that are worth a warning
constexpr double kSlow = 0.25;       // of the median of all pairs

// A rank tells this of itself. Plain bytes between programs of one version, which their handshake
// sees to.
struct Card {
  std::array<char, 64> host = {}, kernel = {};
  std::array<char, 32> version = {};
  int32_t cores = 0, unused = 0;
};

struct Pair {
  double latency_us = 0, gb_per_s = 0;
  double clock_s = 0, clock_error_s = 0;  // of the second rank, seen by the first
};

double wall_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Card own_card() {
  Card card;
  own_host_name().copy(card.host.data(), card.host.size() - 1);
  utsname system{};
  if (uname(&system) == 0) std::string(system.release).copy(card.kernel.data(), 63);
  std::string(TINYSHARD_VERSION).copy(card.version.data(), card.version.size() - 1);
  card.cores = int(std::thread::hardware_concurrency());
  return card;
}

// By ranks a < b; the others do nothing meanwhile.
Pair measure(Communicator& world, int a, int b) {
  const int own = world.rank();
  Pair pair;
  world.barrier().wait();
  if (own != a && own != b) return pair;
  std::vector<char> data(kBytes);
  const auto message = [&](int from, int to, void* at, size_t bytes) {
    if (own == from) world.send({at}, bytes, DType::U8, from, to).wait();
    if (own == to) world.recv({at}, bytes, DType::U8, from, to).wait();
  };
  double best_s = 1e9;
  for (int i = 0; i < kPings; ++i) {
    const auto begun = Clock::now();
    double theirs = 0;
    message(a, b, data.data(), 1);
    if (own == b) theirs = wall_s();
    message(b, a, &theirs, sizeof(theirs));
    const double took = std::chrono::duration<double>(Clock::now() - begun).count();
    if (own != a || took >= best_s) continue;
    best_s = took;
    pair.clock_s = theirs - (wall_s() - took / 2);
    pair.clock_error_s = took / 2;
  }
  pair.latency_us = best_s / 2 * 1e6;
  double fastest_s = 1e9;
  for (int i = 0; i < kMessages; ++i) {
    const auto begun = Clock::now();
    message(a, b, data.data(), kBytes);
    message(b, a, data.data(), 1);
    fastest_s = std::min(fastest_s, std::chrono::duration<double>(Clock::now() - begun).count());
  }
  pair.gb_per_s = double(kBytes) / fastest_s * 1e-9;
  return pair;
}

template <class T>
std::vector<T> gather(Communicator& world, const std::vector<T>& own) {
  std::vector<T> all(own.size() * size_t(world.size()));
  const CommBuffer send{const_cast<T*>(own.data())}, recv{all.data()};
  world.all_gather({&send, 1}, {&recv, 1}, own.size() * sizeof(T), DType::U8).wait();
  return all;
}

void report(const std::vector<Card>& cards, const std::vector<Pair>& pairs, size_t n) {
  fmt::print("{:>4}  {:<24} {:<10} {:<28} {:>5}  {}\n", "rank", "host", "tinyshard", "kernel",
             "cores", "clock against rank 0");
  std::string warnings;
  for (size_t rank = 0; rank < n; ++rank) {
    const Card& card = cards[rank];
    const Pair& first = pairs[rank];
    fmt::print(
        "{:>4}  {:<24} {:<10} {:<28} {:>5}  {}\n", rank, card.host.data(), card.version.data(),
        card.kernel.data(), card.cores,
        rank == 0 ? "" : fmt::format("{:+.6f} s, to {:.6f} s", first.clock_s, first.clock_error_s));
    if (std::abs(first.clock_s) > kClocksDiffer)
      warnings += fmt::format(
          "the clock of rank {} on {} differs by {:.1f} s: blame and logs of "
          "several hosts compare times\n",
          rank, card.host.data(), first.clock_s);
    if (std::string_view(card.version.data()) != cards[0].version.data())
      warnings += fmt::format("rank {} on {} has tinyshard {}, rank 0 has {}\n", rank,
                              card.host.data(), card.version.data(), cards[0].version.data());
  }
  std::vector<double> rates;
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) rates.push_back(pairs[a * n + b].gb_per_s);
  }
  std::ranges::sort(rates);
  if (n > 1) fmt::print("{:>12} {:>14} {:>10}\n", "ranks", "latency us", "GB/s");
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      const Pair& pair = pairs[a * n + b];
      fmt::print("{:>12} {:>14.1f} {:>10.2f}\n", fmt::format("{} <-> {}", a, b), pair.latency_us,
                 pair.gb_per_s);
      if (pair.gb_per_s < kSlow * rates[rates.size() / 2])
        warnings += fmt::format("ranks {} and {} have {:.2f} GB/s, the median is {:.2f}\n", a, b,
                                pair.gb_per_s, rates[rates.size() / 2]);
    }
  }
  fmt::print("{}{} rank{} can talk to each other\n", warnings, n, n == 1 ? "" : "s");
}

void examine() {
  CommOptions options;
  options.timeout = std::chrono::seconds(60);
  auto world = connect_world(1, options);
  const auto n = size_t(world->size());
  const std::vector<Card> cards = gather(*world, std::vector<Card>{own_card()});
  std::vector<Pair> own(n);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      const Pair pair = measure(*world, int(a), int(b));
      if (size_t(world->rank()) == a) own[b] = pair;
    }
  }
  const std::vector<Pair> pairs = gather(*world, own);
  if (world->rank() == 0) report(cards, pairs, n);
}

}  // namespace

void add_doctor(CLI::App& app, int& status) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor",
      "whether hosts can talk: names, ports, keys, versions, clocks, bandwidth between all pairs");
  command->add_option("-n,--ranks", options->ranks, "Ranks; without it all places of the hosts")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--hosts", options->hosts, "Hosts and their places, such as a,b:2");
  command->add_option("--hostfile", options->host_file, "The same from a file, a host a line");
  command->add_option("--bind", options->bind, "Address to listen at, as of tinyshard run");
  command->add_option("--rsh", options->remote_shell, "Command that runs another one on a host")
      ->capture_default_str();
  command->callback([options, &status] {
    options->no_prefix = true;
    status = run(*options, {own_path(), "doctor-rank"});
    if (status != 0) std::cerr << "tinyshard doctor: these hosts cannot run a job together\n";
  });
  CLI::App* rank = app.add_subcommand("doctor-rank", "a rank of the examination");
  rank->group("");  // of no use to people
  rank->callback([] { examine(); });
}

}  // namespace tinyshard::cli
