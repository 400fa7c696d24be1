// Loading and saving by all devices of a job, beside what copies the same bytes in the same run:
//   mpirun -n 4 files_bench [--gib 2] [--folder /tmp]
//   files_bench --devices CPU:0,CPU:1,CPU:2,CPU:3      one process with several devices
//   files_bench --devices CUDA --devices-per-rank 2    the same on GPUs
//
//   load             a safetensors file into tensors that are divided by rows over the devices, beside
//                    `cat` of the file to memory
//   shard            the same file by safe_load(..).shard(..), by rows, by columns, and whole on each device
//   checkpoint       the same tensors to a checkpoint, synced, beside `dd conv=fsync`
//   safe_save        to one file, synced, beside the same
//   load_checkpoint  what was saved, back into the tensors
//   snapshot         how long an asynchronous save keeps the program waiting
//   beside           training steps while it is written, beside the same steps alone
//
// Each is done by turns; a row has the median time of the slowest rank, and the median of the ratios
// to the copy of the same round, which is above 100 % where ours is faster.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"

using namespace tinyshard;
namespace fs = std::filesystem;

namespace {

constexpr int64_t kRow = 4096;  // elements; a tensor has as many rows

struct Job {
  Mesh mesh = Mesh::world({{"ranks", -1}});
  fs::path folder;
  int rounds;
  bool first() const { return Runtime::get().rank() == 0; }
};

// The largest of the numbers of all ranks, when all have come.
double slowest(const Job& job, double own) {
  std::vector<Tensor> parts;
  for (int i = 0; i < Runtime::get().devices_per_rank(); ++i) parts.push_back(Tensor({float(own)}));
  return Tensor::from_local(job.mesh, {{"ranks", Shard(0)}}, parts).max().item<float>();
}

double seconds_of(const Job& job, const auto& work) {
  slowest(job, 0);
  const auto start = bench::Clock::now();
  work();
  return slowest(job, bench::us_since(start) / 1e6);
}

// Times a program that the first rank runs while the others wait.
double seconds_of_command(const Job& job, const std::string& command) {
  return seconds_of(job, [&] {
    if (job.first() && std::system(command.c_str()) != 0)  // NOLINT(concurrency-mt-unsafe)
      throw UserError(fmt::format("\"{}\" failed", command));
  });
}

// Waits until what was told before to the devices that hold the value is done.
void arrived(const Tensor& value) {
  for (const Tensor& part : value.local()) part.shrink({{0, 1}, {0, 1}}).item<float>();
}

// By this process, from files and the page cache.
int64_t bytes_read() {
  std::ifstream file("/proc/self/io");
  std::string word;
  int64_t bytes = 0;
  while (file >> word && word != "rchar:") {
  }
  file >> bytes;
  return bytes;
}

std::vector<double> in_us(std::vector<double> seconds) {
  for (double& s : seconds) s *= 1e6;
  return seconds;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void print(const Job& job, std::string_view what, const std::vector<double>& ours,
           std::string_view other, const std::vector<double>& theirs, double bytes) {
  if (!job.first()) return;
  std::vector<double> percent;
  for (size_t i = 0; i < ours.size(); ++i) percent.push_back(100 * theirs[i] / ours[i]);
  bench::print_row(what, in_us(ours), bytes / 1e9, "GB/s");
  bench::print_row(other, in_us(theirs), bytes / 1e9, "GB/s");
  bench::print_row(fmt::format("{}, of {}", what, other), in_us(ours),
                   median(percent) * median(ours), "%");
}

nn::StateDict model(const Job& job, int64_t tensors) {
  nn::StateDict made;
  for (int64_t i = 0; i < tensors; ++i) {
    Tensor w = Tensor::full({kRow, kRow}, double(i) + 0.5).shard(job.mesh, {{"ranks", Shard(0)}});
    made[fmt::format("layer.{}.weight", i)] = w.contiguous().realize();
  }
  return made;
}

void load_rows(const Job& job, const nn::StateDict& weights, double bytes) {
  const fs::path file = job.folder / "model.safetensors", copy = "/dev/shm/files_bench.copy";
  safe_save(weights, file);
  std::vector<double> ours, theirs;
  double most_read = 0;
  for (int i = -1; i < job.rounds; ++i) {
    const double cat =
        seconds_of_command(job, fmt::format("cat {} > {}", file.native(), copy.native()));
    if (job.first()) fs::remove(copy);
    // Weights that have no memory yet, as those of a model that was just made.
    nn::StateDict fresh;
    for (const auto& [name, value] : weights)
      fresh[name] = Tensor::zeros({kRow, kRow}).shard(job.mesh, {{"ranks", Shard(0)}});
    const int64_t read = bytes_read();
    const double load = seconds_of(job, [&] {
      nn::load(fresh, safe_load(file));
      arrived(fresh.begin()->second);
    });
    most_read = std::max(most_read, slowest(job, double(bytes_read() - read)));
    for (const auto& [name, value] : weights) {
      if (!(fresh.at(name) == value).all().item<bool>())
        throw InternalError(fmt::format("{} is not what was saved", name));
    }
    if (i >= 0) ours.push_back(load), theirs.push_back(cat);
  }
  print(job, "load", ours, "cat to memory", theirs, bytes);
  if (job.first())
    std::cout << fmt::format("a rank read {:.1f} MiB of {:.1f}", most_read / (1 << 20),
                             bytes / (1 << 20))
              << std::endl;
  struct Placed {
    std::string_view name;
    std::vector<AxisPlacement> placements;
    double bytes;  // that arrive on devices
  };
  const auto devices = double(job.mesh.size());
  for (const auto& [name, placements, moved] :
       {Placed{"shard by rows", {{"ranks", Shard(0)}}, bytes},
        Placed{"shard by columns", {{"ranks", Shard(1)}}, bytes},
        Placed{"shard to all", {}, bytes * devices}}) {
    std::vector<double> times;
    for (int i = -1; i < job.rounds; ++i) {
      std::vector<Tensor> loaded;
      const double took = seconds_of(job, [&] {
        for (const auto& [key, value] : safe_load(file))
          loaded.push_back(value.shard(job.mesh, placements));
        Tensor::realize(loaded);
        arrived(loaded.back());
      });
      if (i >= 0) times.push_back(took);
    }
    if (job.first()) bench::print_row(name, in_us(times), moved / 1e9, "GB/s");
  }
  if (job.first()) fs::remove(file);
}

void save_rows(const Job& job, const nn::StateDict& weights, double bytes) {
  const fs::path source = "/dev/shm/files_bench.copy", copy = job.folder / "copy";
  seconds_of_command(job, fmt::format("head -c {:.0f} /dev/zero > {}", bytes, source.native()));
  std::vector<double> checkpoint, file, back, theirs;
  for (int i = -1; i < job.rounds; ++i) {
    const double dd = seconds_of_command(
        job,
        fmt::format("dd if={} of={} bs=4M conv=fsync status=none", source.native(), copy.native()));
    if (job.first()) fs::remove(copy);
    const fs::path root = job.folder / "checkpoints", one = job.folder / "saved.safetensors";
    const double saved = seconds_of(job, [&] { nn::save_checkpoint(weights, root, 1); });
    const double loaded = seconds_of(job, [&] {
      nn::load_checkpoint(weights, root);
      arrived(weights.begin()->second);
    });
    slowest(job, 0);
    if (job.first()) fs::remove_all(root);
    const double wrote = seconds_of(job, [&] { safe_save(weights, one); });
    slowest(job, 0);
    if (job.first()) fs::remove(one);
    if (i < 0) continue;
    checkpoint.push_back(saved);
    file.push_back(wrote);
    back.push_back(loaded);
    theirs.push_back(dd);
  }
  print(job, "checkpoint", checkpoint, "dd and sync", theirs, bytes);
  print(job, "safe_save", file, "dd and sync", theirs, bytes);
  if (job.first()) bench::print_row("load_checkpoint", in_us(back), bytes / 1e9, "GB/s");
  if (job.first()) fs::remove(source);
}

// Steps of a small model, data-parallel, of about a millisecond each.
void beside_rows(const Job& job, const nn::StateDict& weights, int steps) {
  const Tensor x = Tensor::randn({256, 512}).shard(job.mesh, {{"ranks", Shard(0)}}).realize();
  Tensor w = Tensor::randn({512, 512}).shard(job.mesh).realize();
  Jit step = [&] {
    Tensor y = x;
    for (int layer = 0; layer < 4; ++layer) y = y.matmul(w).tanh();
    w.assign(w - w.detach() * y.square().mean() * 1e-6);
    return y.sum();
  };
  auto run = [&] {
    for (int i = 0; i < steps; ++i) step().item<float>();
  };
  run();
  std::vector<double> alone, beside, snapshots;
  for (int i = 0; i < job.rounds; ++i) {
    alone.push_back(seconds_of(job, run));
    const fs::path root = job.folder / "beside";
    snapshots.push_back(
        seconds_of(job, [&] { nn::save_checkpoint(weights, root, 1, {.asynchronous = true}); }));
    beside.push_back(seconds_of(job, run));
    nn::wait_for_checkpoints();
    slowest(job, 0);
    if (job.first()) fs::remove_all(root);
  }
  const double bytes = double(weights.size()) * kRow * kRow * 4;
  if (job.first()) {
    bench::print_row("first snapshot", in_us({snapshots[0]}), bytes / 1e9, "GB/s");
    bench::print_row("snapshot", in_us(snapshots), bytes / 1e9, "GB/s");
  }
  print(job, fmt::format("{} steps beside a save", steps), beside, "steps alone", alone, 0);
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  CLI::App app("Times loading and saving by all ranks, beside cat and dd.");
  double gib = 2;
  int rounds = 3, steps = 20000;
  int devices_per_rank = 0;
  std::vector<std::string> devices;
  std::string folder = fs::temp_directory_path().native();
  app.add_option("--gib", gib, "bytes of all tensors, in GiB")->check(CLI::PositiveNumber);
  app.add_option("--rounds", rounds, "how often each is done")->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "training steps beside a save; 0: none of it")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--devices", devices, "of each process, such as CUDA or CPU:0,CPU:1")
      ->delimiter(',');
  app.add_option("--devices-per-rank", devices_per_rank, "the same as a number of devices");
  app.add_option("--folder", folder, "where files are written")->check(CLI::ExistingDirectory);
  return bench::run_main("files_bench", app, argc, argv, [&] {
    if (!devices.empty() || devices_per_rank > 0)
      Runtime::configure({.devices = devices, .devices_per_rank = devices_per_rank});
    const Job job{.folder = fs::path(folder) / "files_bench", .rounds = rounds};
    if (job.first()) fs::create_directories(job.folder);
    const auto tensors = std::max<int64_t>(1, int64_t(gib * (1 << 30)) / (kRow * kRow * 4));
    const nn::StateDict weights = model(job, tensors);
    const double bytes = double(tensors) * kRow * kRow * 4;
    load_rows(job, weights, bytes);
    save_rows(job, weights, bytes);
    if (steps > 0) beside_rows(job, weights, steps);
    slowest(job, 0);
    if (job.first()) fs::remove_all(job.folder);
  });
}
