// Counts how full the folder of compiled kernels is, in a file of that folder ("tally"), so that a
// process that stores a kernel need not list all that others stored. It is a hint: what it says may
// be wrong by what a process stored just before it was killed, and a count of the files puts it
// right.
#pragma once
#include <cstdint>
#include <optional>

#include "core/base/file.h"

namespace tinyshard::file_cache {

struct Tally {
  int64_t bytes = 0;    // of all files when they were counted, and of what was stored since
  int64_t stored = 0;   // of that, since they were counted
  int64_t counted = 0;  // when: seconds since 1970
};

// The file, opened and locked for as long as this lives, against other threads as well as other
// processes. Whatever else has its name (a FIFO, a link, another user's file) is replaced; where that
// fails there is none. Nothing here waits.
class TallyFile {
 public:
  explicit TallyFile(int folder);

  bool busy() const { return busy_; }  // somebody else has it: nothing can be read or written
  std::optional<Tally> read() const;   // null where it is new or damaged, or there is none
  bool write(const Tally& tally);      // whether a later read() will find it

  static constexpr const char* kName = "tally";

 private:
  Fd fd_;
  bool busy_ = false;
};

}  // namespace tinyshard::file_cache
