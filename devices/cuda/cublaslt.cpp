#include "devices/cuda/cublaslt.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/runtime/vendor_library.h"

namespace tinyshard::cuda {

const CublasLt& CublasLt::get() {
  static const CublasLt* library = new CublasLt;
  return *library;
}

CublasLt::CublasLt() {
  VendorLibrary library("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"});
  found_ = library.found();
#define TINYSHARD_CUBLASLT_RESOLVE(name, symbol, parameters) \
  found_ = found_ && library.resolve(name, symbol);
  TINYSHARD_CUBLASLT_FUNCTIONS(TINYSHARD_CUBLASLT_RESOLVE)
#undef TINYSHARD_CUBLASLT_RESOLVE
  found_ = found_ && library.resolve(get_version_, "cublasLtGetVersion") &&
           library.resolve(status_name_, "cublasLtGetStatusName");
  why_not_ = library.why_not();
  path_ = library.path();
}

std::string CublasLt::version() const {
  size_t v = get_version_();
  return fmt::format("{}.{}.{}, {}", v / 10000, v / 100 % 100, v % 100, path_);
}

void CublasLt::fail(LtStatus status, std::string_view device, std::string_view asked) const {
  throw DeviceError(
      fmt::format("{}: {} failed: {} ({})", device, asked, status_name_(status), status));
}

}  // namespace tinyshard::cuda
