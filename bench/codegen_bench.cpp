// Generated kernels against the machine: bytes per second of elementwise chains and reductions,
// next to the copy bandwidth measured in the same run, and the time to compile each kernel.
//   codegen_bench [threads] [filter]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "core/codegen/codegen.h"
#include "core/uop/args.h"
#include "devices/cpu/program.h"

using namespace tinyshard;

namespace {

// With one thread, its CPU time: other programs then disturb less.
bool use_cpu_time = false;
double seconds() {
  if (use_cpu_time) {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Median of the best part of many runs, in seconds.
double measure(const std::function<void()>& run) {
  run();
  std::vector<double> times;
  double begin = seconds();
  while (times.size() < 7 || (seconds() - begin < 0.4 && times.size() < 500)) {
    double start = seconds();
    run();
    times.push_back(seconds() - start);
  }
  std::nth_element(times.begin(), times.begin() + static_cast<long>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

struct Memory {
  explicit Memory(size_t bytes) : bytes((bytes + 4095) / 4096 * 4096) {
    data = ::mmap(nullptr, this->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ::madvise(data, this->bytes, MADV_HUGEPAGE);
    auto* f = static_cast<float*>(data);
    for (size_t i = 0; i < bytes / 4; ++i) f[i] = static_cast<float>(i % 1000) * 0.002f - 1.0f;
  }
  ~Memory() { ::munmap(data, bytes); }
  Memory(const Memory&) = delete;
  size_t bytes;
  void* data;
};

class Builder {
 public:
  explicit Builder(std::string name) { source.name = std::move(name); }
  UOp loop(int64_t n) {
    source.loops.push_back(range(next_++, n, RangeKind::Loop));
    return source.loops.back();
  }
  UOp fold_range(int64_t n) { return range(next_++, n, RangeKind::Fold); }
  UOp param(int64_t numel, DType dtype = DType::F32) {
    source.params.push_back({dtype, numel, false, -1});
    return UOp::make(Op::Param, dtype, {}, Dims{static_cast<int64_t>(source.params.size()) - 1});
  }
  void store(const UOp& param, const UOp& index, const UOp& value) {
    source.params[static_cast<size_t>(param_slot(*param))].written = true;
    stores_.push_back(UOp::make(Op::Store, param.dtype(), {param, index, value}));
    source.sink = UOp::make(Op::Sink, DType::Bool, stores_);
  }
  KernelSource source;

 private:
  std::vector<UOp> stores_;
  int64_t next_ = 0;
};

UOp load(const UOp& param, const UOp& index) {
  return UOp::make(Op::Load, param.dtype(), {param, index});
}
UOp operator+(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
UOp operator-(const UOp& a, const UOp& b) { return binary(Op::Sub, a, b); }
UOp operator*(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp operator*(const UOp& a, int64_t b) { return a * index_const(b); }
UOp real(double v) { return const_float(DType::F32, v); }
UOp exp(const UOp& x) { return unary(Op::Exp2, x * real(1.4426950408889634)); }
UOp fold(ReduceOp op, const UOp& value, const UOp& range) {
  return UOp::make(Op::Fold, value.dtype(), {value, range}, Dims{static_cast<int64_t>(op)});
}

double copy_bandwidth = 0;

void bench(Builder& b, ThreadPool& pool, double flops = 0, double moved = 0) {
  const KernelSource* pointer = &b.source;
  double start = seconds();
  auto kernel = compile_kernels(std::span(&pointer, 1), host_target())[0];
  double compile_ms = (seconds() - start) * 1e3;
  CpuProgram program(kernel->code, pool);
  std::vector<std::unique_ptr<Memory>> memory;
  std::vector<void*> pointers;
  for (const ParamInfo& p : b.source.params) {
    memory.push_back(std::make_unique<Memory>(static_cast<size_t>(p.numel) * itemsize(p.dtype)));
    pointers.push_back(memory.back()->data);
    if (moved == 0 || !memory.empty()) {
    }
  }
  double bytes = moved > 0 ? moved : static_cast<double>(kernel->bytes_moved);
  double time = measure([&] { program.launch(pointers.data(), nullptr); });
  std::printf("%-28s %9.1f us  %7.2f GB/s", b.source.name.c_str(), time * 1e6, bytes / time * 1e-9);
  if (copy_bandwidth > 0) std::printf("  %5.1f %% of copy", bytes / time / copy_bandwidth * 100);
  if (flops > 0) std::printf("  %7.1f GFLOP/s", flops / time * 1e-9);
  std::printf("   compile %.1f ms, estimate %.1f us, items %lld, image %zu\n", compile_ms,
              kernel->cost_ns * 1e-3, static_cast<long long>(kernel->code.work_items),
              kernel->code.bytes.size());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  std::string filter = argc > 2 ? argv[2] : "";
  use_cpu_time = threads == 1;
  ThreadPool pool(threads);
  auto wanted = [&](const char* name) {
    return std::string(name).find(filter) != std::string::npos;
  };

  constexpr int64_t kBig = 16 << 20;  // elements: 64 MiB of f32
  {
    Memory from(kBig * 4), to(kBig * 4);
    double time = measure([&] {
      pool.parallel_for(kBig * 4, [&](int64_t begin, int64_t end, int) {
        std::memcpy(static_cast<char*>(to.data) + begin, static_cast<char*>(from.data) + begin,
                    static_cast<size_t>(end - begin));
      });
    });
    copy_bandwidth = 2.0 * kBig * 4 / time;
    double read = measure([&] {
      pool.parallel_for(kBig, [&](int64_t begin, int64_t end, int) {
        const float* p = static_cast<const float*>(from.data);
        float s[16] = {};
        for (int64_t i = begin; i + 16 <= end; i += 16) {
          for (int k = 0; k < 16; ++k) s[k] += p[i + k];
        }
        volatile float sink = s[0] + s[7];
        (void)sink;
      });
    });
    std::printf(
        "memcpy of 64 MiB on %d threads: %.2f GB/s (read and written bytes); reading alone: %.2f "
        "GB/s\n",
        threads, copy_bandwidth * 1e-9, kBig * 4 / read * 1e-9);
  }
  auto elementwise = [&](const char* name, int inputs, int64_t n,
                         const std::function<UOp(std::vector<UOp>&)>& body) {
    if (!wanted(name)) return;
    Builder b(name);
    std::vector<UOp> params, values;
    for (int i = 0; i < inputs; ++i) params.push_back(b.param(n));
    UOp out = b.param(n), i = b.loop(n);
    for (UOp& p : params) values.push_back(load(p, i));
    b.store(out, i, body(values));
    bench(b, pool);
  };
  auto gelu = [](const UOp& x) {
    UOp inner = x * real(0.7978845608) * (real(1) + real(0.044715) * x * x);
    UOp e = exp(real(2) * inner);
    UOp tanh = real(1) - real(2) * unary(Op::Recip, e + real(1));
    return real(0.5) * x * (real(1) + tanh);
  };
  for (int64_t n : {kBig, int64_t{1} << 18}) {
    std::string size = n == kBig ? "_64MiB" : "_1MiB";
    elementwise(("copy" + size).c_str(), 1, n, [](auto& v) { return v[0]; });
    elementwise(("add" + size).c_str(), 2, n, [](auto& v) { return v[0] + v[1]; });
    elementwise(("scale_relu" + size).c_str(), 1, n,
                [](auto& v) { return binary(Op::Max, v[0] * real(1.5) + real(0.1), real(0)); });
    elementwise(("gelu" + size).c_str(), 1, n, [&](auto& v) { return gelu(v[0]); });
    elementwise(("log" + size).c_str(), 1, n, [&](auto& v) { return unary(Op::Log2, v[0]); });
    elementwise(("sin" + size).c_str(), 1, n, [&](auto& v) { return unary(Op::Sin, v[0]); });
    elementwise(("adam_like" + size).c_str(), 4, n, [](auto& v) {
      UOp m = v[0] * real(0.9) + v[1] * real(0.1), s = v[2] * real(0.99) + v[1] * v[1] * real(0.01);
      return v[3] - real(1e-3) * m * unary(Op::Recip, unary(Op::Sqrt, s) + real(1e-8));
    });
  }
  for (int64_t rows : {int64_t{2048}, int64_t{16384}}) {
    int64_t n = 2048, cells = rows * n;
    std::string size = "_" + std::to_string(rows) + "x" + std::to_string(n);
    if (wanted("row_sum")) {
      Builder b("row_sum" + size);
      UOp in = b.param(cells), out = b.param(rows), i = b.loop(rows), f = b.fold_range(n);
      b.store(out, i, fold(ReduceOp::Sum, load(in, i * n + f), f));
      bench(b, pool);
    }
    if (wanted("row_max")) {
      Builder b("row_max" + size);
      UOp in = b.param(cells), out = b.param(rows), i = b.loop(rows), f = b.fold_range(n);
      b.store(out, i, fold(ReduceOp::Max, load(in, i * n + f), f));
      bench(b, pool);
    }
    if (wanted("column_sum")) {
      Builder b("column_sum" + size);
      UOp in = b.param(cells), out = b.param(n), i = b.loop(n), f = b.fold_range(rows);
      b.store(out, i, fold(ReduceOp::Sum, load(in, f * n + i), f));
      bench(b, pool);
    }
    if (wanted("softmax")) {
      Builder b("softmax" + size);
      UOp in = b.param(cells), out = b.param(cells), i = b.loop(rows), j = b.loop(n),
          f = b.fold_range(n);
      UOp top = fold(ReduceOp::Max, load(in, i * n + f), f);
      UOp total = fold(ReduceOp::Sum, exp(load(in, i * n + f) - top), f);
      b.store(out, i * n + j, exp(load(in, i * n + j) - top) * unary(Op::Recip, total));
      bench(b, pool);
    }
    if (wanted("layernorm")) {
      Builder b("layernorm" + size);
      UOp in = b.param(cells), out = b.param(cells), w = b.param(n), c = b.param(n);
      UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n);
      UOp mean = fold(ReduceOp::Sum, load(in, i * n + f), f) * real(1.0 / n),
          d = load(in, i * n + f) - mean;
      UOp variance = fold(ReduceOp::Sum, d * d, f) * real(1.0 / n);
      UOp factor = unary(Op::Recip, unary(Op::Sqrt, variance + real(1e-5)));
      b.store(out, i * n + j, (load(in, i * n + j) - mean) * factor * load(w, j) + load(c, j));
      bench(b, pool);
    }
    if (wanted("transpose")) {
      Builder b("transpose" + size);
      UOp in = b.param(cells), out = b.param(cells), i = b.loop(n), j = b.loop(rows);
      b.store(out, i * rows + j, load(in, j * n + i));
      bench(b, pool);
    }
  }
  for (int64_t n : {256, 1024}) {
    for (int variant = 0; variant < 3; ++variant) {
      const char* names[] = {"matmul_nn", "matmul_nt", "matmul_tn"};
      if (!wanted(names[variant])) continue;
      Builder b(names[variant] + ("_" + std::to_string(n)));
      UOp x = b.param(n * n), y = b.param(n * n), out = b.param(n * n), i = b.loop(n),
          j = b.loop(n), f = b.fold_range(n);
      UOp a = load(x, variant == 2 ? f * n + i : i * n + f),
          c = load(y, variant == 1 ? j * n + f : f * n + j);
      b.store(out, i * n + j, fold(ReduceOp::Sum, a * c, f));
      bench(b, pool, 2.0 * static_cast<double>(n) * n * n);
    }
  }
  CodegenStatistics s = codegen_statistics();
  std::printf(
      "%lld kernels: plan %.1f ms, emit %.1f ms, optimise %.1f ms, codegen %.1f ms, link %.1f ms\n",
      static_cast<long long>(s.compiled), s.plan_ms, s.emit_ms, s.optimise_ms, s.codegen_ms,
      s.link_ms);
}
