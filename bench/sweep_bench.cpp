// Ordinary steps drawn at random: those that no model here happens to take are timed too, beside
// their limits and beside PyTorch.
//
//   sweep_bench --draw 1 --count 400 --megabytes 64 > cases
//   sweep_bench cases --devices CUDA --copy-gbs 4000 --tflops bf16=750,f16=750,f32=50,f64=60 > ours
//   python3 bench/peers/torch_sweep.py cases > theirs
//   sweep_bench --compare ours theirs
//
// A line of results is "ID KIND MICROSECONDS LIMIT SHARE", then the case, or "ID KIND failed: WHY".
// The limit is the larger one of two times: bytes that have to be moved at the rate of a copy, and
// operations of products at the rate of the type.
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "bench/sweep/compare.h"
#include "bench/sweep/kind.h"

using namespace tinyshard;
using namespace tinyshard::sweep;

namespace {

struct Options {
  std::optional<uint64_t> seed;
  int64_t count = 400;
  double megabytes = 64;
  bool run = false, json = false;
  std::string cases, only;
  std::vector<std::string> devices, tflops, compared;
  double seconds = 0.1, copy_gbs = 0;
  size_t worst = 40;
};

// Goes through all kinds, in an order that is drawn, before any comes again.
std::vector<Case> draw_cases(const Options& options) {
  Draw draw(*options.seed);
  std::vector<const Kind*> order;
  for (const Kind& kind : kinds())
    if (kind.name.find(options.only) != std::string_view::npos) order.push_back(&kind);
  if (order.empty()) throw UserError(fmt::format("no kind's name has \"{}\" in it", options.only));
  std::vector<Case> drawn;
  for (int64_t id = 0; id < options.count; ++id) {
    const size_t turn = size_t(id) % order.size();
    if (turn == 0) draw.shuffle(order);
    const Kind& kind = *order[turn];
    const DType dtype = draw.pick(kind.types);
    const auto elements = int64_t(options.megabytes * 0x1p20 / double(itemsize(dtype)));
    Sizes sizes = kind.draw(draw, std::max<int64_t>(16, elements));
    drawn.push_back({id, std::string(kind.name), dtype, sizes.sizes, sizes.numbers});
  }
  return drawn;
}

std::vector<Case> read_cases(const Options& options) {
  std::ifstream in(options.cases);
  if (!in) throw UserError(fmt::format("cannot read {}", options.cases));
  std::vector<Case> cases;
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    Case read = case_of(line);
    if (read.kind.find(options.only) != std::string::npos) cases.push_back(read);
  }
  return cases;
}

// Microseconds of a captured step: means of calls in a row, enough of them that the wait at their
// end does not count, for about so many seconds.
std::vector<double> times_of(const Step& step, double seconds) {
  constexpr size_t kLeast = 3;
  constexpr double kSamples = 8, kMostCalls = 1000;
  Jit captured = step.function;
  const auto mean = [&](int calls) {
    const auto start = bench::Clock::now();
    for (int i = 0; i < calls; ++i) captured(step.inputs);
    Runtime::synchronize();
    return bench::us_since(start) / calls;
  };
  mean(1), mean(1);  // captures, then records
  const double budget = seconds * 1e6;
  const int calls = int(std::clamp(budget / kSamples / mean(1), 1.0, kMostCalls));
  std::vector<double> us;
  for (double spent = 0; us.size() < kLeast || spent < budget; spent += us.back() * calls)
    us.push_back(mean(calls));
  std::ranges::sort(us);
  return us;
}

// GB/s of a copy of 256 MiB, read and written.
double copy_rate(double seconds) {
  constexpr int64_t kBytes = int64_t{1} << 28;
  const Tensor x = Tensor::ones({kBytes / 4}, DType::F32).clone().realize();
  const Step copy{{x}, [](const Tensors& v) { return Tensors{v[0].clone()}; }};
  const std::vector<double> us = times_of(copy, seconds);
  return 2.0 * double(kBytes) / us[us.size() / 2] / 1e3;
}

// Rates of the machine, by which limits are told.
struct Limits {
  double copy_gbs;
  std::map<DType, double> tflops;

