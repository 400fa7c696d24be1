// Causal attention in bf16 as a model has it, queries, keys and values side by side in the result
// of one product, by itself and with the gradient of that result:
//
//   gpu_attention_bench [--device CUDA:0] [--batch 64 --heads 12 --rows 1024 --width 64]
//
// bench/peers/torch_attention.py is the same work in PyTorch.
#include <cmath>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "bench/recorded.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard {
namespace {

struct Size {
  int64_t batch = 64, heads = 12, rows = 1024, width = 64;
  int samples = 12;
};

Tensor attention(const Tensor& packed, int64_t heads) {
  std::vector<Tensor> parts = packed.chunk(3, -1);
  for (Tensor& part : parts) part = part.unflatten(-1, {heads, -1}).transpose(1, 2);
  return parts[0]
      .scaled_dot_product_attention(parts[1], parts[2], {}, {.is_causal = true})
      .transpose(1, 2)
      .flatten(2);
}

// Samples in microseconds, each the mean of enough captured steps that the wait does not count.
std::vector<double> times(Device& device, int samples, const auto& step) {
  auto time = [&](int runs) {
    device.synchronize();
    auto start = bench::Clock::now();
    for (int i = 0; i < runs; ++i) step();
    device.synchronize();
    return bench::us_since(start) / runs;
  };
  time(3);  // compiled, captured, replayed
  int runs = int(std::ceil(std::max(1.0, 2e4 / time(1))));
  std::vector<double> us;
  for (int i = 0; i < samples; ++i) us.push_back(time(runs));
  return us;
}

void measure(const Size& s, const std::string& name) {
  Device& device = bench::open_device(name);
  auto numbers = [&](int64_t parts) {
    return Tensor::randn({s.batch, s.rows, parts * s.heads * s.width}).cast(DType::BF16).realize();
  };
  Tensor packed = numbers(3), upstream = numbers(1);
  Jit forward = [&](Tensor p) { return attention(p, s.heads); };
  Jit both = [&](Tensor p, Tensor d) { return attention(p, s.heads).gradient({p}, d)[0]; };
  // A causal product is half of a square; the gradient takes five products where attention takes
  // two.
  const double one = 2e-12 * double(s.batch * s.heads * s.rows * s.rows * s.width);
  std::string title =
      fmt::format("attention {} x {} heads x {} x {}, bf16", s.batch, s.heads, s.rows, s.width);
  bench::print_row(title, times(device, s.samples, [&] { forward(packed); }), one, "TFLOP/s");
  bench::print_row(title + ", and its gradient",
                   times(device, s.samples, [&] { both(packed, upstream); }), 3.5 * one, "TFLOP/s");
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  using namespace tinyshard;
  Size size;
  std::string device;
  CLI::App app("Attention, forward and backward.");
  app.add_option("--device", device, "Where [the best there is]");
  app.add_option("--batch", size.batch, "Sequences")->check(CLI::PositiveNumber);
  app.add_option("--heads", size.heads, "Of each")->check(CLI::PositiveNumber);
  app.add_option("--rows", size.rows, "Tokens of a sequence")->check(CLI::PositiveNumber);
  app.add_option("--width", size.width, "Of a head")->check(CLI::PositiveNumber);
  app.add_option("--samples", size.samples, "Of each case")->check(CLI::PositiveNumber);
  return bench::run_main("gpu_attention_bench", app, argc, argv, [&] { measure(size, device); });
}
