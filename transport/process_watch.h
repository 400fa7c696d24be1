// Knows at once when a process on this host ends, and whether it is stopped: the kernel tells
// (pidfd, or /proc where it has none: before 5.3, in some containers), no message is needed. This is what lets a rank name its dead neighbour while MPI says
// nothing and the launcher is still deciding.
#pragma once
#include <cstdint>
#include <string>

#include "transport/channel.h"

namespace tinyshard {

// Where a process is found. Plain bytes on the wire; process numbers mean something only where host
// and pid namespace are the same.
struct ProcessAddress {
  uint64_t host = 0;        // hash of the boot id
  uint64_t namespace_ = 0;  // inode of the pid namespace
  int64_t pid = 0;
  static ProcessAddress own();
};

class ProcessWatch {
 public:
  ProcessWatch() = default;  // knows nothing
  // Knows nothing either when the process is out of sight.
  explicit ProcessWatch(const ProcessAddress& process);
  ~ProcessWatch();
  ProcessWatch(ProcessWatch&& other) noexcept;
  ProcessWatch& operator=(ProcessWatch&& other) noexcept;

  PeerState state() const;

 private:
  int fd_ = -1;
  int64_t pid_ = 0;
  uint64_t began_ = 0;  // in ticks since the host did, where there is no descriptor; 0: not known
};

}  // namespace tinyshard
