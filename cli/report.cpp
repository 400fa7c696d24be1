// The texts of `tinyshard devices`, `env` and the like, made of what the library tells of itself.
#include "cli/report.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "core/exec/context.h"
#include "core/runtime/file_cache.h"
#include "devices/cpu/library.h"
#include "devices/cuda/cublaslt.h"
#include "devices/cuda/cudnn.h"
#include "launch/environment.h"
#include "transport/world.h"

namespace tinyshard::cli {
namespace {

std::string row(std::string_view name, bool found, std::string_view detail) {
  return fmt::format("  {:<8} {:<8} {}\n", name, found ? "found" : "missing", detail);
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
              ? "this process runs alone: start several with tinyshard run, mpirun or srun\n"
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
  const file_cache::Contents cache = file_cache::contents();
  if (!cache.why_not.empty())
    return fmt::format("not in use: {} {}\n", cache.folder, cache.why_not);
  const int64_t limit = options().cache_bytes;
  return fmt::format(
      "{}: {} kernels, {:.1f} MiB{}{}\n", cache.folder, cache.files,
      double(cache.bytes) / (1 << 20),
      limit > 0 ? fmt::format(" of at most {:.1f} MiB", double(limit) / (1 << 20)) : "",
      options().cache ? "" : " (not in use: TS_CACHE=0)");
}

std::string clear_cache() {
  const file_cache::Contents cache = file_cache::clear();
  if (!cache.why_not.empty()) throw UserError(fmt::format("{} {}", cache.folder, cache.why_not));
  return fmt::format("{}: deleted {} kernels, {:.1f} MiB\n", cache.folder, cache.files,
                     double(cache.bytes) / (1 << 20));
}

}  // namespace tinyshard::cli
