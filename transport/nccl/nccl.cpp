// A library before 2.14 has no communicators that do not block, on
// which deadlines rest: it is refused.
#include "transport/nccl/nccl.h"

#include <fmt/format.h>

#include "core/base/options.h"

namespace tinyshard::nccl {

const Nccl* Nccl::of(std::string_view kind) {
  if (kind == "CUDA") {
    static const Nccl* nccl = new Nccl("NCCL", options().cuda_path, "libnccl.so.2");
    return nccl;
  }
  if (kind == "HIP") {
    static const Nccl* rccl = new Nccl("RCCL", options().hip_path, "librccl.so.1");
    return rccl;
  }
  return nullptr;
}

Nccl::Nccl(std::string_view name, std::string_view folders, const char* file)
    : VendorLibrary(folders, {file}), name_(name) {
  constexpr int kOldest = 21400;  // the first with communicators that do not block
#define TINYSHARD_NCCL_RESOLVE(name, symbol, parameters) resolve(name, symbol);
  TINYSHARD_NCCL_FUNCTIONS(TINYSHARD_NCCL_RESOLVE)
#undef TINYSHARD_NCCL_RESOLVE
  resolve(error_string_, "ncclGetErrorString");
  resolve(last_error_, "ncclGetLastError");
  if (!found()) return;
  get_version(&version_);
  if (version_ < kOldest)
    refuse(fmt::format("{} is version {}, older than {}", path(), version_, kOldest));
}

std::string Nccl::describe() const {
  return fmt::format("{}.{}.{}, {}", version_ / 10000, version_ / 100 % 100, version_ % 100,
                     path());
}

std::string Nccl::error(Result result, Comm comm) const {
  const char* more = last_error_(comm);
  std::string text = fmt::format("{}: {} ({})", name_, error_string_(result), result);
  return more && *more ? text + ": " + more : text;
}

}  // namespace tinyshard::nccl
