// Generated code is machine code already. Products, convolutions and attention are generated loops:
// of library calls there are scatters alone, whose kernels are generated too.
#include "devices/hip/vendor.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/gpu/gpu.h"
#include "devices/gpu/program.h"
#include "devices/hip/code_object.h"
#include "devices/hip/driver.h"
#include "devices/hip/gpu_target.h"
#include "devices/hip/library_calls.h"

namespace tinyshard::hip {
namespace {

class HipVendor final : public gpu::Vendor {
 public:
  const gpu::Driver& driver() const override { return HipDriver::get(); }
  std::string capability(gpu::DeviceId id) const override {
    return HipDriver::get().architecture(id);
  }
  Target target(std::string_view capability) const override { return gpu_target(capability); }
  const DeviceProfile& profile() const override { return gpu_profile(); }

  void prepare(const ObjectCode&, std::string_view, std::string_view) const override {}
  gpu::Module load(const ObjectCode& code, std::string_view,
                   std::string_view device) const override {
    gpu::Module module = nullptr;
    driver().check(driver().module_load(&module, code.bytes.data(), 0, nullptr, nullptr), device,
                   fmt::format("loading kernel {}", code.entry));
    return module;
  }
  int count_parameters(const ObjectCode& code) const override {
    const auto descriptor = find_descriptor(code.bytes, code.entry);
    return descriptor ? int(descriptor->argument_bytes / sizeof(uint64_t)) : -1;
  }

  bool supports(const gpu::Gpu&, const LibraryCall& call, std::string* why) const override {
    return library_supports(call, why);
  }
  const LibraryProvider* provider() const override { return nullptr; }
  int64_t worth_copying(const gpu::Gpu&, const LibraryCall&, int) const override { return 0; }
  void prepare(gpu::Gpu&, const LibraryCall&) const override {}
  std::unique_ptr<Program> library(gpu::Gpu& gpu, const LibraryCall& call) const override {
    return make_library_program(gpu, call);
  }
};

}  // namespace

const gpu::Vendor& vendor() {
  static const auto& vendor = *new HipVendor;  // outlives every static tensor
  return vendor;
}

}  // namespace tinyshard::hip
