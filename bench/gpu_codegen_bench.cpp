// Generated kernels against the machine: bytes per second of elementwise chains, folds and
// transposes, next to a copy on the device measured in the same run. Each recording goes through
// several sets of buffers, together larger than the L2 cache.
//
//   gpu_codegen_bench --ptx FOLDER          writes the kernels' code instead
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/measure.h"
#include "bench/numbers.h"
#include "bench/recorded.h"
#include "core/codegen/codegen.h"
#include "core/uop/args.h"
#include "devices/cuda/planned_gpu.h"

using namespace tinyshard;

namespace {

class Builder {
 public:
  Builder(std::string name, DType dtype) : dtype(dtype) {
    source.name = std::move(name) + "_" + std::string(tinyshard::name(dtype));
  }
  UOp loop(int64_t n) {
    source.loops.push_back(range(next_++, n, RangeKind::Loop));
    return source.loops.back();
  }
  UOp fold_range(int64_t n) { return range(next_++, n, RangeKind::Fold); }
  UOp param(int64_t numel) {
    source.params.push_back({dtype, numel, false, -1});
    return UOp::make(Op::Param, dtype, {}, Dims{static_cast<int64_t>(source.params.size()) - 1});
  }
  // Everything is computed in f32.
  void store(const UOp& param, const UOp& index, const UOp& value) {
    source.params[static_cast<size_t>(param_slot(*param))].written = true;
    stores_.push_back(UOp::make(Op::Store, dtype, {param, index, cast(value, dtype)}));
    source.sink = UOp::make(Op::Sink, DType::Bool, stores_);
  }
  UOp cast(const UOp& x, DType to) { return x.dtype() == to ? x : tinyshard::cast(x, to); }
  UOp load(const UOp& param, const UOp& index) {
    return cast(UOp::make(Op::Load, dtype, {param, index}), DType::F32);
  }
  DType dtype;
  KernelSource source;

