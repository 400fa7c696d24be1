// Matrix products and convolutions of the CPU libraries, alone: the shapes of an MLP, a small
// convnet and a small GPT, forward and both gradients. For each program that can run a shape, the
// preferred one first: median microseconds, GFLOP/s, what it is.
//   library_bench [threads] [part of a name]
// bench/peers/torch_libraries.py prints the same lines for PyTorch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "devices/cpu/library.h"
#include "devices/cpu/thread_pool.h"

using namespace tinyshard;

namespace {

struct Free {
  void operator()(float* p) const { std::free(p); }
};
using Floats = std::unique_ptr<float, Free>;

Floats floats(int64_t count) {
  constexpr size_t kAlign = 64;
  size_t bytes = (static_cast<size_t>(count) * sizeof(float) + kAlign - 1) / kAlign * kAlign;
  Floats data(static_cast<float*>(std::aligned_alloc(kAlign, bytes)));
  for (int64_t i = 0; i < count; ++i) data.get()[i] = static_cast<float>(i % 17) / 17.f - 0.5f;
  return data;
}

double median_us(const std::function<void()>& f) {
  using Clock = std::chrono::steady_clock;
  auto once = [&] {
    auto start = Clock::now();
    f();
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
  };
  for (int i = 0; i < 5; ++i) f();
  int rounds = std::clamp(static_cast<int>(2e5 / once()), 7, 2000);
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(once());
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<size_t>(rounds / 2)];
}

class Bench {
 public:
  Bench(int threads, std::string only) : pool_(threads), only_(std::move(only)) {}

  void matmul(const std::string& name, const MatmulSpec& s) {
    if (name.find(only_) == std::string::npos) return;
    int64_t batch = 1;
    for (int i = 0; i < s.batch_rank; ++i) batch *= s.batch[i];
    Floats a = floats(batch * s.m * s.k), b = floats(batch * s.k * s.n);
    Floats c = floats(batch * s.m * s.n);
    double flops = 2.0 * static_cast<double>(batch * s.m * s.n * s.k);
    for (const auto& program : library_candidates(s, pool_.threads()))
      report(name, flops, program->describe(),
             [&] { program->run(a.get(), b.get(), c.get(), nullptr, pool_); });
  }

  // y = x w^T with w [n, k], and the gradients of x and w.
  void linear(const std::string& name, int64_t m, int64_t k, int64_t n) {
    MatmulSpec s = MatmulSpec::contiguous(m, k, n);
    s.b_k = 1, s.b_n = k;
    matmul(name + ".forward", s);
    matmul(name + ".dx", MatmulSpec::contiguous(m, n, k));
    s = MatmulSpec::contiguous(n, m, k);
    s.a_m = 1, s.a_k = n;
    matmul(name + ".dw", s);
  }

  void batched(const std::string& name, int64_t batch, int64_t m, int64_t k, int64_t n) {
    MatmulSpec s = MatmulSpec::contiguous(m, k, n, batch);
    matmul(name + ".nn", s);
    s.b_k = 1, s.b_n = k;
    matmul(name + ".nt", s);
    s = MatmulSpec::contiguous(m, k, n, batch);
    s.a_m = 1, s.a_k = m;
    matmul(name + ".tn", s);
  }

  void conv(const std::string& name, int64_t n, int64_t c, int64_t oc, int64_t size, int64_t k) {
    ConvSpec s;
    s.n = n, s.c = c, s.oc = oc, s.in = {size, size, 1}, s.kernel = {k, k, 1};
    Floats x = floats(s.src_elements()), w = floats(s.weight_elements());
    Floats y = floats(s.dst_elements());
    double flops = 2.0 * static_cast<double>(s.dst_elements() * c * k * k);
    struct Way {
      const char* name;
      ConvDirection direction;
      float *a, *b, *c;
    } ways[] = {{".forward", ConvDirection::Forward, x.get(), w.get(), y.get()},
                {".dx", ConvDirection::BackwardData, y.get(), w.get(), x.get()},
                {".dw", ConvDirection::BackwardWeights, x.get(), y.get(), w.get()}};
    for (const Way& way : ways) {
      if ((name + way.name).find(only_) == std::string::npos) continue;
      s.direction = way.direction;
      if (!library_supports(s)) continue;
      auto program = library_program(s, pool_.threads());
      report(name + way.name, flops, program->describe(),
             [&] { program->run(way.a, way.b, way.c, nullptr, pool_); });
    }
  }

 private:
  void report(const std::string& name, double flops, const std::string& what,
              const std::function<void()>& f) {
    double us = median_us(f);
    std::printf("%-16s %9.1f us %7.1f GFLOP/s  %s\n", name.c_str(), us, flops / us / 1e3,
                what.c_str());
    std::fflush(stdout);
  }

  ThreadPool pool_;
  std::string only_;
};

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  Bench bench(default_thread_count(1, threads), argc > 2 ? argv[2] : "");
  bench.linear("mlp1", 128, 784, 1024);
  bench.linear("mlp2", 128, 1024, 1024);
  bench.linear("mlp3", 128, 1024, 10);
  bench.linear("qkv", 1024, 128, 384);
  bench.linear("proj", 1024, 128, 128);
  bench.linear("fc1", 1024, 128, 512);
  bench.linear("fc2", 1024, 512, 128);
  bench.linear("logits", 1024, 128, 256);
  bench.batched("scores", 32, 128, 32, 128);
  bench.batched("values", 32, 128, 128, 32);
  bench.conv("conv1", 128, 1, 32, 28, 5);
  bench.conv("conv2", 128, 32, 32, 24, 5);
  bench.conv("conv3", 128, 32, 64, 12, 3);
  bench.conv("conv4", 128, 64, 64, 10, 3);
}
