// All-reduce of f32 through the engine's communicator, recorded, beside NCCL's own calls recorded
// in the same program on the same memory; in one process or one rank a GPU:
//
//   gpu_all_reduce_bench --devices-per-rank 8             mpirun -n 8 gpu_all_reduce_bench
//
// The rate is that of the bus, as NCCL's tests define it: 2 (n - 1) / n times the bytes of a
// buffer. On other devices, which do not record, the communicator alone is timed.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench/measure.h"
#include "bench/recorded.h"
#include "core/base/error.h"
#include "core/exec/context.h"
#include "transport/nccl/nccl.h"

namespace tinyshard {
namespace {

// A communicator of NCCL for each device, and nothing of ours around it.
class PlainNccl {
 public:
  PlainNccl(Communicator& world, std::vector<Device*> devices) : devices_(std::move(devices)) {
    nccl::UniqueId id;
    if (world.rank() == 0) check(nccl_.get_unique_id(&id));
    std::vector<CommBuffer> ids(devices_.size(), {&id});
    std::vector<nccl::UniqueId> received(devices_.size());
    std::vector<CommBuffer> to;
    for (nccl::UniqueId& r : received) to.push_back({&r});
    world.broadcast(ids, to, sizeof(id), DType::U8, 0).wait();
    nccl::Config config{.blocking = 1};
    comms_.resize(devices_.size());
    nccl_.group_start();
    for (size_t i = 0; i < devices_.size(); ++i) {
      devices_[i]->make_current();
      check(nccl_.init(&comms_[i], world.size(), received[i], world.local()[i], &config));
    }
    check(nccl_.group_end());
  }
  ~PlainNccl() {
    for (nccl::Comm comm : comms_) nccl_.abort(comm);
  }
  PlainNccl(const PlainNccl&) = delete;

  void all_reduce(const std::vector<CommBuffer>& buffers, size_t count) {
    nccl_.group_start();
    for (size_t i = 0; i < devices_.size(); ++i) {
      devices_[i]->make_current();
      check(nccl_.all_reduce(buffers[i].data, buffers[i].data, count, nccl::kFloat32, nccl::kSum,
                             comms_[i], devices_[i]->native_queue(Queue::Compute)));
    }
    check(nccl_.group_end());
  }

 private:
  void check(nccl::Result result) const {
    if (result != nccl::kSuccess) throw DeviceError(nccl_.error(result, nullptr));
  }
  const nccl::Nccl& nccl_ = *nccl::Nccl::of("CUDA");
  std::vector<Device*> devices_;
  std::vector<nccl::Comm> comms_;
};

struct Group {
  Communicator& world;  // of the hosts
  std::vector<Device*> devices = {};
  Communicator* ours = &world;
  std::optional<PlainNccl> nccl = {};
};

void measure(Group& g, size_t bytes, int samples) {
  constexpr size_t kPerRecording = 256ul << 20, kMost = 100, kFewest = 2;
  const size_t count = bytes / sizeof(float);
  const int calls = int(std::clamp(kPerRecording / bytes, kFewest, kMost));
  std::vector<CommBuffer> buffers;
  for (Device* device : g.devices) {
    buffers.push_back({device->allocate(bytes), device});
    std::vector<char> zeros(bytes);  // sums of anything else would grow out of range
    device->copy_in(buffers.back().data, zeros.data(), bytes);
  }
  auto repeated = [&](const auto& call) {
    return [call, calls] {
      for (int i = 0; i < calls; ++i) call();
    };
  };
  bench::Recorded ours(
      g.devices, repeated([&] { g.ours->all_reduce(buffers, buffers, count, DType::F32).wait(); }));
  std::optional<bench::Recorded> nccl;
  if (g.nccl) nccl.emplace(g.devices, repeated([&] { g.nccl->all_reduce(buffers, count); }));
  // In turn, and the same number of runs on all ranks.
  constexpr int kRuns = 4;
  std::vector<double> our_us, nccl_us;
  auto sample = [&](bench::Recorded& what, std::vector<double>& us) {
    g.world.barrier().wait();
    us.push_back(what.time(kRuns) / calls);
  };
  for (int i = 0; i < samples; ++i) {
    sample(ours, our_us);
    if (nccl) sample(*nccl, nccl_us);
  }
  if (g.world.rank() == 0) {
    const double n = g.world.size(), work = 2 * (n - 1) / n * double(bytes) * 1e-9;
    std::string name = fmt::format("all_reduce of {} bytes", bytes);
    bench::print_row(name, our_us, work, "GB/s");
    if (nccl) bench::print_row(name + ", NCCL alone", nccl_us, work, "GB/s");
  }
  for (size_t i = 0; i < g.devices.size(); ++i) g.devices[i]->free(buffers[i].data, bytes);
}

void run(const std::vector<size_t>& sizes, int samples) {
  Context& context = Context::get();
  Group g{.world = context.world()};
  const Mesh mesh = Mesh::world({{"data", -1}});
  for (int i : context.local_positions(mesh))
    g.devices.push_back(&context.device(mesh.devices()[size_t(i)]));
  if (Communicator* direct = context.device_communicator(g.world, g.devices)) {
    g.ours = direct;
    g.nccl.emplace(g.world, g.devices);
  } else if (g.devices[0]->can_record()) {
    throw UserError("these GPUs have no group of NCCL; DEBUG=1 says why");
  }
  for (size_t bytes : sizes) measure(g, bytes, samples);
}

}  // namespace
}  // namespace tinyshard

int main(int argc, char** argv) {  // NOLINT(bugprone-exception-escape): nothing is left to do then
  using namespace tinyshard;
  std::vector<std::string> devices;
  int devices_per_rank = 0, samples = 12;
  std::vector<size_t> sizes{4ul << 10, 1ul << 20, 64ul << 20, 1ul << 30};
  CLI::App app("All-reduce through the communicator and through NCCL alone.");
  app.add_option("--devices", devices, "Where, such as CUDA or CPU:0,CPU:1")->delimiter(',');
  app.add_option("--devices-per-rank", devices_per_rank, "The same as a number of devices");
  app.add_option("--bytes", sizes, "Of a buffer")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--samples", samples, "Of each size")->check(CLI::PositiveNumber);
  return bench::run_main("gpu_all_reduce_bench", app, argc, argv, [&] {
    Runtime::configure({.devices = devices, .devices_per_rank = devices_per_rank});
    run(sizes, samples);
    Runtime::shutdown();
  });
}
