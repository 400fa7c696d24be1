// The lines of all ranks on the launcher's stdout and stderr.
#pragma once
#include <string>
#include <string_view>

#include "launch/output_queue.h"

namespace tinyshard {

// Each line begins with the number of its rank. A line that a rank has begun is shown as far as it has
// come; where another one prints meanwhile it ends there, and goes on as a line of its own.
class JobOutput {
 public:
  JobOutput(OutputQueue& queue, bool prefix, bool color);

  void print(int rank, std::string_view text, bool error, bool line_ends);
  void end_rank(int rank);            // ends the line that it has begun
  void say(const std::string& text);  // a line of the launcher itself, on stderr

 private:
  struct Unfinished {
    int rank = -1, fd = -1;
  };
  // stdout and stderr may lead to one place.
  Unfinished& unfinished_of(int fd) { return unfinished_[same_place_ ? 0 : fd - 1]; }
  void end_unfinished(int fd);
  std::string prefix_of(int rank) const;

  OutputQueue& queue_;
  bool prefix_, color_, same_place_;
  Unfinished unfinished_[2];
};

}  // namespace tinyshard
