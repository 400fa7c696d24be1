// Decoding at batch 1 with examples/llama_model.h and random weights: time per token at some
// positions of the cache, and the weights, keys and values read a second, also in percent of the rate
// of a sum over as many bytes in the same run: the better one of a sum before and one after.
// Each token is read on the host while the next one is made, unless --wait is given.
// bench/peers/torch_decode.py decodes in PyTorch.
#include <algorithm>
#include <string>
#include <string_view>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "examples/llama_model.h"

using namespace tinyshard;

namespace {

constexpr int kRuns = 16;

// Reads this many bytes of f32 a run. GB/s.
double sum_row(std::string_view what, double bytes) {
  Tensor x = Tensor::ones({int64_t(bytes / 4)}, DType::F32).clone().realize();
  Jit step = [&](Tensor y) { return (x * y).sum(); };
  const Tensor one(1.0F);
  std::vector<double> us;
  for (int i = -2; i < kRuns; ++i) {
    const auto start = bench::Clock::now();
    step(one).item<float>();
    if (i >= 0) us.push_back(bench::us_since(start));
  }
  bench::print_row(what, us, bytes / 1e9, "GB/s");
  std::ranges::sort(us);
  return bytes / 1e3 / us[us.size() / 2];
}

void decode_rows(const ModelConfig& config, DType dtype, bool wait) {
  set_default_float(dtype);
  Tensor::manual_seed(1);
  const Mesh mesh = Mesh::world({{"model", -1}});
  const llama::Model model(config);
  llama::place(model, config, mesh, "model");
  double weights = 0;  // bytes; of a table of words that is no head as well one row is read
  for (const auto& [name, t] : nn::state_dict(model)) {
    t.realize();
    if (config.tied || name != "model.embed_tokens.weight")
      weights += double(t.numel() * itemsize(dtype));
  }
  const std::string type(name(dtype));
  const double before = sum_row("sum " + type, weights);
  const llama::Turns turns = llama::turns(config, config.context, mesh);
  const auto caches = llama::caches(config, config.context, mesh, "model");
  Variable pos("pos", 0, config.context - 1);
  Jit step = [&](Tensor token, Variable p) {
    return model.next(token, p, turns, caches).argmax(-1).cast(DType::I32).shard(mesh);
  };
  Tensor token = Tensor({1}).shard(mesh).realize();
  HostCopy read = token.copy_to_host();
  auto next = [&](int64_t i) {
    token = step(token, pos.bind(i));
    HostCopy made = token.copy_to_host();
    (wait ? made : read).item<int32_t>();
    read = made;
  };
  for (int64_t i = 0; i < 4; ++i) next(i);
  struct Row {
    std::string name;
    std::vector<double> us;
    double gigabytes;
  };
  std::vector<Row> rows;
  for (int64_t at : {10, 100, 1000, 4000}) {
    if (at + kRuns > config.context) continue;
    std::vector<double> us;
    for (int64_t i = at; i < at + kRuns; ++i) {
      const auto start = bench::Clock::now();
      next(i);
      us.push_back(bench::us_since(start));
    }
    const double seen = 2.0 * double(config.layers * config.kv_heads * config.head_width * at) *
                        double(itemsize(dtype));
    rows.push_back({fmt::format("decode {} at {}", type, at), us, (weights + seen) / 1e9});
    bench::print_row(rows.back().name, us, rows.back().gigabytes, "GB/s");
  }
  const double sum = std::max(before, sum_row("sum " + type + " after", weights));
  for (const Row& row : rows)
    bench::print_row(row.name + ", of the sum", row.us, 100 * row.gigabytes / sum, "%");
}

// Products of few rows by matrices [k, n] that lie along n and along k, and of such by few columns.
void product_rows(DType dtype, int64_t rows, int64_t k, int64_t n) {
  const Tensor x = Tensor::randn({rows, k}).cast(dtype).realize();
  const Tensor w = Tensor::randn({k, n}).cast(dtype).realize();
  const Tensor along = Tensor::randn({n, k}).cast(dtype).realize();
  auto row = [&](std::string_view what, auto&& f) {
    Jit step = f;
    std::vector<double> us;
    for (int i = -3; i < 31; ++i) {
      const auto start = bench::Clock::now();
      for (int again = 0; again < 8; ++again) step(x).realize();
      if (i >= 0) us.push_back(bench::us_since(start) / 8);
    }
    bench::print_row(fmt::format("{} {} [{}, {}] [{}, {}]", what, name(dtype), rows, k, k, n), us,
                     double(k * n * itemsize(dtype)) / 1e9, "GB/s");
  };
  row("along n", [&](Tensor a) { return a.matmul(w); });
  row("along k", [&](Tensor a) { return a.matmul(along.T()); });
  row("columns", [&](Tensor a) { return along.matmul(a.T()); });
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  CLI::App app("Times decoding with a key/value cache.");
  ModelConfig config;
  config.family = "llama";
  config.layers = 12, config.width = 768, config.heads = 12, config.kv_heads = 4;
  config.head_width = 64, config.hidden = 2048, config.vocabulary = 32000, config.context = 4096;
  config.tied = false;
  std::vector<std::string> types = {"f32", "bf16"};
  std::string shape = "100M";
  app.add_option("--shape", shape, "sizes of a Llama")->check(CLI::IsMember({"100M", "1B", "8B"}));
  auto* layers = app.add_option("--layers", config.layers, "blocks, instead of the shape's");
  layers->check(CLI::PositiveNumber);
  app.add_option("--cache", config.context, "positions")->check(CLI::PositiveNumber);
  app.add_option("--dtype", types, "types of the weights")->delimiter(',');
  bool wait = false;
  app.add_flag("--wait", wait, "each token is read before the next step begins");
  std::vector<int64_t> product;
  app.add_option("--product", product, "rows, terms and columns of a product to time instead")
      ->delimiter(',')
      ->expected(3);
  return bench::run_main("decode_bench", app, argc, argv, [&] {
    if (shape != "100M") {
      const bool large = shape == "8B";
      if (layers->count() == 0) config.layers = large ? 32 : 16;
      config.width = large ? 4096 : 2048, config.heads = 32, config.kv_heads = 8;
      config.head_width = config.width / config.heads, config.hidden = large ? 14336 : 8192;
      config.vocabulary = 128256, config.tied = !large;
    }
    if (!product.empty()) {
      for (const std::string& type : types)
        product_rows(dtype_from_name(type), product[0], product[1], product[2]);
      return;
    }
    for (const std::string& type : types) decode_rows(config, dtype_from_name(type), wait);
  });
}
