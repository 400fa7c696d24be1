// Times a step of many small items alone, with a file for `tinyshard view`, and with a trace, by turns:
//   observer_bench --layers 130 --width 16 --folder /tmp
// A layer is a product and an activation that is summed over rows. What a step costs beside its items is
// told per item: the difference of medians over the number of items.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "report/trace.h"
#include "report/view_file.h"

using namespace tinyshard;

namespace {

struct Arguments {
  int layers = 130, steps = 20, turns = 15;
  int64_t width = 16;
  std::string folder = ".";
};

struct Case {
  std::string name;
  std::vector<double> us = {};
};

// Runs the steps of one turn: an observer's first runs tell the plan, and are not of interest.
void take_turn(Case& of, const Arguments& a, Jit<std::function<Tensor(const Tensor&)>>& step,
               const Tensor& x) {
  std::unique_ptr<ViewFile> view;
  std::unique_ptr<TraceFile> trace;
  const std::filesystem::path folder = a.folder;
  if (of.name == "view") view = std::make_unique<ViewFile>((folder / "bench.tsview").string());
  if (of.name == "trace") trace = std::make_unique<TraceFile>((folder / "bench.json").string());
  for (int i = 0; i < a.steps + 5; ++i) {
    const auto begun = bench::Clock::now();
    step(x);
    if (i >= 5) of.us.push_back(bench::us_since(begun));
  }
}

void measure(const Arguments& a) {
  Tensor::manual_seed(1);
  std::vector<Tensor> weights;
  for (int i = 0; i < a.layers; ++i)
    weights.push_back((Tensor::rand({a.width, a.width}) / double(a.width)).realize());
  Jit<std::function<Tensor(const Tensor&)>> step{[&](const Tensor& x) {
    Tensor y = x;
    for (const Tensor& w : weights) y = y.matmul(w).softmax();
    return y;
  }};
  const Tensor x = Tensor::rand({a.width, a.width}).realize();
  step(x);
  GlobalCounters::reset();
  step(x);
  const GlobalCounters ran = GlobalCounters::now();
  const int64_t items = ran.kernels + ran.library_calls;
  std::vector<Case> cases{{"alone"}, {"view"}, {"trace"}};
  for (int turn = 0; turn < a.turns; ++turn) {
    for (Case& c : cases) take_turn(c, a, step, x);
  }
  std::vector<double> medians;
  for (Case& c : cases) {
    bench::print_row(c.name, c.us);
    std::ranges::sort(c.us);
    medians.push_back(c.us[c.us.size() / 2]);
  }
  for (size_t c = 1; c < cases.size(); ++c) {
    fmt::print("{}: {:.0f} ns for each of {} items, {:.2f} % of the step\n", cases[c].name,
               1e3 * (medians[c] - medians[0]) / double(items), items,
               1e2 * (medians[c] / medians[0] - 1));
  }
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Arguments arguments;
  CLI::App app("Times what observers of a step cost");
  app.add_option("--layers", arguments.layers, "Layers")->capture_default_str();
  app.add_option("--width", arguments.width, "Features of a layer")->capture_default_str();
  app.add_option("--steps", arguments.steps, "Steps of a turn")->capture_default_str();
  app.add_option("--turns", arguments.turns, "Turns")->capture_default_str();
  app.add_option("--folder", arguments.folder, "Folder of the files")->capture_default_str();
  return training::run_main("observer_bench", app, argc, argv, [&] { measure(arguments); });
}