  explicit Limits(const Options& options) : copy_gbs(options.copy_gbs) {
    for (const std::string& rate : options.tflops) {
      const size_t sign = rate.find('=');
      double value = 0;
      if (sign == std::string::npos || !CLI::detail::lexical_cast(rate.substr(sign + 1), value) ||
          !(value > 0))
        throw UserError(
            fmt::format("--tflops takes TYPE=NUMBER, such as bf16=750, not \"{}\"", rate));
      tflops[dtype_from_name(rate.substr(0, sign))] = value;
    }
    if (copy_gbs > 0) return;
    copy_gbs = copy_rate(options.seconds);
    if (!options.json) std::cout << fmt::format("# a copy moves {:.1f} GB/s\n", copy_gbs);
  }
  // Types without a rate are limited by bytes alone.
  double operations_us(DType dtype, const Work& work) const {
    const auto rate = tflops.find(dtype);
    return rate == tflops.end() ? 0 : work.operations / rate->second / 1e6;
  }
  double us(DType dtype, const Work& work) const {
    return std::max(work.bytes / copy_gbs / 1e3, operations_us(dtype, work));
  }
};

std::string in_one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

void time_case(const Case& of, const Limits& limits, const Options& options) {
  const Kind& kind = kind_of(of.kind);
  const Step step = kind.make(of);
  const Work work = kind.work(of, step);
  const std::vector<double> us = times_of(step, options.seconds);
  const std::string text = text_of(of);
  if (options.json) {
    if (limits.operations_us(of.dtype, work) > work.bytes / limits.copy_gbs / 1e3)
      bench::print_row(text, us, work.operations / 1e12, "TFLOP/s");
    else
      bench::print_row(text, us, work.bytes / 1e9, "GB/s");
    return;
  }
  const std::string sizes = text.substr(text.find(' ', text.find(' ') + 1) + 1);
  const Timed timed{of.id, of.kind, us[us.size() / 2], limits.us(of.dtype, work), sizes};
  std::cout << text_of(timed) << std::endl;
}

void time_cases(const std::vector<Case>& cases, const Options& options) {
  Runtime::configure({.devices = options.devices});
  Tensor::manual_seed(0);
  const Limits limits(options);
  int64_t failed = 0;
  for (const Case& of : cases) {
    try {
      time_case(of, limits, options);
    } catch (const std::exception& e) {
      ++failed;
      const std::string why = in_one_line(e.what());
      if (options.json)
        bench::print_missing(text_of(of), why);
      else
        std::cout << text_of(Timed{of.id, of.kind, {}, 0, why}) << std::endl;
    }
  }
  if (failed > 0) throw UserError(fmt::format("{} of {} cases failed", failed, cases.size()));
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Options options;
  CLI::App app("Times steps that are drawn at random, beside their limits and beside a peer.");
  app.add_option("CASES", options.cases, "File of cases to time, a line each");
  app.add_option("--draw", options.seed, "Seed of cases to print instead");
  app.add_option("--count", options.count, "How many to draw")->check(CLI::PositiveNumber);
  app.add_option("--megabytes", options.megabytes, "Size of the operands to draw")
      ->check(CLI::PositiveNumber);
  app.add_flag("--run", options.run, "Times what is drawn at once");
  app.add_option("--only", options.only, "Part of the names of the kinds");
  app.add_option("--devices", options.devices, "Where, such as CPU or CUDA:0")->delimiter(',');
  app.add_option("--seconds", options.seconds, "For each case, about")->check(CLI::PositiveNumber);
  app.add_option("--copy-gbs", options.copy_gbs, "Rate of a copy; measured unless given")
      ->check(CLI::PositiveNumber);
  app.add_option("--tflops", options.tflops, "Rates of products, such as bf16=750,f32=50")
      ->delimiter(',');
  app.add_flag("--json", options.json, "Prints a JSON object a line, as other benchmarks do");
  app.add_option("--compare", options.compared, "Two files of results: ours, theirs")->expected(2);
  app.add_option("--worst", options.worst, "How many cases --compare lists");
  return bench::run_main("sweep_bench", app, argc, argv, [&] {
    if (!options.compared.empty())
      return compare(options.compared[0], options.compared[1], options.worst);
    if (options.seed.has_value() == !options.cases.empty())
      throw UserError("give a file of cases, or --draw SEED, or --compare OURS THEIRS");
    if (!options.seed) return time_cases(read_cases(options), options);
    const std::vector<Case> drawn = draw_cases(options);
    if (options.run) return time_cases(drawn, options);
    for (const Case& of : drawn) std::cout << text_of(of) << "\n";
  });
}