 private:
  std::vector<UOp> stores_;
  int64_t next_ = 0;
};

UOp operator+(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
UOp operator-(const UOp& a, const UOp& b) { return binary(Op::Sub, a, b); }
UOp operator*(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
UOp operator*(const UOp& a, int64_t b) { return a * index_const(b); }
UOp real(double v) { return const_float(DType::F32, v); }
UOp exp(const UOp& x) { return unary(Op::Exp2, x * real(1.4426950408889634)); }
UOp fold(ReduceOp op, const UOp& value, const UOp& range) {
  return UOp::make(Op::Fold, value.dtype(), {value, range}, Dims{static_cast<int64_t>(op)});
}

struct Bench {
  Device* device = nullptr;  // null: the code is written
  std::string folder, only;
  static constexpr int kSets = 4;
  int samples = 15;

  void run(Builder& b) {
    if (b.source.name.find(only) == std::string::npos) return;
    const KernelSource* source = &b.source;
    const Target target = device ? device->target() : cuda::planned_h200().target;
    auto kernel = compile_kernels(std::span(&source, 1), target)[0];
    if (!device) {
      std::ofstream(folder + "/" + b.source.name + ".ptx")
          << "// blocks " << kernel->code.work_items << " of " << kernel->code.block << " threads\n"
          << kernel->code.bytes.data();
      return;
    }
    std::unique_ptr<Program> program = device->load(kernel->code);
    std::vector<std::unique_ptr<bench::Numbers>> memory;
    std::vector<std::vector<void*>> sets(kSets);
    for (auto& set : sets) {
      for (const ParamInfo& p : b.source.params) {
        memory.push_back(std::make_unique<bench::Numbers>(*device, p.numel, b.dtype));
        set.push_back(memory.back()->get());
      }
    }
    measure(b.source.name, double(kernel->bytes_moved), [&] {
      for (auto& set : sets) program->launch(set.data(), nullptr);
    });
  }

  void copies(int64_t bytes) {
    std::vector<std::unique_ptr<bench::Numbers>> memory;
    for (int i = 0; i < 2 * kSets; ++i)
      memory.push_back(std::make_unique<bench::Numbers>(*device, bytes / 4, DType::F32));
    measure("copy", 2.0 * double(bytes), [&] {
      for (size_t i = 0; i < memory.size(); i += 2) {
        void *to = memory[i]->get(), *from = memory[i + 1]->get();
        if (!device->copy_from(to, *device, from, size_t(bytes)))
          std::memcpy(to, from, size_t(bytes));
      }
    });
  }

  // `launches` goes through all sets once.
  void measure(const std::string& name, double bytes, const std::function<void()>& launches) {
    std::vector<double> us = bench::Recorded({device}, launches).times(samples);
    for (double& time : us) time /= kSets;
    bench::print_row(name, us, bytes * 1e-9, "GB/s");
  }
};

void all(Bench& bench, DType t, int64_t rows, int64_t n) {
  int64_t cells = rows * n;
  auto one = [&](const char* name, const std::function<void(Builder&)>& make) {
    Builder b(name, t);
    make(b);
    bench.run(b);
  };
  one("scale_relu", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), i = b.loop(rows), j = b.loop(n);
    UOp x = b.load(in, i * n + j) * real(1.5) + real(0.1);
    b.store(out, i * n + j, binary(Op::Max, x, real(0)));
  });
  one("add", [&](Builder& b) {
    UOp x = b.param(cells), y = b.param(cells), out = b.param(cells), i = b.loop(cells);
    b.store(out, i, b.load(x, i) + b.load(y, i));
  });
  one("add_bias_gelu", [&](Builder& b) {
    UOp in = b.param(cells), bias = b.param(n), out = b.param(cells), i = b.loop(rows),
        j = b.loop(n);
    UOp x = b.load(in, i * n + j) + b.load(bias, j);
    UOp e = exp(x * real(1.5957691216) * (real(1) + real(0.044715) * x * x));
    b.store(out, i * n + j, x * (real(1) - unary(Op::Recip, e + real(1))));
  });
  one("sum_rows", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(rows), i = b.loop(rows), f = b.fold_range(n);
    b.store(out, i, fold(ReduceOp::Sum, b.load(in, i * n + f), f));
  });
  one("sum_columns", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(n), i = b.loop(n), f = b.fold_range(rows);
    b.store(out, i, fold(ReduceOp::Sum, b.load(in, f * n + i), f));
  });
  one("sum_parts", [&](Builder& b) {  // the first of two steps of a full sum
    int64_t parts = 1024;
    UOp in = b.param(cells), out = b.param(parts), i = b.loop(parts),
        f = b.fold_range(cells / parts);
    b.store(out, i, fold(ReduceOp::Sum, b.load(in, i * (cells / parts) + f), f));
  });
  one("sum_of_parts", [&](Builder& b) {
    UOp in = b.param(1024), out = b.param(1), f = b.fold_range(1024);
    b.store(out, index_const(0), fold(ReduceOp::Sum, b.load(in, f), f));
  });
  one("softmax", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), i = b.loop(rows), j = b.loop(n),
        f = b.fold_range(n);
    UOp top = fold(ReduceOp::Max, b.load(in, i * n + f), f);
    UOp total = fold(ReduceOp::Sum, exp(b.load(in, i * n + f) - top), f);
    b.store(out, i * n + j, exp(b.load(in, i * n + j) - top) * unary(Op::Recip, total));
  });
  one("layernorm", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), w = b.param(n), c = b.param(n);
    UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n);
    double part = 1.0 / static_cast<double>(n);
    UOp mean = fold(ReduceOp::Sum, b.load(in, i * n + f), f) * real(part);
    UOp d = b.load(in, i * n + f) - mean;
    UOp variance = fold(ReduceOp::Sum, d * d, f) * real(part);
    UOp factor = unary(Op::Recip, unary(Op::Sqrt, variance + real(1e-5)));
    b.store(out, i * n + j, (b.load(in, i * n + j) - mean) * factor * b.load(w, j) + b.load(c, j));
  });
  one("rmsnorm", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), w = b.param(n);
    UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n), x = b.load(in, i * n + f);
    UOp mean = fold(ReduceOp::Sum, x * x, f) * real(1.0 / static_cast<double>(n));
    UOp factor = unary(Op::Recip, unary(Op::Sqrt, mean + real(1e-5)));
    b.store(out, i * n + j, b.load(in, i * n + j) * factor * b.load(w, j));
  });
  one("cross_entropy", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(rows), i = b.loop(rows), f = b.fold_range(n);
    UOp top = fold(ReduceOp::Max, b.load(in, i * n + f), f);
    UOp total = fold(ReduceOp::Sum, exp(b.load(in, i * n + f) - top), f);
    b.store(out, i, unary(Op::Log2, total) + top);
  });
  one("rmsnorm_backward", [&](Builder& b) {  // by x; the gradient of w is a sum over columns
    UOp in = b.param(cells), g = b.param(cells), out = b.param(cells), w = b.param(n);
    UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n), x = b.load(in, i * n + f);
    double part = 1.0 / static_cast<double>(n);
    UOp factor =
        unary(Op::Recip, unary(Op::Sqrt, fold(ReduceOp::Sum, x * x, f) * real(part) + real(1e-5)));
    UOp dot = fold(ReduceOp::Sum, b.load(g, i * n + f) * b.load(w, f) * x, f) * real(part);
    UOp scaled = b.load(g, i * n + j) * b.load(w, j);
    b.store(out, i * n + j, factor * (scaled - b.load(in, i * n + j) * factor * factor * dot));
  });
  one("softmax_backward", [&](Builder& b) {  // from the result and its gradient
    UOp y = b.param(cells), g = b.param(cells), out = b.param(cells);
    UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n);
    UOp dot = fold(ReduceOp::Sum, b.load(y, i * n + f) * b.load(g, i * n + f), f);
    b.store(out, i * n + j, b.load(y, i * n + j) * (b.load(g, i * n + j) - dot));
  });
  one("layernorm_backward", [&](Builder& b) {  // by x, given the mean and the factor of each row
    UOp in = b.param(cells), g = b.param(cells), out = b.param(cells), w = b.param(n),
        means = b.param(rows), factors = b.param(rows);
    UOp i = b.loop(rows), j = b.loop(n), f = b.fold_range(n);
    UOp mean = b.load(means, i), factor = b.load(factors, i);
    double part = 1.0 / static_cast<double>(n);
    auto normal = [&](const UOp& at) { return (b.load(in, i * n + at) - mean) * factor; };
    auto scaled = [&](const UOp& at) { return b.load(g, i * n + at) * b.load(w, at); };
    UOp sum = fold(ReduceOp::Sum, scaled(f), f) * real(part);
    UOp dot = fold(ReduceOp::Sum, scaled(f) * normal(f), f) * real(part);
    b.store(out, i * n + j, factor * (scaled(j) - sum - normal(j) * dot));
  });
  one("scale_gradient", [&](Builder& b) {  // 768 columns
    int64_t wide = 768, high = std::max<int64_t>(8, cells / wide / 8 * 8);
    UOp g = b.param(high * wide), in = b.param(high * wide), out = b.param(wide),
        bias = b.param(wide);
    UOp j = b.loop(wide), f = b.fold_range(high);
    b.store(out, j, fold(ReduceOp::Sum, b.load(g, f * wide + j) * b.load(in, f * wide + j), f));
    b.store(bias, j, fold(ReduceOp::Sum, b.load(g, f * wide + j), f));
  });
  one("sum_columns_768", [&](Builder& b) {  // the first of two steps
    int64_t wide = 768, parts = 16, high = cells / wide / parts;
    UOp in = b.param(high * parts * wide), out = b.param(parts * wide), p = b.loop(parts),
        j = b.loop(wide), f = b.fold_range(high);
    b.store(out, p * wide + j, fold(ReduceOp::Sum, b.load(in, (p * high + f) * wide + j), f));
  });
  one("sum_columns_768_at_once", [&](Builder& b) {
    int64_t wide = 768, high = cells / wide;
    UOp in = b.param(high * wide), out = b.param(wide), j = b.loop(wide), f = b.fold_range(high);
    b.store(out, j, fold(ReduceOp::Sum, b.load(in, f * wide + j), f));
  });
  one("sum_all_at_once", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(1), f = b.fold_range(cells);
    b.store(out, index_const(0), fold(ReduceOp::Sum, b.load(in, f), f));
  });
  one("sum_of_64_rows", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(64), i = b.loop(64), f = b.fold_range(cells / 64);
    b.store(out, i, fold(ReduceOp::Sum, b.load(in, i * (cells / 64) + f), f));
  });
  one("softmax_50257", [&](Builder& b) {
    int64_t wide = 50257, high = std::clamp<int64_t>(cells / wide, 1, 1024);
    UOp in = b.param(high * wide), out = b.param(high * wide), i = b.loop(high), j = b.loop(wide),
        f = b.fold_range(wide);
    UOp top = fold(ReduceOp::Max, b.load(in, i * wide + f), f);
    UOp total = fold(ReduceOp::Sum, exp(b.load(in, i * wide + f) - top), f);
    b.store(out, i * wide + j, exp(b.load(in, i * wide + j) - top) * unary(Op::Recip, total));
  });
  one("softmax_50304", [&](Builder& b) {
    int64_t wide = 50304, high = std::clamp<int64_t>(cells / wide, 1, 1024);
    UOp in = b.param(high * wide), out = b.param(high * wide), i = b.loop(high), j = b.loop(wide),
        f = b.fold_range(wide);
    UOp top = fold(ReduceOp::Max, b.load(in, i * wide + f), f);
    UOp total = fold(ReduceOp::Sum, exp(b.load(in, i * wide + f) - top), f);
    b.store(out, i * wide + j, exp(b.load(in, i * wide + j) - top) * unary(Op::Recip, total));
  });
  one("softmax_64", [&](Builder& b) {
    int64_t wide = 64, high = cells / wide;
    UOp in = b.param(high * wide), out = b.param(high * wide), i = b.loop(high), j = b.loop(wide),
        f = b.fold_range(wide);
    UOp top = fold(ReduceOp::Max, b.load(in, i * wide + f), f);
    UOp total = fold(ReduceOp::Sum, exp(b.load(in, i * wide + f) - top), f);
    b.store(out, i * wide + j, exp(b.load(in, i * wide + j) - top) * unary(Op::Recip, total));
  });
  one("scale_odd", [&](Builder& b) {
    UOp in = b.param(cells - 3), out = b.param(cells - 3), i = b.loop(cells - 3);
    b.store(out, i, b.load(in, i) * real(1.5));
  });
  one("transpose", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), i = b.loop(n), j = b.loop(rows);
    b.store(out, i * rows + j, b.load(in, j * n + i));
  });
  one("two_orders", [&](Builder& b) {
    UOp in = b.param(cells), out = b.param(cells), turned = b.param(cells), i = b.loop(rows),
        j = b.loop(n);
    UOp x = b.load(in, i * n + j) * real(1.5);
    b.store(out, i * n + j, x);
    b.store(turned, j * rows + i, x);
  });
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Bench bench;
  std::string device;
  int64_t rows = 8192, columns = 8192;
  CLI::App app("Generated kernels beside a copy.");
  app.add_option("--only", bench.only, "Part of the names of the kernels to run");
  app.add_option("--device", device, "Where [the best device there is]");
  app.add_option("--rows", rows, "Of the operands")->check(CLI::Range(8, 1 << 20));
  app.add_option("--columns", columns, "Of the operands")->check(CLI::Range(8, 1 << 20));
  app.add_option("--samples", bench.samples, "Of each kernel")->check(CLI::PositiveNumber);
  app.add_option("--ptx", bench.folder, "Folder to write the code of an H200's kernels to");
  return bench::run_main("gpu_codegen_bench", app, argc, argv, [&] {
    if (bench.folder.empty()) {
      bench.device = &bench::open_device(device);
      bench.copies(rows * columns * 4);
    } else {
      std::filesystem::create_directories(bench.folder);
    }
    for (DType t : {DType::F32, DType::BF16}) all(bench, t, rows, columns);
  });
}
