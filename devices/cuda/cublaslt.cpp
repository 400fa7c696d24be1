// The functions in use are the same in the library's versions 12 and
// 13, so the newest one found serves.
#include "devices/cuda/cublaslt.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"

namespace tinyshard::cuda {

const CublasLt& CublasLt::get() {
  static const CublasLt* library = new CublasLt;
  return *library;
}

CublasLt::CublasLt()
    : VendorLibrary(options().cuda_path, {"libcublasLt.so.13", "libcublasLt.so.12"}) {
#define TINYSHARD_CUBLASLT_RESOLVE(name, symbol, parameters) resolve(name, symbol);
  TINYSHARD_CUBLASLT_FUNCTIONS(TINYSHARD_CUBLASLT_RESOLVE)
#undef TINYSHARD_CUBLASLT_RESOLVE
  resolve(get_version_, "cublasLtGetVersion");
  resolve(status_name_, "cublasLtGetStatusName");
}

std::string CublasLt::version() const {
  size_t v = get_version_();
  return fmt::format("{}.{}.{}, {}", v / 10000, v / 100 % 100, v % 100, path());
}

void CublasLt::fail(LtStatus status, std::string_view device, std::string_view asked) const {
  throw DeviceError(
      fmt::format("{}: {} failed: {} ({})", device, asked, status_name_(status), status));
}

}  // namespace tinyshard::cuda
