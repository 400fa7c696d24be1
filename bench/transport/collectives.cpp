// Latency and bandwidth of the collectives. Alone: the devices of one process (1, 2, 4). Under
// mpirun: one device per rank. Prints the median time of a call, and for large buffers the bytes of
// one buffer over that time.
//   bench_collectives            mpirun -n 2 bench_collectives [direct_bytes [segment_bytes]]
#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "launch/environment.h"
#include "transport/world.h"

using namespace tinyshard;

namespace {

double median_seconds(Communicator& c, size_t repeats, const auto& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> times;
  for (size_t i = 0; i < repeats + repeats / 10 + 1; ++i) {
    const auto begun = Clock::now();
    call().wait();
    times.push_back(std::chrono::duration<double>(Clock::now() - begun).count());
  }
  c.barrier().wait();
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

void measure(int locals, const CommOptions& options) {
  auto world = connect_world(locals, options);
  Communicator& c = *world;
  const size_t n = static_cast<size_t>(c.size());
  if (c.rank() == 0) {
    fmt::print("{}: {} participants, {} on this rank\n{:>12} {:>14} {:>10} {:>14} {:>14}\n",
               c.transport(), n, locals, "bytes", "all_reduce us", "GB/s", "all_gather us",
               "broadcast us");
  }
  for (size_t bytes :
       {8ul, 1024ul, 16384ul, 65536ul, 262144ul, 1ul << 20, 4ul << 20, 25ul << 20, 100ul << 20}) {
    const size_t count = bytes / sizeof(float),
                 repeats = std::clamp<size_t>((64ul << 20) / bytes, 5, 2000);
    std::vector<std::vector<float>> from(static_cast<size_t>(locals), std::vector<float>(count)),
        to = from;
    std::vector<CommBuffer> send, recv;
    for (auto& buffer : from) send.push_back({buffer.data()});
    for (auto& buffer : to) recv.push_back({buffer.data()});
    const double reduce =
        median_seconds(c, repeats, [&] { return c.all_reduce(send, recv, count, DType::F32); });
    const double gather =
        median_seconds(c, repeats, [&] { return c.all_gather(send, recv, count / n, DType::F32); });
    const double broadcast =
        median_seconds(c, repeats, [&] { return c.broadcast(recv, recv, count, DType::F32, 0); });
    if (c.rank() == 0) {
      fmt::print("{:>12} {:>14.2f} {:>10.2f} {:>14.2f} {:>14.2f}\n", bytes, reduce * 1e6,
                 static_cast<double>(bytes) / reduce * 1e-9, gather * 1e6, broadcast * 1e6);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CommOptions options;
  if (argc > 1) options.tuning.direct_bytes = std::stoul(argv[1]);
  if (argc > 2) options.tuning.segment_bytes = std::stoul(argv[2]);
  if (read_launch_environment().size > 1) {
    measure(1, options);
  } else {
    for (int locals : {1, 2, 4}) measure(locals, options);
  }
}
