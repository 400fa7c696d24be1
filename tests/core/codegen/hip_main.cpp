// Runs the tests of generated kernels on the first HIP device.
#include <cstdio>
#include <cstring>

#include <gtest/gtest.h>

#include "devices/hip/hip_device.h"
#include "tests/core/codegen/machine.h"

namespace tinyshard::test {
namespace {

class HipMachine : public Machine {
 public:
  HipMachine() : device_(make_hip_device(0)) {}
  const Target& target() const override { return device_->target(); }

  void run(const CompiledKernel& kernel, std::span<const MachineBuffer> buffers,
           std::span<const int64_t> coordinates, int) override {
    if (kernel.code.work_items == 0) return;
    const auto program = device_->load(kernel.code);
    constexpr size_t kGuard = 256;  // bytes behind each buffer that must stay as they are
    std::vector<void*> memory;
    std::vector<char> image;
    for (const MachineBuffer& b : buffers) {
      image.assign(b.bytes + kGuard, '\x5a');
      std::memcpy(image.data(), b.data, b.bytes);
      memory.push_back(device_->allocate(image.size()));
      device_->copy_in(memory.back(), image.data(), image.size());
    }
    program->launch(memory.data(), coordinates.data());
    device_->synchronize();
    for (size_t i = 0; i < memory.size(); ++i) {
      image.resize(buffers[i].bytes + kGuard);
      device_->copy_out(image.data(), memory[i], image.size());
      std::memcpy(buffers[i].data, image.data(), buffers[i].bytes);
      for (size_t k = 0; k < kGuard; ++k) {
        ASSERT_EQ(image[buffers[i].bytes + k], '\x5a')
            << kernel.name << " writes behind the buffer of slot " << i;
      }
      device_->free(memory[i], image.size());
    }
  }

 private:
  std::unique_ptr<Device> device_;
};

}  // namespace
}  // namespace tinyshard::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (tinyshard::count_hip_devices() == 0) {
    std::printf("skipped: no GPU to run on: %s\n", tinyshard::describe_hip().c_str());
    return 0;
  }
  tinyshard::test::use_machine(std::make_unique<tinyshard::test::HipMachine>());
  return RUN_ALL_TESTS();
}
