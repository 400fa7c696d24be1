// Captured training steps, memory-bound operations and the fixed costs of the engine. Runs end when
// the result is there. bench/compare.py runs this beside the same work in PyTorch on a CPU,
// bench/gpu_table.py on a GPU.
#include <functional>
#include <limits>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "core/exec/context.h"
#include "core/exec/make_executable.h"
#include "core/exec/state.h"

using namespace tinyshard;

namespace {

std::string wanted;
int64_t batch = 128;

Device& device() { return Context::get().device(default_mesh().devices().at(0)); }
void finish() { device().synchronize(); }

struct Case {
  double work = 0;  // of a run, as bench::print_row wants it
  std::string unit = {};
  int steps = 1;                     // in a run
  double seconds = 2;                // for all runs, about
  std::function<void()> after = {};  // each run, and does not count
};

void report(const std::string& name, const std::function<void()>& run, const Case& how) {
  constexpr size_t kLeast = 7;
  if (name.find(wanted) == std::string::npos) return;
  for (int i = 0; i < 4; ++i) run();
  finish();
  std::vector<double> us;
  auto begin = bench::Clock::now();
  while (us.size() < kLeast || (bench::us_since(begin) < how.seconds * 1e6 && us.size() < 2000)) {
    auto start = bench::Clock::now();
    run();
    us.push_back(bench::us_since(start));
    if (how.after) how.after();
  }
  bench::print_row(name, us, how.work, how.unit, how.steps);
}

struct Mlp {
  nn::Linear a{784, 1024}, b{1024, 1024}, c{1024, 10};
  TS_FIELDS(a, b, c)
  Tensor operator()(const Tensor& x) const { return c(b(a(x).relu()).relu()); }
};

struct Convnet {
  nn::Conv2d c1{1, 32, 5}, c2{32, 32, 5}, c3{32, 64, 3}, c4{64, 64, 3};
  nn::BatchNorm b1{32}, b2{64};
  nn::Linear out{576, 10};
  TS_FIELDS(c1, c2, c3, c4, b1, b2, out)
  Tensor operator()(const Tensor& x) const {
    Tensor h = b1(c2(c1(x).relu()).relu()).max_pool2d();
    return out(b2(c4(c3(h).relu()).relu()).max_pool2d().flatten(1));
  }
};

struct Block {
  int64_t heads;
  nn::LayerNorm n1, n2;
  nn::Linear qkv, project, up, down;
  TS_FIELDS(n1, n2, qkv, project, up, down)
  Block(int64_t width, int64_t heads)
      : heads(heads),
        n1(width),
        n2(width),
        qkv(width, 3 * width),
        project(width, width),
        up(width, 4 * width),
        down(4 * width, width) {}
  Tensor operator()(const Tensor& x) const {
    int64_t batch = x.shape(0), time = x.shape(1), width = x.shape(2);
    auto parts = qkv(n1(x)).split(width, 2);
    auto head = [&](const Tensor& t) {
      return t.reshape({batch, time, heads, width / heads}).transpose(1, 2);
    };
    Tensor y = head(parts[0]).scaled_dot_product_attention(
        head(parts[1]), head(parts[2]), {},
        {.dropout_p = 0, .is_causal = true, .enable_gqa = false});
    Tensor h = x + project(y.transpose(1, 2).reshape({batch, time, width}));
    return h + down(up(n2(h)).gelu());
  }
};

struct Gpt {
  nn::Embedding tokens, positions;
  std::vector<Block> blocks;
  nn::LayerNorm norm;
  nn::Linear head;
  TS_FIELDS(tokens, positions, blocks, norm, head)
  Gpt(int layers, int64_t width, int64_t heads, int64_t context, int64_t vocabulary)
      : tokens(vocabulary, width),
        positions(context, width),
        norm(width),
        head(width, vocabulary, {.bias = false}) {
    for (int i = 0; i < layers; ++i) blocks.emplace_back(width, heads);
  }
  Tensor operator()(const Tensor& index) const {
    Tensor x = tokens(index) + positions(Tensor::arange(index.shape(1)));
    for (const Block& block : blocks) x = block(x);
    return head(norm(x));
  }
};

template <class Model, class Optimizer>
auto trainer(Model& model, Optimizer& optim, int64_t rows) {
  return Jit([&model, &optim, rows](Tensor x, Tensor y) {
    TrainingMode on;
    optim.zero_grad();
    Tensor out = model(x);
    Tensor loss = out.reshape({rows, out.numel() / rows})
                      .sparse_categorical_crossentropy(y.reshape({rows}))
                      .backward();
    optim.step();
    return loss;
  });
}

void training_steps() {
  {
    Mlp net;
    auto optim = nn::optim::SGD(nn::parameters(net), {.lr = 1e-2});
    Tensor x = Tensor::randn({batch, 784}).realize(), y = Tensor::randint({batch}, 0, 10).realize();
    auto step = trainer(net, optim, batch);
    std::string name = fmt::format("mlp step B={} SGD", batch);
    report(name, [&] { step(x, y).template item<float>(); },
           {.work = double(batch), .unit = "samples/s"});
    constexpr int kRow = 20;  // as in training, where the host reads a loss now and then
    auto row = [&] {
      for (int i = 0; i < kRow; ++i) step(x, y);
      finish();
    };
    if (device().can_record())
      report(name + ", in a row", row,
             {.work = kRow * double(batch), .unit = "samples/s", .steps = kRow});
  }
  {
    Convnet net;
    auto optim = nn::optim::Adam(nn::parameters(net), {.lr = 1e-3});
    Tensor x = Tensor::randn({128, 1, 28, 28}).realize(),
           y = Tensor::randint({128}, 0, 10).realize();
    auto step = trainer(net, optim, 128);
    report("convnet step B=128 Adam", [&] { step(x, y).template item<float>(); },
           {.work = 128, .unit = "samples/s", .seconds = 4});
  }
  {
    Gpt net(4, 128, 4, 128, 256);
    auto optim = nn::optim::AdamW(nn::parameters(net), {.lr = 1e-3});
    Tensor x = Tensor::randint({8, 128}, 0, 256).realize(),
           y = Tensor::randint({8, 128}, 0, 256).realize();
    auto step = trainer(net, optim, 1024);
    report("gpt step L4 d128 T128 B8 AdamW", [&] { step(x, y).template item<float>(); },
           {.work = 1024, .unit = "tok/s", .seconds = 4});
  }
}

void memory_bound() {
  constexpr int64_t n = 1 << 24, row = 2048;
  Tensor x = Tensor::randn({n}).realize(), z = Tensor::randn({n}).realize(),
         m = Tensor::randn({row, row}).realize();
  Tensor w = Tensor::randn({row}).realize(), c = Tensor::randn({row}).realize(),
         s = Tensor::randn({16}).realize();
  auto op = [](const std::string& name, double gigabytes, auto function, auto... inputs) {
    Jit f = function;
    report(name,
           [&] {
             f(inputs...);
             finish();
           },
           {.work = gigabytes, .unit = "GB/s"});
  };
  op("copy 64MiB", 8e-9 * n, [](Tensor a) { return a.contiguous(); }, x);
  op("(x*a+b).relu 64MiB", 8e-9 * n, [](Tensor a) { return (a * 1.5 + 0.5).relu(); }, x);
  op("x+y 64MiB", 12e-9 * n, [](Tensor a, Tensor b) { return a + b; }, x, z);
  op("gelu tanh 64MiB", 8e-9 * n, [](Tensor a) { return a.gelu(); }, x);
  op("sum 64MiB", 4e-9 * n, [](Tensor a) { return a.sum(); }, x);
  op("softmax 2048x2048", 8e-9 * row * row, [](Tensor a) { return a.softmax(); }, m);
  op(
      "layernorm 2048x2048", 8e-9 * row * row,
      [](Tensor a, Tensor g, Tensor h) { return a.layernorm() * g + h; }, m, w, c);
  Jit tiny = [](Tensor a) { return a + 1; };
  report("tiny op x+1 (16 elements), replayed",
         [&] {
           tiny(s);
           finish();
         },
         {.work = 1, .unit = "op/s", .seconds = 1});
}

// Orders of a million elements, and what writes through an index.
void sorts() {
  constexpr int64_t n = 1000000;
  constexpr double work = 1e-6 * n;
  Tensor x = Tensor::rand({n}).realize(), zeros = Tensor::zeros({n}).contiguous().realize(),
         places = Tensor::randperm(n).realize(), rows = Tensor::rand({1000, 1000}).realize();
  auto op = [](const std::string& name, auto function, auto... inputs) {
    Jit f = function;
    report(name,
           [&] {
             f(inputs...);
             finish();
           },
           {.work = work, .unit = "M/s"});
  };
  op("sort 1e6 f32", [](Tensor a) { return a.sort(); }, x);
  op("argsort 1e6 f32", [](Tensor a) { return a.argsort(); }, x);
  op("sort 1000x1000 f32", [](Tensor a) { return a.sort(); }, rows);
  op("topk 10 of 1e6 f32", [](Tensor a) { return a.topk(10); }, x);
  report("randperm 1e6", [] { Tensor::randperm(n).realize(), finish(); },
         {.work = work, .unit = "M/s"});
  op(
      "scatter 1e6 f32", [](Tensor a, Tensor i, Tensor b) { return a.scatter(0, i, b); }, zeros,
      places, x);
  const std::pair<const char*, ScatterReduce> reductions[] = {{"sum", ScatterReduce::Sum},
                                                              {"prod", ScatterReduce::Prod},
                                                              {"mean", ScatterReduce::Mean},
                                                              {"amax", ScatterReduce::Amax},
                                                              {"amin", ScatterReduce::Amin}};
  for (const auto& [name, reduction] : reductions) {
    op(
        fmt::format("scatter {} 1e6 f32", name),
        [how = reduction](Tensor a, Tensor i, Tensor b) { return a.scatter_reduce(0, i, b, how); },
        zeros, places, x);
  }
  op("setitem 1e6 f32", [](Tensor a, Tensor i, Tensor b) { a.setitem({i}, b); }, zeros, places, x);
  op("logcumsumexp 1e6 f32", [](Tensor a) { return a.logcumsumexp(0); }, x);
  op("multinomial 1e5 of 1e6", [](Tensor a) { return a.multinomial(n / 10, true); }, x);
}

// Times the engine's work before and around the kernels.
void fixed_costs() {
  Mlp net;
  auto optim = nn::optim::SGD(nn::parameters(net), {.lr = 1e-2});
  Tensor x = Tensor::randn({128, 784}).realize(), y = Tensor::randint({128}, 0, 10).realize();
  std::vector<Tensor> weights{net.a.weight, net.b.weight, net.c.weight};
  auto graph = [&] { return net(x).sparse_categorical_crossentropy(y).gradient(weights); };
  report("mlp: graph and gradient", [&] { graph(); }, {.seconds = 1});
  std::vector<UOp> roots;
  for (const Tensor& g : graph()) roots.push_back(g.uop());
  report("mlp: passes and schedule", [&] { make_plan(roots); }, {.seconds = 1});
  Tensor v = Tensor::randn({64}).realize();
  constexpr int kKernels = 1000;
  auto chain = [](Tensor a, const Operand& more) {
    for (int i = 0; i < kKernels; ++i)
      a = (a.flip({0}) + more).contiguous();  // the flip keeps them apart
    return a;
  };
  Jit same = [&](Tensor a) { return chain(a, 1); };
  Jit counting = [&](Tensor a, Variable n) { return chain(a, n); };
  Variable n("n", 0, std::numeric_limits<int32_t>::max());
  std::string name = fmt::format("replay of {} dependent tiny kernels", kKernels);
  auto replay = [&] {
    same(v);
    finish();
  };
  report(name, replay, {.work = kKernels, .unit = "kernels/s", .steps = kKernels, .seconds = 1});
  if (!device().can_record()) return;
  report(name + ", the host's part", [&] { same(v); }, {.seconds = 1, .after = finish});
  int64_t value = 0;
  report(name + " that read a Variable, the host's part", [&] { counting(v, n.bind(++value)); },
         {.seconds = 1, .after = finish});
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  std::vector<std::string> devices;
  CLI::App app("Training steps, memory-bound operations and fixed costs.");
  app.add_option("--only", wanted, "Part of the names of the cases to run");
  app.add_option("--devices", devices, "Where, such as CPU or CUDA:0")->delimiter(',');
  app.add_option("--batch", batch, "Of the MLP's step")->check(CLI::PositiveNumber);
  return bench::run_main("steps_bench", app, argc, argv, [&] {
    Runtime::configure({.devices = devices});
    Tensor::manual_seed(0);
    training_steps();
    memory_bound();
    sorts();
    fixed_costs();
  });
}
