// Machine code is found by the GPU's capability, the driver's version and the text itself: in this
// process, then in the file cache; else the driver's linker compiles it. Two threads may compile
// one text at the same time, which costs time and nothing else: the first result stays.
#include "devices/cuda/ptx.h"

#include <array>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/options.h"
#include "core/runtime/file_cache.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {
namespace {

constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CU_JIT_ERROR_LOG_BUFFER, ..._SIZE_BYTES
constexpr int kInputPtx = 1;

std::string compile(const char* ptx, std::string_view device) {
  const CudaDriver& driver = CudaDriver::get();
  std::string log(8192, '\0');
  std::array<int, 2> names{kErrorLog, kErrorLogBytes};
  auto* size = reinterpret_cast<void*>(log.size());  // NOLINT(performance-no-int-to-ptr): theirs
  std::array<void*, 2> values{log.data(), size};
  LinkState link = nullptr;
  driver.check(driver.link_create(2, names.data(), values.data(), &link), device, "a linker");
  struct Closer {
    const CudaDriver& driver;
    LinkState link;
    ~Closer() { driver.link_destroy(link); }
  } closer{driver, link};
  std::string_view text(ptx);
  void* cubin = nullptr;
  size_t bytes = 0;
  Result result = driver.link_add(link, kInputPtx, const_cast<char*>(ptx), text.size() + 1,
                                  "kernel.ptx", 0, nullptr, nullptr);
  if (result == kSuccess) result = driver.link_complete(link, &cubin, &bytes);
  if (result != kSuccess) {
    throw DeviceError(fmt::format("{}: compiling PTX failed: {}\n{}", device,
                                  driver.describe(result), log.c_str()));
  }
  return {static_cast<const char*>(cubin), bytes};
}

}  // namespace

std::shared_ptr<const std::string> machine_code(const char* ptx, std::string_view capability,
                                                std::string_view device) {
  static std::mutex mutex;
  static std::unordered_map<std::string, std::shared_ptr<const std::string>> made;
  std::string key = fmt::format("cubin {} {} {}", capability, CudaDriver::get().version(), ptx);
  {
    std::lock_guard lock(mutex);
    if (auto found = made.find(key); found != made.end()) return found->second;
  }
  auto kept = file_cache::load(key, "cubin");
  auto code = std::make_shared<const std::string>(kept ? std::move(*kept) : compile(ptx, device));
  if (!kept) file_cache::store(key, "cubin", *code);
  std::lock_guard lock(mutex);
  return made.emplace(std::move(key), std::move(code)).first->second;
}

Module load_ptx(const char* ptx, std::string_view capability, std::string_view device) {
  Module module = nullptr;
  CudaDriver::get().check(
      CudaDriver::get().module_load(&module, machine_code(ptx, capability, device)->data(), 0,
                                    nullptr, nullptr),
      device, "loading a kernel");
  return module;
}

int count_parameters(std::string_view ptx, std::string_view entry) {
  for (size_t at = ptx.find(".entry"); at != std::string_view::npos; at = ptx.find(".entry", at)) {
    at += 6;
    size_t name = ptx.find_first_not_of(" \t\n", at);
    size_t end = ptx.find_first_of(" \t\n({", name);
    if (end == std::string_view::npos || ptx.substr(name, end - name) != entry) continue;
    size_t open = ptx.find_first_of("({", end);
    if (open == std::string_view::npos) return -1;
    if (ptx[open] == '{') return 0;
    size_t close = ptx.find(')', open);
    std::string_view list = ptx.substr(open, close - open);
    int count = 0;
    for (size_t p = list.find(".param"); p != std::string_view::npos;
         p = list.find(".param", p + 6))
      ++count;
    return count;
  }
  return -1;
}

}  // namespace tinyshard::cuda
