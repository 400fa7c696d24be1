// Products of a GPU's library as the engine calls them, with and without what follows them:
//
//   gpu_product_bench [part of a name]            BEAM=n to time n algorithms of each first
//
// Medians of replayed recordings; bench/peers/torch_gpu_products.py is the same work in PyTorch.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/dtype/half.h"
#include "devices/cuda/cuda_device.h"

namespace tinyshard {
namespace {

// Memory full of normal random numbers, in bf16.
class Numbers {
 public:
  Numbers(Device& device, int64_t count) : device_(device), bytes_(size_t(count) * 2) {
    memory_ = device.allocate(bytes_);
    static const std::vector<uint16_t> kSome = [] {
      std::mt19937 random(1);
      std::normal_distribution<float> normal;
      std::vector<uint16_t> some(1 << 20);
      for (uint16_t& x : some) x = f32_to_bf16(normal(random));
      return some;
    }();
    for (size_t done = 0; done < bytes_; done += kSome.size() * 2)
      device.copy_in(static_cast<char*>(memory_) + done, kSome.data(),
                     std::min(kSome.size() * 2, bytes_ - done));
  }
  ~Numbers() { device_.free(memory_, bytes_); }
  Numbers(const Numbers&) = delete;
  void* get() const { return memory_; }

 private:
  Device& device_;
  size_t bytes_;
  void* memory_;
};

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
    return UOp::make(Op::Dot, DType::BF16, src,
                     e == Epilogue::None ? Dims{0} : Dims{0, int64_t(e)});
  };
  call.node = node(c.epilogue);
  if (c.both) call.also = {node(Epilogue::Bias)};
  return call;
}

void measure(Device& gpu, const Case& c) {
  LibraryCall call = call_of(c);
  std::string why;
  if (!gpu.supports(call, &why)) {
    std::printf("%-36s refused: %s\n", c.name, why.c_str());
    return;
  }
  Numbers a(gpu, c.m * c.k), b(gpu, c.k * c.n),
      third(gpu, c.epilogue == Epilogue::GeluBackward ? c.m * c.n : c.n), out(gpu, c.m * c.n),
      sum(gpu, c.m * c.n);
  void* plain[] = {a.get(), b.get(), out.get()};
  void* fused[] = {a.get(), b.get(), third.get(), out.get(), sum.get()};
  void* const* buffers = c.epilogue == Epilogue::None ? plain : fused;
  auto program = gpu.library(call);
  program->launch(buffers, nullptr);
  double flops = 2.0 * double(c.m) * double(c.k) * double(c.n);
  int repeat = int(std::clamp(1e13 / flops, 4.0, 200.0));
  gpu.begin_recording();
  for (int i = 0; i < repeat; ++i) program->launch(buffers, nullptr);
  auto recording = gpu.end_recording();
  std::vector<double> us;
  for (int round = 0; round < 12; ++round) {
    gpu.synchronize();
    auto start = std::chrono::steady_clock::now();
    recording->launch();
    gpu.synchronize();
    us.push_back(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                     .count() /
                 repeat);
  }
  std::ranges::sort(us);
  double median = us[us.size() / 2];
  std::printf("%-36s %9.2f us %7.1f TFLOP/s\n", c.name, median, flops / median / 1e6);
  std::fflush(stdout);
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {
  using namespace tinyshard;
  if (count_cuda_devices() == 0) {
    std::printf("%s\n", describe_cuda().c_str());
    return 0;
  }
  std::string only = argc > 1 ? argv[1] : "";
  auto gpu = make_cuda_device(0);
  const Case cases[] = {
      {"8192 x 8192 x 8192", 8192, 8192, 8192, false},
      {"4096 x 4096 x 4096", 4096, 4096, 4096, false},
      {"1024 x 1024 x 1024", 1024, 1024, 1024, false},
      {"65536 x 768 x 3072", 65536, 768, 3072, true},
      {"65536 x 768 x 3072, bias", 65536, 768, 3072, true, Epilogue::Bias},
      {"65536 x 768 x 3072, bias, GELU", 65536, 768, 3072, true, Epilogue::BiasGelu},
      {"65536 x 768 x 3072, bias kept, GELU", 65536, 768, 3072, true, Epilogue::BiasGelu, true},
      {"65536 x 3072 x 768, bias", 65536, 3072, 768, true, Epilogue::Bias},
      {"65536 x 768 x 3072", 65536, 768, 3072, false},
      {"65536 x 768 x 3072, GELU's gradient", 65536, 768, 3072, false, Epilogue::GeluBackward},
      {"65536 x 768 x 2304, bias", 65536, 768, 2304, true, Epilogue::Bias},
      {"65536 x 768 x 50304", 65536, 768, 50304, true},
  };
  for (const Case& c : cases) {
    if (std::string(c.name).find(only) != std::string::npos) measure(*gpu, c);
  }
}
