#include "cli/report.h"

#include <filesystem>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/exec/runtime.h"
#include "devices/cpu/library.h"
#include "devices/cuda/cublaslt.h"
#include "devices/cuda/cudnn.h"
#include "launch/environment.h"
#include "transport/world.h"

namespace tinyshard::cli {
namespace {

namespace fs = std::filesystem;

std::string row(std::string_view name, bool found, std::string_view detail) {
  return fmt::format("  {:<8} {:<8} {}\n", name, found ? "found" : "missing", detail);
}

// Kernel files of the cache: regular files directly in its folder.
std::pair<int64_t, int64_t> count_kernels(bool remove) {
  int64_t files = 0, bytes = 0;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(options().cache_dir, error)) {
    if (!entry.is_regular_file(error)) continue;
    ++files;
    bytes += int64_t(entry.file_size(error));
    if (remove) {
      fs::remove(entry.path(), error);
      if (error)
        throw UserError(
            fmt::format("cannot delete {}: {}", entry.path().string(), error.message()));
    }
  }
  return {files, bytes};
}

}  // namespace

std::string devices_report() {
  std::string text = "devices\n";
  for (const DeviceKind& kind : builtins().devices) {
    int count = kind.count();
    std::string detail = kind.detail();
    if (count > 0 && !kind.hardware)
      detail += fmt::format("; {}:0 to {}:{}", kind.name, kind.name, count - 1);
    text += row(kind.name, count > 0, detail);
  }
  text += "libraries\n";
  for (const LibraryReport& library : library_reports()) {
    text += row(library.name, library.available,
                library.available
                    ? fmt::format("{}, {}, {}", library.version, library.isa, library.threading)
                    : library.why_not);
  }
  const cuda::CublasLt& cublas = cuda::CublasLt::get();
  text += row("cuBLASLt", cublas.found(), cublas.found() ? cublas.version() : cublas.why_not());
  const cuda::Cudnn& cudnn = cuda::Cudnn::get();
  text += row("cuDNN", cudnn.found(), cudnn.found() ? cudnn.version() : cudnn.why_not());
  text += "transports\n";
  for (const TransportInfo& t : transports()) text += row(t.name, t.available, t.detail);
  LaunchEnvironment launch = read_launch_environment();
  text += launch.launcher == Launcher::None
              ? "this process runs alone: start several with mpirun or srun\n"
              : fmt::format("started by {} as rank {} of {}\n", name(launch.launcher), launch.rank,
                            launch.size);
  return text;
}

std::string environment_report() {
  std::string text;
  for (const OptionRow& o : option_rows()) {
    text += fmt::format("{:<18} {:<24} {:<12} {}\n", o.variable, o.value.empty() ? "-" : o.value,
                        o.from_environment ? "(set)" : "(default)", o.meaning);
  }
  return text;
}

std::string cache_report() {
  if (options().cache_dir.empty())
    return "there is no folder for compiled kernels: HOME is not set\n";
  auto [files, bytes] = count_kernels(false);
  return fmt::format("{}: {} kernels, {:.1f} MiB{}\n", options().cache_dir, files,
                     double(bytes) / (1 << 20), options().cache ? "" : " (not in use: TS_CACHE=0)");
}

std::string clear_cache() {
  auto [files, bytes] = count_kernels(true);
  return fmt::format("{}: deleted {} kernels, {:.1f} MiB\n", options().cache_dir, files,
                     double(bytes) / (1 << 20));
}

}  // namespace tinyshard::cli
