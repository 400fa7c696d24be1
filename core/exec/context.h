// The one object that owns what a process has. For as long as the process lives: the tables of live
// values (live_values.h) and of what holds its memory (runtime_part.h). For one epoch: its devices,
// its place in the job, the communicators of its meshes, the programs on its devices. An epoch begins
// with the first tensor that needs a device, or by Runtime::configure, and ends by
// Runtime::shutdown; what was never computed goes over into the next one. Programs that use the
// library see all this as Runtime (runtime.h).
//
// Threads: different tensors, steps and meshes may be used from different threads at any time. Graphs
// are built side by side; runs queue up behind each other, one Context::Turn each; the end of an
// epoch waits for all that is under way, and what comes later finds its values lost. A captured step
// sees the values of its own trace and no other thread's (capture.h). Tensors that share memory
// count as one: a tensor, its views, and what was made from it and is not computed yet. Who writes to
// one of them, by assign, setitem, backward or a captured step, does so while no other thread uses
// any. With several ranks, runs that communicate come from one thread, as all ranks need one order.
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "core/exec/ledger.h"
#include "core/exec/live_values.h"
#include "core/exec/program_cache.h"
#include "core/exec/runtime.h"
#include "core/exec/runtime_part.h"
#include "core/runtime/communicator.h"
#include "core/runtime/device.h"
#include "multi/mesh.h"

namespace tinyshard {

// A kind of device that the library was built with; tinyshard/builtins.cpp lists them by name.
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
  // Agrees with the ranks that are left on who they are; `launch` and `connect` go by that from then
  // on. UserError where the job cannot do so, CommError where this rank is left out.
  std::function<void()> reform;
  // Ranks that were started later wait for the next `reform`; and whether this is such a rank.
  std::function<bool()> ranks_wait_to_join, joined_later;
  // Attaches the observers that options ask for. Called when an epoch begins; UserError where one
  // of them cannot be.
  std::function<void(int rank, int ranks)> observe;
};
const Builtins& builtins();

// Devices of a mesh along one of its axes.
struct AxisGroup {
  std::vector<int> positions;  // in the mesh, of each participant
  std::vector<size_t>
      local;  // of each participant that this process holds: its place among the local positions
};

class Context {
 public:
  // Keeps the epoch from ending, for as long as it lives; what it allows is not to run anything.
  // A thread may have several inside each other.
  class Use {
   public:
    Use();
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
  };
  // A use during which this thread alone plans, compiles and runs. A thread may have several inside
  // each other. Never held while the user's own code runs, as the function that a Jit traces.
  // While the process exits, the thread that ends it has the last turn: what is under way is waited for,
  // as libraries tear themselves down then, and threads that come later sleep.
  class Turn {
   public:
    Turn();
    ~Turn();

   private:
    Use use_;
  };

  // Begins an epoch where there is none. What it returns is good for ever; what is asked of it
  // concerns the epoch, so that a Use goes around.
  static Context& get();
  static void configure(const RuntimeOptions& options);  // see Runtime
  static void shutdown();
  static void reform();  // see Runtime
  // Tells whether this process may touch what its devices hold. A child of fork() has its parent's
  // CPU devices; GPUs and a place in a job of several ranks stay with the parent.
  static bool is_ours() noexcept;
  static void check_is_ours();  // UserError where it is not

  // Called when libraries may have come to life, which end at exit in the opposite order.
  static void libraries_were_used();

  static LiveValues& values();
  static RuntimeParts& parts();

  int rank() const { return now_->rank; }
  int ranks() const { return now_->ranks; }
  const std::vector<DeviceRef>& devices() const { return now_->devices; }  // of this process
  static const World& world_now();  // see world() in multi/mesh.h; needs no Use

