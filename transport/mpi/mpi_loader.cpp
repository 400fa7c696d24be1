// MPI is in a plug-in beside this library, which is opened when somebody first asks for it:
// programs that do not use MPI need none. The reason why there is none is kept for whoever asks.
#include <dlfcn.h>
#include <filesystem>

#include <fmt/format.h>

#include "core/base/error.h"
#include "transport/mpi/mpi_channel.h"
#include "transport/mpi/mpi_plugin.h"

namespace tinyshard {
namespace {

constexpr const char* kPlugin = "libtinyshard_mpi.so";
constexpr const char* kAdvice =
    "install libopenmpi-dev, configure with TINYSHARD_MPI=ON and build again";

struct Loaded {
  const MpiPlugin* plugin = nullptr;
  std::string problem;  // why there is none
};

Loaded load() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&connect_mpi), &self) == 0 ||
      self.dli_fname == nullptr) {
    return {nullptr, "the library does not know where it lies"};
  }
  const std::filesystem::path path = std::filesystem::path(self.dli_fname).parent_path() / kPlugin;
  std::error_code none;
  if (!std::filesystem::exists(path, none)) {
    return {nullptr, fmt::format("built without MPI, there is no {}: {}", path.string(), kAdvice)};
  }
  // Global, because Open MPI opens components of its own that take libmpi's symbols for granted;
  // the plug-in shows no other. It stays: MPI cannot be left and entered again.
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (handle == nullptr)
    return {nullptr, fmt::format("{} (Debian package libopenmpi3)", dlerror())};
  auto entry =
      reinterpret_cast<decltype(&tinyshard_mpi_plugin)>(dlsym(handle, "tinyshard_mpi_plugin"));
  if (entry == nullptr)
    return {nullptr, fmt::format("{} is not a plug-in of this library", path.string())};
  return {entry(), {}};
}

const Loaded& loaded() {
  static const Loaded once = load();
  return once;
}

}  // namespace

std::unique_ptr<Channel> connect_mpi(const LaunchEnvironment& launch,
                                     std::chrono::nanoseconds timeout) {
  if (!loaded().plugin) {
    throw UserError(fmt::format("{} started {} ranks, but there is no MPI to join them: {}",
                                name(launch.launcher), launch.size, loaded().problem));
  }
  return loaded().plugin->connect(launch, timeout);
}

TransportInfo mpi_info() {
  if (!loaded().plugin) return {"mpi", false, loaded().problem};
  return loaded().plugin->info();
}

}  // namespace tinyshard
