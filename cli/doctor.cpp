// Starts itself as the ranks of a job, as `tinyshard run` starts a program: what keeps the hosts
// from meeting (names, ports, keys, versions) is then said as a job would say it. Ranks that have
// met tell who they are, compare their clocks and measure each pair, one after the other; then each
// measures what it has, beside the others (measure_rank.h).
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

#include "cli/figures.h"
#include "cli/measure_rank.h"
#include "cli/run.h"
#include "core/exec/context.h"
#include "launch/command_line.h"
#include "launch/hosts.h"
#include "report/jsonl.h"
#include "tinyshard/tinyshard.h"

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

// All that rank 0 tells.
struct Findings {
  std::vector<Card> cards;
  std::vector<Pair> pairs;  // of ranks a < b, at a * n + b
  std::vector<Figures> figures;
  Expected expected;
  std::vector<std::string> warnings;
  double seconds = 0;
  size_t ranks() const { return cards.size(); }
};

std::string place_of(const Findings& f, size_t rank) {
  return fmt::format("rank {} on {}", rank, f.cards[rank].host.data());
}

void warn_of_hosts(Findings& f) {
  for (size_t rank = 0; rank < f.ranks(); ++rank) {
    const Card& card = f.cards[rank];
    const double clock_s = f.pairs[rank].clock_s;
    if (std::abs(clock_s) > kClocksDiffer)
      f.warnings.push_back(fmt::format(
          "the clock of {} differs by {:.1f} s: blame and logs of several hosts compare times",
          place_of(f, rank), clock_s));
    if (std::string_view(card.version.data()) != f.cards[0].version.data())
      f.warnings.push_back(fmt::format("{} has tinyshard {}, rank 0 has {}", place_of(f, rank),
                                       card.version.data(), f.cards[0].version.data()));
  }
}

void warn_of_links(Findings& f) {
  const size_t n = f.ranks();
  std::vector<double> rates;
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) rates.push_back(f.pairs[a * n + b].gb_per_s);
  }
  std::ranges::sort(rates);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      const Pair& pair = f.pairs[a * n + b];
      if (pair.gb_per_s >= kSlow * rates[rates.size() / 2]) continue;
      f.warnings.push_back(fmt::format("ranks {} and {} have {:.2f} GB/s, the median is {:.2f}", a,
                                       b, pair.gb_per_s, rates[rates.size() / 2]));
    }
  }
}

void warn_of_figures(Findings& f) {
  std::vector<std::string> names;
  for (size_t rank = 0; rank < f.ranks(); ++rank) names.push_back(place_of(f, rank));
  for (std::string& odd : odd_ones(f.figures, names)) f.warnings.push_back(std::move(odd));
  for (size_t rank = 0; rank < f.figures.size(); ++rank) {
    const Figures& own = f.figures[rank];
    if (own.disk_error[0] != 0)
      f.warnings.push_back(
          fmt::format("{} cannot write to the folder: {}", names[rank], own.disk_error.data()));
    const bool first_of_host =
        std::ranges::find(f.cards, std::string_view(f.cards[rank].host.data()), [](const Card& c) {
          return std::string_view(c.host.data());
        }) == f.cards.begin() + ptrdiff_t(rank);
    if (own.errors > 0 && first_of_host)
      f.warnings.push_back(
          fmt::format("{} errors of memory or network cards were counted on {} since it started",
                      own.errors, f.cards[rank].host.data()));
  }
}

void print_hosts(const Findings& f) {
  fmt::print("{:>4}  {:<24} {:<10} {:<28} {:>5}  {}\n", "rank", "host", "tinyshard", "kernel",
             "cores", "clock against rank 0");
  for (size_t rank = 0; rank < f.ranks(); ++rank) {
    const Card& card = f.cards[rank];
    const Pair& first = f.pairs[rank];
    fmt::print(
        "{:>4}  {:<24} {:<10} {:<28} {:>5}  {}\n", rank, card.host.data(), card.version.data(),
        card.kernel.data(), card.cores,
        rank == 0 ? "" : fmt::format("{:+.6f} s, to {:.6f} s", first.clock_s, first.clock_error_s));
  }
  if (f.ranks() > 1) fmt::print("{:>12} {:>14} {:>10}\n", "ranks", "latency us", "GB/s");
  for (size_t a = 0; a < f.ranks(); ++a) {
    for (size_t b = a + 1; b < f.ranks(); ++b) {
      const Pair& pair = f.pairs[a * f.ranks() + b];
      fmt::print("{:>12} {:>14.1f} {:>10.2f}\n", fmt::format("{} <-> {}", a, b), pair.latency_us,
                 pair.gb_per_s);
    }
  }
}

// A column for each rank, a row for each figure that somebody has.
void print_figures(const Findings& f) {
  if (f.figures.empty()) return;
  fmt::print("{:<20}", "");
  for (size_t rank = 0; rank < f.ranks(); ++rank)
    fmt::print(" {:>12}", fmt::format("{} {}", rank, f.figures[rank].device.data()));
  fmt::print("\n");
  for (const Measure& measure : measures()) {
    if (std::ranges::none_of(f.figures, [&](const Figures& own) { return own.*measure.value > 0; }))
      continue;
    fmt::print("{:<20}", fmt::format("{}, {}", measure.name, measure.unit));
    for (const Figures& own : f.figures) fmt::print(" {:>12.4g}", own.*measure.value);
    const double known = measure.value == &Figures::memory    ? f.expected.memory
                         : measure.value == &Figures::product ? f.expected.product
                                                              : 0;
    if (known > 0) fmt::print("   plans count on {:.4g}", known);
    fmt::print("\n");
  }
}

