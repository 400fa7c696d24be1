// The one object that holds what a process has: its devices, its place in the job, the
// communicators of its meshes. Everything else in the library is values.
//
// It comes to life with the first tensor that needs a device, or by `configure`, which must then
// come first. Threads: configure once; afterwards one thread at a time runs schedules.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/runtime/communicator.h"
#include "core/runtime/device.h"
#include "multi/mesh.h"

namespace tinyshard {

struct CompiledKernel;

struct RuntimeOptions {
  // Devices of this process: "CPU:0", or a kind, meaning every device of it. Empty: TS_DEVICES, or
  // devices_per_rank devices of the best kind there is.
  std::vector<std::string> devices;
  int devices_per_rank = 0;  // 0: as many as `devices` names, or 1
};

// What the library was built with; tinyshard/builtins.cpp lists them by name.
struct DeviceKind {
  std::string name;                     // "CPU"
  std::function<int()> count;           // devices of this kind here; 0 when there is none
  std::function<std::string()> detail;  // what was found, or why it is missing
  std::function<std::unique_ptr<Device>(int index, int local_ranks)> open;
  // Devices are pieces of hardware: the ranks of a host share them out, each counts its own from 0,
  // and the kind alone names all that a rank gets. Otherwise each is a memory of its own and every
  // rank counts from 0.
  bool hardware = false;
};
struct Builtins {
  std::vector<DeviceKind> devices;  // best first: the default is the first that is there
  std::function<std::unique_ptr<Communicator>(int local_participants)> connect;  // the job's
  std::function<std::unique_ptr<Communicator>(int participants)>
      connect_local;  // of this process alone
  // The same group as `host`, with `devices` as this process's participants, on the memory of the
  // devices; null, with the reason, where they have no such communicator. Every rank of the group
  // calls it.
  std::function<std::unique_ptr<Communicator>(Communicator& host, std::span<Device* const> devices,
                                              std::string* why)>
      connect_devices;
  std::function<std::vector<std::pair<int, int>>()>
      launch;  // {{rank, ranks}, {local rank, local ranks}}
};
const Builtins& builtins();

class Runtime {
 public:
  static Runtime& get();
  // UserError when the runtime is in use already or a device does not exist.
  static void configure(const RuntimeOptions& options);
  // Destroys communicators and devices; for orderly ends and for tests that configure again. Values
  // that were computed are lost, and so are captured steps: to use one is a UserError. What is made
  // from then on lives in a new runtime. Random values of training begin again.
  static void shutdown();
  // Whether this process may touch what its devices hold. A child of fork() has its parent's CPU
  // devices; GPUs and a place in a job of several ranks stay with the parent.
  static bool is_ours() noexcept;
  static void check_is_ours();  // UserError where it is not

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  int devices_per_rank() const { return int(devices_.size()); }

  // A device of this process.
  Device& device(const DeviceRef& ref);
  // Positions in mesh.devices() that this process holds.
  std::vector<int> local_positions(const Mesh& mesh) const;

  // The communicator of the group along `axis` that the device at `position` belongs to. Called in
  // the same order by all ranks that hold a device of the mesh.
  Communicator& communicator(const Mesh& mesh, int axis, int position);
  // That group on the memory of these devices, its local participants; null where there is none.
  Communicator* device_communicator(Communicator& group, const std::vector<Device*>& devices);
  // All devices of the job.
  Communicator& world();

  // The number of a run that communicates, from 1. The same on all ranks.
  uint64_t next_run() { return ++runs_; }
  // Of the inputs of runs of a schedule, by its hash, on a communicator. Null when there are too
  // many schedules.
  std::shared_ptr<InputHistory> input_history(uint64_t schedule, const Communicator& communicator);

  // Loaded once per device and kernel, or call; they live as long as the runtime.
  Program& program(Device& device, const std::shared_ptr<const CompiledKernel>& kernel);
  bool has_program(Device& device, const CompiledKernel& kernel);
  Program& program(Device& device, const LibraryCall& call);

  ~Runtime();

 private:
  explicit Runtime(const RuntimeOptions& options);
  const DeviceKind& kind(const std::string& name) const;
  std::vector<std::string> share_out(const DeviceKind& kind, int each, int local_rank);

  int rank_ = 0, ranks_ = 1, local_ranks_ = 1;
  int forks_;  // before it was made
  std::vector<DeviceRef> devices_;
  std::map<std::string, int>
      first_of_kind_;  // number of the hardware that is device 0 of a kind here
  std::mutex mutex_;   // of what is opened and loaded when it is first asked for
  std::map<std::pair<std::string, int>, std::unique_ptr<Device>> open_;
  std::map<std::pair<Device*, const CompiledKernel*>, std::unique_ptr<Program>> kernels_;
  std::vector<std::shared_ptr<const CompiledKernel>> alive_;  // what the keys point to
  std::map<std::pair<Device*, std::string>, std::unique_ptr<Program>> calls_;
  std::unique_ptr<Communicator> world_;
  uint64_t runs_ = 0;
  std::map<std::pair<uint64_t, const Communicator*>, std::shared_ptr<InputHistory>> histories_;
  std::map<std::vector<int>, std::unique_ptr<Communicator>> groups_;  // by world participants
  std::map<int64_t, std::unique_ptr<Communicator>>
      local_groups_;  // of devices of this process, by size
  // On device memory, by what they were made from; null where that was refused.
  std::map<std::pair<Communicator*, std::vector<Device*>>, std::unique_ptr<Communicator>>
      device_groups_;
};

// "CPU:1" or "cpu:1" or "CPU" as a device of this process. UserError for anything else.
DeviceRef parse_device(const std::string& name);

}  // namespace tinyshard
