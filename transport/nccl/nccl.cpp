#include "transport/nccl/nccl.h"

#include <fmt/format.h>

#include "core/runtime/vendor_library.h"

namespace tinyshard::nccl {

const Nccl& Nccl::get() {
  static const Nccl* library = new Nccl;
  return *library;
}

Nccl::Nccl() {
  constexpr int kOldest = 21400;  // the first with communicators that do not block
  VendorLibrary library("NCCL", {"libnccl.so.2"});
  found_ = library.found();
#define TINYSHARD_NCCL_RESOLVE(name, symbol, parameters) \
  found_ = found_ && library.resolve(name, symbol);
  TINYSHARD_NCCL_FUNCTIONS(TINYSHARD_NCCL_RESOLVE)
#undef TINYSHARD_NCCL_RESOLVE
  found_ = found_ && library.resolve(error_string_, "ncclGetErrorString") &&
           library.resolve(last_error_, "ncclGetLastError");
  why_not_ = library.why_not();
  path_ = library.path();
  if (!found_) return;
  get_version(&version_);
  if (version_ >= kOldest) return;
  found_ = false;
  why_not_ = fmt::format("{} is version {}, older than {}", path_, version_, kOldest);
}

std::string Nccl::describe() const {
  return fmt::format("{}.{}.{}, {}", version_ / 10000, version_ / 100 % 100, version_ % 100, path_);
}

std::string Nccl::error(Result result, Comm comm) const {
  const char* more = last_error_(comm);
  std::string text = fmt::format("NCCL: {} ({})", error_string_(result), result);
  return more && *more ? text + ": " + more : text;
}

}  // namespace tinyshard::nccl
