// The launcher's side of the agent of one host (rank_group.h): its process, or that of the remote
// shell, and two pipes. Nothing here waits for the agent, but for its end.
#pragma once
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

#include "launch/caught_signals.h"
#include "launch/hosts.h"
#include "launch/line_reader.h"
#include "launch/open_files.h"

namespace tinyshard {

class RemoteAgent {
 public:
  // Starts it by these words. UserError where there are no descriptors or processes left.
  RemoteAgent(Host host, int first_rank, const std::vector<std::string>& words,
              const CaughtSignals& signals, const OpenFiles& open_files);
  ~RemoteAgent();
  RemoteAgent(const RemoteAgent&) = delete;
  RemoteAgent& operator=(const RemoteAgent&) = delete;

  const Host& host() const { return host_; }
  int first_rank() const { return first_rank_; }
  bool is_local() const { return is_local_; }
  pid_t pid() const { return pid_; }
  bool lives() const { return events_.fd >= 0; }

  // Descriptors to wait for, -1: none.
  int events() const { return events_.fd; }
  int commands() const { return untold_.empty() ? -1 : commands_; }

  void tell(const std::string& line);
  void flush();  // writes what the agent takes of that
  // No more commands will come; those before it are still told.
  void close_commands();
  // Calls take(line) for each event that has come. False where it has ended.
  template <class Take>
  bool read(Take&& take) {
    return events_.read(take);
  }
  // It has no more to say: asks for its end, which it has a second for, and returns the status.
  int bury();

 private:
  Host host_;
  int first_rank_;
  bool is_local_;
  pid_t pid_ = -1;
  int commands_ = -1;
  LineReader events_;
  std::string untold_;
  bool closes_ = false;
};

}  // namespace tinyshard
