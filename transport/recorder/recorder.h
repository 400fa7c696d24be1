// Writes what this rank's communicators do into a ring of records in a mapped file (ring_file.h),
// for `tinyshard blame` and `tinyshard ps`. On where TS_RECORD names a folder; `tinyshard run
// --log-dir` sets it. A record costs some tens of nanoseconds. Any thread.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/runtime/communicator.h"
#include "transport/channel.h"

namespace tinyshard {

class Recorder {
 public:
  // Where a rank stands in its job.
  struct Place {
    int rank = 0, ranks = 1;
    std::string job;
    uint32_t epoch = 0;
    int launched = -1;  // as which rank it was launched, -1: as the one that it is
  };
  // A ring in `folder`, which is made where it is missing: ring-<rank>.<hash of the job's name>.<epoch>.
  // <host>.<nonce>, so that jobs that run at once replace none of each other. Worlds of one process that
  // are the same rank share one. Removes what nobody asks for any more: rings of ranks of this host that
  // have ended, which this rank of this job takes the place of or which are of another job and a minute
  // old. IoError naming the path.
  static std::shared_ptr<Recorder> open(const std::string& folder, const Place& place);
  // Opens a ring in the folder that TS_RECORD names. Null if it names none, or if no ring can be
  // made: then a line says so once, and the job goes on.
  static std::shared_ptr<Recorder> open(const Place& place);

  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // A group as records name it. `id` is unique among the groups of one world.
  struct GroupName {
    uint64_t id = 0;  // unique among all worlds of this process
    uint32_t text = 0;
  };
  GroupName name_group(uint64_t id, std::string_view name, std::span<const int> ranks);

  // A call begins; returns the number with which it completes.
  uint64_t start(const Collective& call, const GroupName& group, uint64_t sequence, Deadline now);
  void complete(uint64_t serial, Deadline now);
  // A recorded step begins: its calls are not seen one by one.
  void run(const Ticket& ticket, const GroupName& group, Deadline now);

  // The first failure counts.
  void fail(int culprit, FailureCause cause, std::string_view text);
  void beat(Deadline now);

 private:
  struct State;
  explicit Recorder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tinyshard
