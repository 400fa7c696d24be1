// fuzz_training: trains random models in several ways that must all give the same numbers, and tells what does not by the
// simplest plan that still shows it. The way to begin with is one device, eager; what an op computes is held to an
// interpreter by the fuzzer of ops (tests/fuzz).
#include <algorithm>
#include <chrono>
#include <optional>
#include <random>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tests/fuzz_training/train.h"

namespace fuzz_training {
namespace {

constexpr int kDevices = 4;

std::vector<Way> ways(const Plan& plan, int count) {
  std::mt19937_64 random(plan.seed + 17);
  std::vector<Way> list;
  for (int tries = 0; int(list.size()) < count && tries < 100; ++tries) {
    Way way;
    way.place = Place(random() % kPlaces);
    way.captured = random() % 2 == 0;
    way.seed = random() % 1000;
    std::vector<int> all;
    for (int i = 0; i < kDevices; ++i) all.push_back(i);
    if (random() % 3 == 0) std::ranges::shuffle(all, random);
    const int many = way.place == Place::One ? 1 : 2 + int(random() % 3);
    way.devices.assign(all.begin(), all.begin() + many);
    if (way.place == Place::One && !way.captured) continue;
    if (is_possible(plan, way.place, many)) list.push_back(way);
  }
  return list;
}

std::optional<std::string> judged(const Plan& plan, const Way& way) {
  try {
    const Outcome expected = train(plan, Way{});
    try {
      const std::string text = difference(expected, train(plan, way));
      return text.empty() ? std::optional<std::string>() : text;
    } catch (const std::exception& error) {
      return std::string("threw: ") + error.what();
    }
  } catch (const std::exception& error) {
    return std::string("one device threw: ") + error.what();
  }
}

void tell(Plan plan, const Way& way, std::string found, bool simplify) {
  for (bool smaller = simplify; smaller;) {
    smaller = false;
    for (const Plan& candidate : simpler(plan)) {
      if (!is_possible(candidate, way.place, int(way.devices.size()))) continue;
      auto text = judged(candidate, way);
      if (!text) continue;
      plan = candidate, found = *text, smaller = true;
      break;
    }
  }
  fmt::print("FINDING\n{}\n{}\n  {}\n", to_text(plan), to_text(way), found);
  std::fflush(stdout);
}

}  // namespace
}  // namespace fuzz_training

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  using namespace fuzz_training;
  CLI::App app("Trains random models in several ways that must agree.");
  double minutes = 1;
  uint64_t seed = std::random_device()();
  int programs = 0, each = 4, most = 10;
  bool prints = false, as_drawn = false;
  app.add_option("--minutes", minutes, "how long, where no number of programs is given")
      ->capture_default_str();
  app.add_option("--programs", programs, "how many");
  app.add_option("--seed", seed, "of the first program; the next one has the next number");
  app.add_option("--ways", each, "ways of each program, beside one device")->capture_default_str();
  app.add_option("--findings", most, "ends after so many")->capture_default_str();
  app.add_flag("--print", prints, "each program and way, before it runs");
  app.add_flag("--as-drawn", as_drawn, "findings are not made simpler");
  CLI11_PARSE(app, argc, argv);

  tinyshard::Runtime::configure({.devices = {"CPU"}, .devices_per_rank = kDevices});
  tinyshard::set_default_float(tinyshard::DType::F64);
  fmt::print("seed {}\n", seed);
  const auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  int done = 0, runs = 0, findings = 0;
  for (; programs > 0 ? done < programs : seconds() < 60 * minutes; ++done) {
    const Plan plan = draw(seed + uint64_t(done));
    for (const Way& way : ways(plan, each)) {
      if (prints) fmt::print("{}\n{}\n", to_text(plan), to_text(way)), std::fflush(stdout);
      ++runs;
      if (auto found = judged(plan, way)) {
        tell(plan, way, *found, !as_drawn);
        if (++findings >= most) break;
      }
    }
    if (findings >= most) break;
  }
  fmt::print("{} programs, {} comparisons, {} findings in {:.0f} s\n", done, runs, findings,
             seconds());
  return findings > 0 ? 1 : 0;
}
