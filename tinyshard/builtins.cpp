// The explicit list of what this library is made of: the kinds of devices, of which each is a folder and
// a row here, and how they meet the world, launchers and traces. The rows of transports are in
// transport/world.cpp.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "core/base/options.h"
#include "core/exec/context.h"
#include "devices/cpu/cpu_device.h"
#include "devices/cpu/program.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/planned_gpu.h"
#include "devices/disk/disk_device.h"
#include "devices/hip/hip_device.h"
#include "devices/hip/planned_gpu.h"
#include "devices/null/null_device.h"
#include "launch/environment.h"
#include "report/trace.h"
#include "report/view_file.h"
#include "transport/nccl/nccl_group.h"
#include "transport/reform.h"
#include "transport/world.h"

namespace tinyshard {
namespace {

// CPU devices are threads and memory of this process: "CPU:7" is there on a machine of two cores.
constexpr int kMostCpuDevices = 1024, kMostNullDevices = 1 << 20;

CommOptions comm_options() {
  CommOptions o;
  constexpr double kForEver = 1e9;  // seconds; more nanoseconds than these fit no clock
  o.timeout = std::chrono::nanoseconds(int64_t(std::min(options().timeout_s, kForEver) * 1e9));
  o.verify = options().spec >= 2;
  return o;
}

std::unique_ptr<Communicator> connect(int local_participants) {
  return connect_world(local_participants, comm_options());
}

std::unique_ptr<Communicator> connect_local(int participants) {
  CommOptions o = comm_options();
  o.name = "local";
  return InprocWorld(1).connect(0, participants, o);
}

// Asynchronous devices are GPUs, and each maker has a library with the calls of NCCL.
std::unique_ptr<Communicator> connect_devices(Communicator& host, std::span<Device* const> devices,
                                              std::string* why) {
  return connect_nccl(host, devices, comm_options(), why);
}

std::vector<std::pair<int, int>> launch() {
  LaunchEnvironment e = current_launch();
  return {{e.rank, e.size}, {e.local_rank, e.local_size}};
}

}  // namespace

const Builtins& builtins() {
  static const Builtins& b = *new Builtins{
      .devices =
          {
              {"CUDA", count_cuda_devices, describe_cuda,
               [](int index, int) { return make_cuda_device(index); }, true},
              {"HIP", count_hip_devices, describe_hip,
               [](int index, int) { return make_hip_device(index); }, true},
              {"CPU", [] { return kMostCpuDevices; }, describe_cpu, make_cpu_device},
              {"NULL", [] { return kMostNullDevices; },
               [] { return std::string("plans without running"); },
               [](int index, int) {
                 return make_null_device(index, planned_host(host_target(), host_profile()));
               }},
              {"NULL_H200", [] { return kMostNullDevices; },
               [] { return std::string("plans for an H200 without running"); },
               [](int index, int) { return make_null_device(index, cuda::planned_h200()); }},
              {"NULL_MI300X", [] { return kMostNullDevices; },
               [] { return std::string("plans for an MI300X without running"); },
               [](int index, int) { return make_null_device(index, hip::planned_mi300x()); }},
              {"NULL_RX7900", [] { return kMostNullDevices; },
               [] { return std::string("plans for an RX 7900 XTX without running"); },
               [](int index, int) { return make_null_device(index, hip::planned_rx7900()); }},
              {"DISK", [] { return 1; }, [] { return std::string("maps files"); },
               [](int, int ranks) { return make_disk_device(make_cpu_device(0, ranks)); }},
          },
      .connect = connect,
      .connect_local = connect_local,
      .connect_devices = connect_devices,
      .launch = launch,
      .reform = [] { reform_job(comm_options().timeout); },
      .ranks_wait_to_join = ranks_wait_to_join,
      .joined_later = joined_later,
      .observe =
          [](int rank, int ranks) {
            follow_trace_option(rank, ranks);
            follow_view_option(rank, ranks);
          },
  };
  return b;
}

}  // namespace tinyshard