  // A device of this process.
  Device& device(const DeviceRef& ref);
  // Devices that something has been computed on, or lies on.
  std::vector<Device*> open_devices() const;
  // Positions in mesh.devices() that this process holds.
  std::vector<int> local_positions(const Mesh& mesh) const;
  // The groups along `axis` in which this process holds a device, by their first positions: all ranks
  // make them and talk in them in one order, so that no two wait for each other in a circle.
  std::vector<AxisGroup> groups_along(const Mesh& mesh, int axis) const;

  // The communicator of the group along `axis` that the device at `position` belongs to. Called in
  // the same order by all ranks that hold a device of the mesh.
  Communicator& communicator(const Mesh& mesh, int axis, int position);
  // Returns the communicator of that group on the memory of these devices, its local participants;
  // null if there is none.
  Communicator* device_communicator(Communicator& group, const std::vector<Device*>& devices);
  // All devices of the job.
  Communicator& world();

  // The number of the epoch, from 1 for the first.
  uint64_t epoch() const { return now_->number; }
  // The number of a run that communicates, from 1. The same on all ranks.
  uint64_t next_run() { return ++now_->runs; }
  // The ledgers of what ranks have to give alike. In a turn.
  Ledgers& ledgers() { return now_->ledgers; }
  // Compares the ledgers for which it is time, together with their other ranks; at the end all that
  // were not compared yet. `asked`: see RunIdentity. CommError where ranks have given other values.
  void compare_ledgers(std::string_view asked, bool is_the_end = false);

  ProgramCache& programs() { return now_->programs; }

 private:
  // Members are destroyed in the opposite order: communicators, then programs, then devices.
  struct Epoch {
    uint64_t number = 0, runs = 0;
    int rank = 0, ranks = 1, local_ranks = 1;
    int forks = 0;  // of this process and those before it, when the epoch began
    std::vector<DeviceRef> devices;
    std::map<std::string, int> first_of_kind;  // number of the hardware that is device 0 of a kind
    std::map<std::pair<std::string, int>, std::unique_ptr<Device>> open;
    ProgramCache programs;
    Ledgers ledgers;
    std::unique_ptr<Communicator> world;
    std::map<int64_t, std::unique_ptr<Communicator>> local_groups;  // within the process, by size
    std::map<std::vector<int>, std::unique_ptr<Communicator>> groups;  // by world participants
    // On device memory, by what they were made from; null where that was refused.
    std::map<std::pair<Communicator*, std::vector<Device*>>, std::unique_ptr<Communicator>>
        device_groups;
    std::mutex mutex;  // of what is opened and loaded when it is first asked for
  };

  class Ending;
  static void end_epoch();
  static void take_last_turn(int status, void*);  // when the process exits
  void compare_last_ledgers();
  static void come_first_at_exit();
  static void wait_for_turn();
  Context() = default;
  static Context& process();                                     // with or without an epoch
  Communicator& communicator_of(const std::vector<int>& ranks);  // of all of their devices
  Communicator& group_of(const std::vector<int>& participants, std::string_view name);
  void begin(const RuntimeOptions& options);
  const DeviceKind& kind(const std::string& name) const;
  static std::vector<std::string> share_out(Epoch& epoch, const DeviceKind& kind, int each,
                                            int local_rank);

  LiveValues values_;
  RuntimeParts parts_;
  static constexpr uint32_t kEnding = uint32_t{1} << 31;
  std::atomic<uint32_t> uses_ = 0;  // by threads, and kEnding while an epoch ends
  std::mutex ending_;
  std::binary_semaphore turns_{1};  // of runs
  std::mutex beginning_;            // of an epoch
  std::unique_ptr<Epoch> now_;
  RuntimeOptions configured_;  // of the epoch that began last
  std::atomic<bool> has_begun_ = false;
  std::atomic<const World*> world_ = nullptr;
  std::vector<std::unique_ptr<const World>> worlds_;  // of all epochs, each once
  uint64_t epochs_ = 0;
};

// "CPU:1" or "cpu:1" or "CPU" as a device of this process. UserError for anything else.
DeviceRef parse_device(const std::string& name);

}  // namespace tinyshard
