// The library is opened once and never closed; a missing function
// makes it count as missing, with a reason.
#include "devices/cuda/cudnn.h"

#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"

namespace tinyshard::cuda {

const Cudnn& Cudnn::get() {
  static const Cudnn* library = new Cudnn;
  return *library;
}

Cudnn::Cudnn() : VendorLibrary(options().cuda_path, {"libcudnn.so.9"}) {
#define TINYSHARD_CUDNN_RESOLVE(name, symbol, parameters) resolve(name, symbol);
  TINYSHARD_CUDNN_FUNCTIONS(TINYSHARD_CUDNN_RESOLVE)
#undef TINYSHARD_CUDNN_RESOLVE
  resolve(get_version_, "cudnnGetVersion");
  resolve(status_name_, "cudnnGetErrorString");
  resolve(last_error_, "cudnnGetLastErrorString");
}

std::string Cudnn::version() const {
  size_t v = number();
  return fmt::format("{}.{}.{}, {}", v / 10000, v / 100 % 100, v % 100, path());
}

std::string Cudnn::last_error() const {
  std::array<char, 512> message{};
  last_error_(message.data(), message.size());
  return message.data();
}

void Cudnn::fail(DnnStatus status, std::string_view asked) const {
  throw DeviceError(
      fmt::format("cuDNN, {}: {} ({}): {}", asked, status_name_(status), status, last_error()));
}

}  // namespace tinyshard::cuda
