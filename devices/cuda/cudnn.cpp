#include "devices/cuda/cudnn.h"

#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/runtime/vendor_library.h"

namespace tinyshard::cuda {

const Cudnn& Cudnn::get() {
  static const Cudnn* library = new Cudnn;
  return *library;
}

Cudnn::Cudnn() {
  VendorLibrary library("cuDNN", {"libcudnn.so.9"});
  found_ = library.found();
#define TINYSHARD_CUDNN_RESOLVE(name, symbol, parameters) \
  found_ = found_ && library.resolve(name, symbol);
  TINYSHARD_CUDNN_FUNCTIONS(TINYSHARD_CUDNN_RESOLVE)
#undef TINYSHARD_CUDNN_RESOLVE
  found_ = found_ && library.resolve(get_version_, "cudnnGetVersion") &&
           library.resolve(status_name_, "cudnnGetErrorString") &&
           library.resolve(last_error_, "cudnnGetLastErrorString");
  why_not_ = library.why_not();
  path_ = library.path();
}

std::string Cudnn::version() const {
  size_t v = number();
  return fmt::format("{}.{}.{}, {}", v / 10000, v / 100 % 100, v % 100, path_);
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
