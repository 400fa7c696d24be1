#include "tests/core/codegen/gpu_machine.h"

#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "devices/cuda/planned_gpu.h"
#include "tests/core/codegen/gpu_driver.h"

namespace tinyshard::test {
namespace {

class Gpu : public Machine {
 public:
  explicit Gpu(GpuDriver& driver) : driver_(driver) {}
  const Target& target() const override { return driver_.target(); }

  void run(const CompiledKernel& kernel, std::span<const MachineBuffer> buffers,
           std::span<const int64_t> coordinates, int) override {
    if (kernel.code.work_items == 0) return;
    void* module = nullptr;
    void* function = driver_.load(kernel.code, &module);
    // Behind each buffer bytes that must stay as they are.
    constexpr size_t kGuard = 256;
    std::vector<DevicePointer> memory;
    std::vector<char> image;
    for (const MachineBuffer& b : buffers) {
      image.assign(b.bytes + kGuard, '\x5a');
      std::memcpy(image.data(), b.data, b.bytes);
      memory.push_back(driver_.allocate(image.size()));
      driver_.to_device(memory.back(), image.data(), image.size());
    }
    driver_.launch(function, kernel.code, memory, coordinates);
    driver_.synchronize();
    for (size_t i = 0; i < memory.size(); ++i) {
      image.resize(buffers[i].bytes + kGuard);
      driver_.from_device(image.data(), memory[i], image.size());
      std::memcpy(buffers[i].data, image.data(), buffers[i].bytes);
      for (size_t k = 0; k < kGuard; ++k) {
        ASSERT_EQ(image[buffers[i].bytes + k], '\x5a')
            << kernel.name << " writes behind the buffer of slot " << i;
      }
      driver_.release(memory[i]);
    }
    driver_.unload(module);
  }

 private:
  GpuDriver& driver_;
};

class PtxWriter : public Machine {
 public:
  explicit PtxWriter(std::string folder) : folder_(std::move(folder)) {
    target_ = cuda::planned_h200().target;
    std::filesystem::create_directories(folder_);
  }
  const Target& target() const override { return target_; }
  bool computes() const override { return false; }
  void run(const CompiledKernel& kernel, std::span<const MachineBuffer>, std::span<const int64_t>,
           int) override {
    if (kernel.code.bytes.empty()) return;
    std::ofstream out(folder_ + "/" + std::to_string(count_++) + "_" + kernel.name + ".ptx");
    out << "// blocks " << kernel.code.work_items << " of " << kernel.code.block << " threads\n"
        << kernel.code.bytes.data();
  }

 private:
  std::string folder_;
  Target target_;
  int count_ = 0;
};

}  // namespace

std::unique_ptr<Machine> make_gpu_machine(std::string& reason) {
  GpuDriver* driver = GpuDriver::open(reason);
  return driver ? std::make_unique<Gpu>(*driver) : nullptr;
}

std::unique_ptr<Machine> make_ptx_writer(const std::string& folder) {
  return std::make_unique<PtxWriter>(folder);
}

}  // namespace tinyshard::test