void print_text(const Findings& f) {
  print_hosts(f);
  print_figures(f);
  for (const std::string& warning : f.warnings) fmt::print("{}\n", warning);
  fmt::print("{} rank{} can talk to each other; it took {:.1f} s\n", f.ranks(),
             f.ranks() == 1 ? "" : "s", f.seconds);
}

// Prints one object: "ranks", "pairs", "warnings", "seconds".
void print_json(const Findings& f) {
  std::string ranks, pairs, warnings;
  for (size_t rank = 0; rank < f.ranks(); ++rank) {
    const Card& card = f.cards[rank];
    ranks += fmt::format(
        R"({}{{"rank": {}, "host": {}, "version": {}, "kernel": {}, "cores": {}, "clock_s": {})",
        rank == 0 ? "" : ", ", rank, JsonValue(card.host.data()).text(),
        JsonValue(card.version.data()).text(), JsonValue(card.kernel.data()).text(), card.cores,
        JsonValue(f.pairs[rank].clock_s).text());
    if (!f.figures.empty()) {
      const Figures& own = f.figures[rank];
      ranks += fmt::format(R"(, "device": {}, "errors": {})", JsonValue(own.device.data()).text(),
                           own.errors);
      for (const Measure& measure : measures())
        ranks += fmt::format(R"(, "{} {}": {})", measure.name, measure.unit,
                             JsonValue(own.*measure.value).text());
    }
    ranks += "}";
  }
  for (size_t a = 0; a < f.ranks(); ++a) {
    for (size_t b = a + 1; b < f.ranks(); ++b) {
      const Pair& pair = f.pairs[a * f.ranks() + b];
      pairs += fmt::format(R"({}{{"ranks": [{}, {}], "latency us": {}, "GB/s": {}}})",
                           pairs.empty() ? "" : ", ", a, b, JsonValue(pair.latency_us).text(),
                           JsonValue(pair.gb_per_s).text());
    }
  }
  for (const std::string& warning : f.warnings)
    warnings += (warnings.empty() ? "" : ", ") + JsonValue(warning).text();
  fmt::print(R"({{"ranks": [{}], "pairs": [{}], "warnings": [{}], "seconds": {}}})", ranks, pairs,
             warnings, JsonValue(f.seconds).text());
  fmt::print("\n");
}

struct ExamineOptions {
  bool json = false, links_only = false;
  std::string folder;
};

void examine(const ExamineOptions& options) {
  const auto begun = Clock::now();
  Communicator& world = Context::get().world();
  const auto n = size_t(world.size());
  Findings found;
  found.cards = gather(world, std::vector<Card>{own_card()});
  std::vector<Pair> own(n);
  for (size_t a = 0; a < n; ++a) {
    for (size_t b = a + 1; b < n; ++b) {
      const Pair pair = measure(world, int(a), int(b));
      if (size_t(world.rank()) == a) own[b] = pair;
    }
  }
  found.pairs = gather(world, own);
  if (!options.links_only)
    found.figures = gather(world, std::vector<Figures>{measure_rank(world, options.folder)});
  if (world.rank() != 0) return;
  found.expected = expected_of_device();
  found.seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  warn_of_hosts(found);
  warn_of_links(found);
  if (!options.links_only) warn_of_figures(found);
  options.json ? print_json(found) : print_text(found);
}

}  // namespace

void add_doctor(CLI::App& app, int& status) {
  auto options = std::make_shared<RunOptions>();
  auto what = std::make_shared<ExamineOptions>();
  what->folder = ".";
  CLI::App* command = app.add_subcommand(
      "doctor",
      "tests hosts before a job does: names, ports, keys, versions, clocks; latency and bandwidth "
      "of "
      "all pairs; each rank's memory, large products, copies to and from its device, sums of 8 KB "
      "and "
      "256 MB over all ranks, the disk of checkpoints, errors that drivers counted. Names who is "
      "slower than its neighbours");
  command->add_option("-n,--ranks", options->ranks, "Ranks; without it all places of the hosts")
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--hosts", options->hosts, "Hosts and their places, such as a,b:2");
  command->add_option("--hostfile", options->host_file, "The same from a file, a host a line");
  command->add_option("--bind", options->bind, "Address to listen at, as of tinyshard run");
  command->add_option("--rsh", options->remote_shell, "Command that runs another one on a host")
      ->capture_default_str();
  const auto add_what = [what](CLI::App* to) {
    to->add_flag("--json", what->json, "One JSON object instead of a table");
    to->add_flag("--links-only", what->links_only, "Measures the pairs of ranks and nothing else");
    to->add_option("--folder", what->folder, "Where checkpoints will go; empty: test no disk")
        ->capture_default_str();
  };
  add_what(command);
  command->callback([options, what, &status] {
    options->no_prefix = true;
    constexpr double kPatienceS = 60;
    options->timeout_s = kPatienceS;
    std::vector<std::string> words{own_path(), "doctor-rank", "--folder", what->folder};
    if (what->json) words.emplace_back("--json");
    if (what->links_only) words.emplace_back("--links-only");
    status = run(*options, words);
    if (status != 0) std::cerr << "tinyshard doctor: these hosts cannot run a job together\n";
  });
  CLI::App* rank = app.add_subcommand("doctor-rank", "a rank of the examination");
  rank->group("");  // of no use to people
  add_what(rank);
  rank->callback([what] { examine(*what); });
}

}  // namespace tinyshard::cli
