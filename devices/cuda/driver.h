// The CUDA driver as a table of devices/gpu/driver.h, found in libcuda.so.1 at run time, and its
// linker, which makes machine code of PTX. Nothing of CUDA is needed to build.
#pragma once
#include <cstddef>
#include <utility>

#include "devices/gpu/driver.h"

namespace tinyshard::cuda {

using LinkState = struct LinkStateTag*;

// Name, exported symbol, parameters. All return a gpu::Result.
#define TINYSHARD_CUDA_LINKER(X)                                          \
  X(link_create, "cuLinkCreate_v2", (unsigned, int*, void**, LinkState*)) \
  X(link_add, "cuLinkAddData_v2",                                         \
    (LinkState, int, void*, size_t, const char*, unsigned, int*, void**)) \
  X(link_complete, "cuLinkComplete", (LinkState, void**, size_t*))        \
  X(link_destroy, "cuLinkDestroy", (LinkState))

class CudaDriver final : public gpu::Driver {
 public:
  // Opened and initialised at the first call; later calls return the same.
  static const CudaDriver& get();
  // The two numbers of a GPU's compute capability.
  std::pair<int, int> capability(gpu::DeviceId id) const;

#define TINYSHARD_CUDA_MEMBER(name, symbol, parameters) gpu::Result(*name) parameters = nullptr;
  TINYSHARD_CUDA_LINKER(TINYSHARD_CUDA_MEMBER)
#undef TINYSHARD_CUDA_MEMBER

 private:
  CudaDriver();
};

}  // namespace tinyshard::cuda
