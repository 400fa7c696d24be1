// A kernel's arguments are addresses of the entries in the caller's list
// of buffers, then of coordinates: a recording that reads the list again
// finds new pointers there. A kernel without elements is not loaded.
#include "devices/gpu/program.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "devices/gpu/recorder.h"

namespace tinyshard::gpu {
namespace {

constexpr int kMaxDynamicShared = 8;         // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr int kStaticShared = 1;             // CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
constexpr int kRegisters = 4;                // CU_FUNC_ATTRIBUTE_NUM_REGS
constexpr int kLocalBytes = 3;               // CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES
constexpr int64_t kMostBlocks = 2147483647;  // of the first grid dimension

}  // namespace

void GpuProgram::launch(void* const* buffers, const int64_t* coordinates) {
  gpu_.make_current();
  gpu_.launch(*this, buffers, coordinates, [&] { enqueue(buffers, coordinates); });
}

KernelProgram::KernelProgram(Gpu& gpu, const ObjectCode& code)
    : GpuProgram(gpu), entry_(code.entry), waits_itself_(code.waits_itself) {
  if (code.work_items == 0) return;  // outputs without elements
  if (code.work_items > kMostBlocks) {
    throw DeviceError(fmt::format("{}: kernel {} needs {} blocks, a launch has at most {}",
                                  gpu.name(), entry_, code.work_items, kMostBlocks));
  }
  int parameters = gpu.vendor().count_parameters(code);
  if (parameters < code.coordinates)
    throw InternalError(fmt::format("kernel {} declares {} parameters", entry_, parameters));
  grid_ = unsigned(code.work_items);
  block_ = unsigned(code.block);
  shared_bytes_ = unsigned(code.shared_bytes);
  coordinates_ = size_t(code.coordinates);
  buffers_ = size_t(parameters) - coordinates_;
  arguments_.resize(size_t(parameters));
  gpu.make_current();
  module_ = gpu.vendor().load(code, gpu.capability(), gpu.name());
  const Driver& driver = gpu.driver();
  gpu.check(driver.module_function(&function_, module_, entry_.c_str()),
            fmt::format("finding kernel {}", entry_));
  if (shared_bytes_ > 0 && driver.function_set) {
    gpu.check(driver.function_set(function_, kMaxDynamicShared, int(shared_bytes_)),
              fmt::format("{} bytes of shared memory for kernel {}", shared_bytes_, entry_));
  }
}

KernelProgram::~KernelProgram() {
  if (!module_) return;
  gpu_.driver().set_current(gpu_.context());
  gpu_.driver().module_unload(module_);
}

bool KernelProgram::kernel(void* const* buffers, const int64_t* coordinates,
                           KernelNodeParams* params) {
  if (!function_) return false;
  for (size_t i = 0; i < buffers_; ++i)
    arguments_[i] = static_cast<void*>(const_cast<void**>(buffers + i));
  for (size_t i = 0; i < coordinates_; ++i)
    arguments_[buffers_ + i] = const_cast<int64_t*>(coordinates + i);
  *params = {function_,         {grid_, 1, 1}, {block_, 1, 1}, shared_bytes_,
             arguments_.data(), nullptr,       nullptr,        nullptr};
  return true;
}

void KernelProgram::enqueue(void* const* buffers, const int64_t* coordinates) {
  KernelNodeParams p;
  if (!kernel(buffers, coordinates, &p)) return;
  Result result = gpu_.driver().launch(function_, grid_, 1, 1, block_, 1, 1, shared_bytes_,
                                       gpu_.stream(Queue::Compute), p.params, nullptr);
  if (result != kSuccess) {
    gpu_.check(result, fmt::format("launching kernel {} with {} blocks of {} threads, {} bytes of "
                                   "shared memory",
                                   entry_, grid_, block_, shared_bytes_));
  }
}

std::string KernelProgram::describe() const {
  if (!function_) return fmt::format("{}: nothing to do", entry_);
  auto get = [&](int what) {
    int value = 0;
    gpu_.driver().function_get(&value, what, function_);
    return value;
  };
  return fmt::format("{}: {} x {} threads, {} registers, {} + {} bytes shared, {} bytes local",
                     entry_, grid_, block_, get(kRegisters), get(kStaticShared), shared_bytes_,
                     get(kLocalBytes));
}

}  // namespace tinyshard::gpu
