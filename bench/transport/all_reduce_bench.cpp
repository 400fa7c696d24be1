// All-reduce of f32 over TCP, and the shared memory of a host, beside Open MPI's MPI_Allreduce: the
// same ranks, the same memory, in turn, so that both meet the same load of the machine.
//   mpirun -n 4 all_reduce_bench [most bytes [direct bytes [segment bytes]]]
// Each row has the medians of both and the median of their ratios, which is above 1 where ours is
// faster.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <mpi.h>

#include "bench/measure.h"
#include "launch/secret.h"
#include "transport/world.h"

using namespace tinyshard;

namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The time of a call on this rank from when all ranks have come.
double timed(const auto& call) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begun = Clock::now();
  call();
  double own = std::chrono::duration<double>(Clock::now() - begun).count(), slowest = 0;
  MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

// The ranks of mpirun as ranks of a job of ours, which meet in a folder.
std::string begin_job(int rank, int size) {
  char folder[64] = "/tmp/all_reduce_bench.XXXXXX", key[65] = {};
  if (rank == 0) {
    if (mkdtemp(folder) == nullptr) std::exit(2);
    Secret::random().text().copy(key, 64);
  }
  MPI_Bcast(folder, sizeof(folder), MPI_CHAR, 0, MPI_COMM_WORLD);
  MPI_Bcast(key, sizeof(key), MPI_CHAR, 0, MPI_COMM_WORLD);
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), 1);
  };
  set("TS_RANK", std::to_string(rank));
  set("TS_WORLD_SIZE", std::to_string(size));
  set("TS_LOCAL_RANK", std::to_string(rank));
  set("TS_LOCAL_SIZE", std::to_string(size));
  set("TS_STORE", std::string("file:") + folder);
  set("TS_JOB", "all_reduce_bench");
  set("TS_JOB_KEY", key);
  set("TS_BIND", "127.0.0.1");
  return folder;
}

struct Flags {
  size_t most = 256ul << 20;
  CommOptions options;
};

void compare(const Flags& f) {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const std::string folder = begin_job(rank, size);
  {
    auto world = connect_world(1, f.options);
    if (rank == 0) {
      fmt::print("{} ranks by {}\n{:>12} {:>14} {:>14} {:>8}\n", size, world->transport(), "bytes",
                 "ours us", "Open MPI us", "ratio");
    }
    for (size_t bytes = 1 << 10; bytes <= f.most; bytes *= 4) {
      const size_t count = bytes / sizeof(float),
                   repeats = std::clamp<size_t>((128ul << 20) / bytes, 7, 400);
      std::vector<float> from(count, 1.0f), to(count);
      const CommBuffer send{from.data()}, recv{to.data()};
      std::vector<double> ours, theirs, ratios;
      for (size_t i = 0; i < repeats + 2; ++i) {
        const double a =
            timed([&] { world->all_reduce({&send, 1}, {&recv, 1}, count, DType::F32).wait(); });
        const double b = timed([&] {
          MPI_Allreduce(from.data(), to.data(), int(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        });
        if (i < 2) continue;
        ours.push_back(a);
        theirs.push_back(b);
        ratios.push_back(b / a);
      }
      if (rank == 0) {
        fmt::print("{:>12} {:>14.1f} {:>14.1f} {:>8.2f}\n", bytes, median(ours) * 1e6,
                   median(theirs) * 1e6, median(ratios));
        std::fflush(stdout);
      }
    }
  }
  if (rank == 0) std::filesystem::remove_all(folder);
}

}  // namespace

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  Flags f;
  CLI::App app("All-reduce of f32 between the ranks of mpirun, beside MPI_Allreduce.");
  app.option_defaults()->always_capture_default();
  app.add_option("most", f.most, "Bytes of the largest one");
  app.add_option("direct", f.options.tuning.direct_bytes,
                 "Bytes that a rank sends at most where all send all to all");
  app.add_option("segment", f.options.tuning.segment_bytes, "Bytes of a message of larger ones");
  return bench::run_main("all_reduce_bench", app, argc, argv, [&] {
    MPI_Init(nullptr, nullptr);
    compare(f);
    MPI_Finalize();
  });
}
