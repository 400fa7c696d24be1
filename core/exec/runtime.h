// The process that a program runs in: which devices it computes on, as it may ask and say, and its
// place in the job. The library comes to life with the first tensor that needs a device, or by
// `configure`, which must then come first.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>
#include <vector>

#include "multi/mesh.h"

namespace tinyshard {

struct RuntimeOptions {
  // Devices of this process: "CPU:0", or a kind, meaning every device of it. Empty: TS_DEVICES, or
  // devices_per_rank devices of the best kind there is.
  std::vector<std::string> devices;
  int devices_per_rank = 0;  // 0: as many as `devices` names, or 1
  // Among how many hosts the ranks of the job are shared out evenly, in their order, or the devices
  // of a job of one rank that plans for several hosts; 0: TS_HOSTS, or 1. Plans send less between
  // hosts than within one.
  int hosts = 0;
};

// A device of this process as it is now.
struct DeviceInfo {
  DeviceRef device;
  std::string processor;        // "znver4", "sm_90a"
  int multiprocessors = 0;      // of a GPU
  int64_t bytes = 0, peak = 0;  // of memory that it holds now, and held at most so far
  bool computes = true;         // false where it only plans, as NULL devices do
};

// Devices of a kind that this machine has, whether this process computes on them or not.
struct DeviceKindInfo {
  std::string kind;    // "CUDA"
  int count = 0;       // 0: none that can be used
  std::string detail;  // what was found, or why there is none
};

// Threads: any. Different tensors and steps may be used from different threads; graphs are built side
// by side, runs queue up behind each other, and each thread's captured steps see what it made itself.
// Tensors that share memory count as one: a tensor, its views, and what was made from it and is not
// computed yet; who writes to one of them needs them alone. With several ranks, runs that
// communicate come from one thread. `configure` comes once, before other threads use the library.
class Runtime {
 public:
  // Returns the runtime, which comes to life where it has not.
  static Runtime& get();
  // UserError when devices are in use already or one of these does not exist.
  static void configure(const RuntimeOptions& options,
                        std::source_location caller = std::source_location::current());
  // Destroys communicators and devices; for orderly ends and for tests that configure again. It may
  // come at any time, also while other threads use the library: it waits for their runs. Values
  // that were computed are lost, and so are captured steps: to use one is a UserError. What is made
  // from then on lives in a new runtime. Random values of training begin again.
  static void shutdown();
  // After a CommError, on all ranks that got one: goes on as another job without those that are
  // gone. The ranks that are left agree who they are, keep their order and are numbered anew; who is
  // there and does not come within the timeout is left out, too, and gets a CommError. What was
  // computed before is lost as by shutdown, with the captured steps and communicators: a value of
  // the old job is none of the new one. A job of TCP ranks only, with a store that outlives each of
  // them (tinyshard run --elastic): else a UserError. Ranks that were started later (--elastic MIN:MAX)
  // are taken in, behind the others. To be called by one thread, while no other
  // uses the library.
  static void reform();

  int rank() const;
  int ranks() const;
  int devices_per_rank() const;
  std::vector<DeviceInfo> devices() const;  // of this process
  // The kinds of devices that this build knows, best first: the default is the first that is there.
  static std::vector<DeviceKindInfo> kinds();
  // Returns when the devices of this process, or the one of that name, have done what they were given.
  // A run on a GPU returns when it is queued: who measures time waits here, or reads a value.
  static void synchronize(const std::string& device = {},
                          std::source_location caller = std::source_location::current());

 private:
  Runtime() = default;
};

}  // namespace tinyshard
