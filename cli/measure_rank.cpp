// Each figure takes about half a second: a piece of work is repeated until that has passed, and its rate is
// that of all of them. A device that is slow now and then is slow.
#include "cli/measure_rank.h"

#include <chrono>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "core/exec/context.h"
#include "core/exec/locked_memory.h"
#include "multi/link_model.h"
#include "tinyshard/tinyshard.h"

namespace tinyshard::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kSeconds = 0.4;                    // of one figure
constexpr int64_t kCopied = int64_t{96} << 20;      // bytes
constexpr int64_t kDiskBytes = int64_t{128} << 20;  // of each rank
constexpr int64_t kLargeSum = int64_t{256} << 20, kSmallSum = 8192;
constexpr int64_t kLeastDim = 512, kMostDim = 8192;

double seconds_since(Clock::time_point begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

// Seconds of a run, once it has been run before.
double seconds_of(const std::function<void()>& run) {
  run();
  const Clock::time_point begun = Clock::now();
  int runs = 0;
  do {
    run();
    ++runs;
  } while (seconds_since(begun) < kSeconds);
  return seconds_since(begun) / runs;
}

const DeviceRef& own_device() { return Context::get().devices().front(); }
bool is_cpu() { return own_device().kind == "CPU"; }

double memory_rate() {
  const Tensor x = Tensor::zeros({kCopied / 4}, DType::F32).clone().realize();
  Jit copy = [&](const Tensor& k) { return x + k; };
  const Tensor one(1.0F);
  const double s = seconds_of([&] {
    const Tensor y = copy(one);
    Runtime::synchronize();
  });
  return 2 * double(kCopied) / s * 1e-9;
}

// The size is doubled until a product takes some time, which ranks find at different sizes: no captured
// step, as all ranks would have to make the same ones.
double product_rate() {
  const DType type = is_cpu() ? DType::F32 : DType::BF16;
  for (int64_t n = kLeastDim;; n *= 2) {
    const Tensor a = (Tensor::rand({n, n}) - 0.5).cast(type).realize();
    const Tensor b = a.clone().realize();
    const auto run = [&] {
      const Tensor c = a.matmul(b).realize();
      Runtime::synchronize();
    };
    run();
    run();
    const Clock::time_point begun = Clock::now();
    run();
    constexpr double kEnough = 0.01;
    if (seconds_since(begun) < kEnough && n < kMostDim) continue;
    return 2 * double(n) * double(n) * double(n) / seconds_of(run) * 1e-9;
  }
}

// Copies between locked pages and the device. Nothing where the host reaches what the device holds.
void measure_copies(Figures& figures) {
  const Context::Turn turn;
  Device& device = Context::get().device(own_device());
  const auto bytes = size_t(kCopied);
  void* memory = device.allocate(bytes);
  if (device.host_pointer(memory) == nullptr) {
    const LockedMemory host(bytes, &device);
    std::memset(host.data(), 1, bytes);
    figures.to_device = double(bytes) * 1e-9 / seconds_of([&] {
                          device.copy_in(memory, host.data(), bytes);
                          device.synchronize();
                        });
    figures.from_device =
        double(bytes) * 1e-9 / seconds_of([&] { device.copy_out(host.data(), memory, bytes); });
  }
  device.free(memory, bytes);
}

// A sum of as many bytes of each rank, which all get.
double seconds_of_sum(int64_t bytes) {
  const Mesh mesh = Mesh::world({{"data", -1}});
  const Tensor terms = Tensor::ones({mesh.size(), bytes / 4}, DType::F32)
                           .shard(mesh, {{"data", Shard(0)}})
                           .contiguous()
                           .realize();
  Jit sum = [&](const Tensor& k) { return (terms * k).sum(0).shard(mesh).contiguous(); };
  const Tensor one = Tensor(1.0F).shard(mesh).realize();
  const auto run = [&] {
    const Tensor y = sum(one);
    Runtime::synchronize();
  };
  run();
  const int runs = bytes > kSmallSum ? 1 : 100;  // as many on every rank
  const Clock::time_point begun = Clock::now();
  for (int i = 0; i < runs; ++i) run();
  return seconds_since(begun) / runs;
}

void write_all(int file, const std::vector<char>& data) {
  for (size_t at = 0; at < data.size();) {
    const ssize_t n = ::write(file, data.data() + at, data.size() - at);
    if (n <= 0) throw UserError(std::strerror(errno));
    at += size_t(n);
  }
}

// Until the bytes are on the disk, and back from there: what is cached is dropped where the system allows.
void measure_disk(const std::string& folder, int rank, Figures& figures) {
  const std::string path = fmt::format("{}/tinyshard-doctor-{}-{}", folder, rank, getpid());
  const int file = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  if (file < 0) {
    std::string(std::strerror(errno))
        .copy(figures.disk_error.data(), figures.disk_error.size() - 1);
    return;
  }
  std::vector<char> data(size_t(kDiskBytes), 'x');
  try {
    Clock::time_point begun = Clock::now();
    write_all(file, data);
    if (::fdatasync(file) != 0) throw UserError(std::strerror(errno));
    figures.disk_write = double(kDiskBytes) * 1e-9 / seconds_since(begun);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    begun = Clock::now();
    int64_t read = 0;
    for (ssize_t n; (n = ::pread(file, data.data(), data.size(), read)) > 0;) read += n;
    figures.disk_read = double(read) * 1e-9 / seconds_since(begun);
  } catch (const Error& error) {
    std::string(error.what()).copy(figures.disk_error.data(), figures.disk_error.size() - 1);
  }
  ::close(file);
  std::filesystem::remove(path);
}

int64_t number_in(const std::filesystem::path& path) {
  int64_t number = 0;
  std::ifstream(path) >> number;
  return number;
}

// Errors of memory and of network cards of the host.
int64_t counted_by_system() {
  int64_t sum = 0;
  std::error_code none;
  for (const auto& each :
       std::filesystem::directory_iterator("/sys/devices/system/edac/mc", none)) {
    for (const char* name : {"ce_count", "ue_count"}) sum += number_in(each.path() / name);
  }
  for (const auto& each : std::filesystem::directory_iterator("/sys/class/net", none)) {
    for (const char* name : {"rx_errors", "tx_errors"})
      sum += number_in(each.path() / "statistics" / name);
  }
  return sum;
}

// Errors of the memories of NVIDIA GPUs, by the tool that comes with the driver. Cards that count none
// say so in words.
int64_t counted_by_gpus() {
  FILE* pipe = popen(
      "nvidia-smi --format=csv,noheader,nounits --query-gpu="
      "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total 2>/dev/null",
      "r");
  if (pipe == nullptr) return 0;
  std::array<char, 256> line{};
  int64_t sum = 0;
  while (std::fgets(line.data(), int(line.size()), pipe) != nullptr) {
    long long corrected = 0, uncorrected = 0;
    if (std::sscanf(line.data(), "%lld, %lld", &corrected, &uncorrected) == 2)
      sum += corrected + uncorrected;
  }
  pclose(pipe);
  return sum;
}

}  // namespace

Expected expected_of_device() {
  if (is_cpu()) return {};
  const Speeds speeds = speeds_of(own_device().kind);
  return {.memory = speeds.memory_bytes_per_s * 1e-9, .product = speeds.operations_per_s * 1e-9};
}

Figures measure_rank(Communicator& world, const std::string& folder) {
  Figures figures;
  own_device().to_string().copy(figures.device.data(), figures.device.size() - 1);
  const auto together = [&] { world.barrier().wait(); };
  together();
  figures.memory = memory_rate();
  together();
  figures.product = product_rate();
  together();
  measure_copies(figures);
  together();
  if (!folder.empty()) measure_disk(folder, world.rank(), figures);
  together();
  if (world.size() > 1) {
    figures.small_sum_us = seconds_of_sum(kSmallSum) * 1e6;
    figures.large_sum = double(kLargeSum) * 1e-9 / seconds_of_sum(kLargeSum);
  }
  figures.errors = counted_by_system() + (is_cpu() ? 0 : counted_by_gpus());
  return figures;
}

}  // namespace tinyshard::cli
