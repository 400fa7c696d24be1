// Each question of the executor goes to the file that knows: PTX to ptx.cpp, library calls to
// library_calls.cpp, sizes of operands worth copying to matmul.cpp.
#include "devices/cuda/vendor.h"

#include <charconv>

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/cuda/driver.h"
#include "devices/cuda/executor.h"
#include "devices/cuda/gpu_target.h"
#include "devices/cuda/library_calls.h"
#include "devices/cuda/matmul.h"
#include "devices/cuda/ptx.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::cuda {
namespace {

class CudaVendor final : public Vendor {
 public:
  const Driver& driver() const override { return CudaDriver::get(); }
  std::string capability(DeviceId id) const override {
    const auto [major, minor] = CudaDriver::get().capability(id);
    return fmt::format("{}.{}", major, minor);
  }
  Target target(std::string_view capability) const override {
    const size_t point = capability.find('.');
    auto number = [](std::string_view digits) {
      int value = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
      return value;
    };
    return gpu_target(number(capability.substr(0, point)), number(capability.substr(point + 1)),
                      driver().version());
  }
  const DeviceProfile& profile() const override { return gpu_profile(); }

  void prepare(const ObjectCode& code, std::string_view capability,
               std::string_view device) const override {
    machine_code(code.bytes.data(), capability, device);
  }
  Module load(const ObjectCode& code, std::string_view capability,
              std::string_view device) const override {
    return load_ptx(code.bytes.data(), capability, device);
  }
  int count_parameters(const ObjectCode& code) const override {
    if (code.bytes.empty() || code.bytes.back() != '\0')
      throw InternalError(fmt::format("the code of kernel {} has no end", code.entry));
    return cuda::count_parameters(code.bytes.data(), code.entry);
  }

  bool supports(const Gpu& gpu, const LibraryCall& call, std::string* why) const override {
    return library_supports(gpu, call, why);
  }
  const LibraryProvider* provider() const override { return &gpu::products_provider(); }
  int64_t worth_copying(const Gpu& gpu, const LibraryCall& call, int operand) const override {
    return call.node.op() == Op::Dot ? matmul_worth_copying(gpu.target(), call, operand) : 0;
  }
  void prepare(Gpu& gpu, const LibraryCall& call) const override {
    prepare_library_call(gpu, call);
  }
  std::unique_ptr<Program> library(Gpu& gpu, const LibraryCall& call) const override {
    return make_library_program(gpu, call);
  }
};

}  // namespace

const Vendor& vendor() {
  static const auto& vendor = *new CudaVendor;  // outlives every static tensor
  return vendor;
}

}  // namespace tinyshard::cuda
