// Products of a GPU's library as the engine calls them, with and without what follows them; BEAM=n
// times n algorithms of each first. bench/peers/torch_gpu_products.py is the same work in PyTorch.
#include <algorithm>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "bench/measure.h"
#include "bench/numbers.h"
#include "bench/recorded.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard {
namespace {

using gpu::Epilogue;

struct Case {
  const char* name;
  int64_t m, k, n;
  bool transposed;  // the right operand is stored [n, k]
  Epilogue epilogue = Epilogue::None;
  bool both = false;
};

LibraryCall call_of(const Case& c) {
  int64_t id = 1;
  auto buffer = [&](const Dims& shape) {
    Dims arg{id++};
    arg.insert(arg.end(), shape.begin(), shape.end());
    return UOp::make(Op::Buffer, DType::BF16, {}, arg);
  };
  StridedView a = row_major(Dims{c.m, c.k}), b = row_major(Dims{c.k, c.n});
  if (c.transposed) b.strides = {1, c.k};
  LibraryCall call{{}, {a, b}, {}};
  std::vector<UOp> src{buffer(a.shape), buffer(b.shape)};
  if (c.epilogue != Epilogue::None) {
    bool whole = c.epilogue == Epilogue::GeluBackward;
    call.operands.push_back(row_major(whole ? Dims{c.m, c.n} : Dims{c.n}));
    src.push_back(buffer(call.operands[2].shape));
  }
  auto node = [&](Epilogue e) {
    return gpu::product_with(e, DType::BF16, src[0], src[1], 0, std::span(src).subspan(2));
  };
  call.node = node(c.epilogue);
  if (c.both) call.also = {node(Epilogue::Bias)};
  return call;
}

void measure(Device& gpu, const Case& c, int samples) {
  LibraryCall call = call_of(c);
  std::string why;
  if (!gpu.supports(call, &why)) return bench::print_missing(c.name, why);
  bool whole = c.epilogue == Epilogue::GeluBackward;
  bench::Numbers a(gpu, c.m * c.k, DType::BF16), b(gpu, c.k * c.n, DType::BF16),
      third(gpu, whole ? c.m * c.n : c.n, DType::BF16), out(gpu, c.m * c.n, DType::BF16),
      sum(gpu, c.m * c.n, DType::BF16);
  void* plain[] = {a.get(), b.get(), out.get()};
  void* fused[] = {a.get(), b.get(), third.get(), out.get(), sum.get()};
  void* const* buffers = c.epilogue == Epilogue::None ? plain : fused;
  auto program = gpu.library(call);
  double flops = 2.0 * double(c.m) * double(c.k) * double(c.n);
  int repeat = int(std::clamp(1e13 / flops, 4.0, 200.0));
  bench::Recorded products({&gpu}, [&] {
    for (int i = 0; i < repeat; ++i) program->launch(buffers, nullptr);
  });
  std::vector<double> us = products.times(samples);
  for (double& time : us) time /= repeat;
  bench::print_row(c.name, us, flops * 1e-12, "TFLOP/s");
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  using namespace tinyshard;
  std::string only, device;
  int64_t shrink = 1;
  int samples = 12;
  CLI::App app("Products of a device's library.");
  app.add_option("--only", only, "Part of the names of the cases to run");
  app.add_option("--device", device, "Where [the best device there is]");
  app.add_option("--shrink", shrink, "Divides all sizes, to try the program")
      ->check(CLI::PositiveNumber);
  app.add_option("--samples", samples, "Of each product")->check(CLI::PositiveNumber);
  std::vector<Case> cases{
      {"8192 x 8192 x 8192", 8192, 8192, 8192, false},
      {"4096 x 4096 x 4096", 4096, 4096, 4096, false},
      {"1024 x 1024 x 1024", 1024, 1024, 1024, false},
      {"65536 x 768 x 3072", 65536, 768, 3072, true},
      {"65536 x 768 x 3072, bias", 65536, 768, 3072, true, Epilogue::Bias},
      {"65536 x 768 x 3072, bias, GELU", 65536, 768, 3072, true, Epilogue::BiasGelu},
      {"65536 x 768 x 3072, bias kept, GELU", 65536, 768, 3072, true, Epilogue::BiasGelu, true},
      {"65536 x 3072 x 768, bias", 65536, 3072, 768, true, Epilogue::Bias},
      {"65536 x 768 x 3072, not transposed", 65536, 768, 3072, false},
      {"65536 x 768 x 3072, GELU's gradient", 65536, 768, 3072, false, Epilogue::GeluBackward},
      {"65536 x 768 x 2304, bias", 65536, 768, 2304, true, Epilogue::Bias},
      {"65536 x 768 x 50304", 65536, 768, 50304, true},
  };
  return bench::run_main("gpu_product_bench", app, argc, argv, [&] {
    Device& gpu = bench::open_device(device);
    for (Case& c : cases) {
      for (int64_t* size : {&c.m, &c.k, &c.n}) *size = std::max<int64_t>(1, *size / shrink);
      if (std::string(c.name).find(only) != std::string::npos) measure(gpu, c, samples);
    }
  });
}
