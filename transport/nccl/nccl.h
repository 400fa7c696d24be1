// NCCL, and RCCL, which has its functions under the same names for GPUs of AMD, as far as we use them: our
// own declarations, found at run time. A maker is a row of nccl.cpp.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "core/runtime/vendor_library.h"

namespace tinyshard::nccl {

using Result = int;
using Comm = struct CommTag*;
using Stream = void*;

constexpr Result kSuccess = 0, kInProgress = 7;

struct UniqueId {
  std::array<char, 128> bytes;
};
// The first fields of ncclConfig_t as of 2.14; `size` tells NCCL that there are no more.
struct Config {
  size_t size = sizeof(Config);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

enum Type : int {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9
};
enum Reduction : int { kSum = 0, kProd = 1, kMax = 2, kMin = 3 };

#define TINYSHARD_NCCL_FUNCTIONS(X)                                                            \
  X(get_version, "ncclGetVersion", (int*))                                                     \
  X(get_unique_id, "ncclGetUniqueId", (UniqueId*))                                             \
  X(init, "ncclCommInitRankConfig", (Comm*, int ranks, UniqueId, int rank, Config*))           \
  X(abort, "ncclCommAbort", (Comm))                                                            \
  X(async_error, "ncclCommGetAsyncError", (Comm, Result*))                                     \
  X(group_start, "ncclGroupStart", ())                                                         \
  X(group_end, "ncclGroupEnd", ())                                                             \
  X(all_reduce, "ncclAllReduce", (const void*, void*, size_t, int, int op, Comm, Stream))      \
  X(reduce, "ncclReduce", (const void*, void*, size_t, int, int op, int root, Comm, Stream))   \
  X(broadcast, "ncclBroadcast", (const void*, void*, size_t, int, int root, Comm, Stream))     \
  X(all_gather, "ncclAllGather", (const void*, void*, size_t, int, Comm, Stream))              \
  X(reduce_scatter, "ncclReduceScatter", (const void*, void*, size_t, int, int, Comm, Stream)) \
  X(send, "ncclSend", (const void*, size_t, int, int peer, Comm, Stream))                      \
  X(receive, "ncclRecv", (void*, size_t, int, int peer, Comm, Stream))

class Nccl : public VendorLibrary {
 public:
  // The library for devices of a kind, "CUDA"; null where there is none for them. Opened at the first
  // call; later calls return the same.
  static const Nccl* of(std::string_view kind);

  std::string_view name() const { return name_; }  // "NCCL"
  int version() const { return version_; }         // 22707 for 2.27.7
  std::string describe() const;                    // "2.27.7, libnccl.so.2"
  std::string error(Result result, Comm comm) const;

#define TINYSHARD_NCCL_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;
  TINYSHARD_NCCL_FUNCTIONS(TINYSHARD_NCCL_MEMBER)
#undef TINYSHARD_NCCL_MEMBER

 private:
  Nccl(std::string_view name, std::string_view folders, const char* file);

  std::string_view name_;
  int version_ = 0;
  const char* (*error_string_)(Result) = nullptr;
  const char* (*last_error_)(Comm) = nullptr;
};

}  // namespace tinyshard::nccl
