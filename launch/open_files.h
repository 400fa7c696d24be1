// The limit of open descriptors (ulimit -n).
#pragma once
#include <sys/resource.h>

namespace tinyshard {

// Raises the soft limit of this process to the hard one: a rank takes three descriptors. Programs that
// are started get the limit that there was: some size tables by it.
class OpenFiles {
 public:
  OpenFiles() {
    known_ = getrlimit(RLIMIT_NOFILE, &before_) == 0;
    rlimit most = before_;
    most.rlim_cur = most.rlim_max;
    if (known_) setrlimit(RLIMIT_NOFILE, &most);
  }
  void restore_in_child() const {
    if (known_) setrlimit(RLIMIT_NOFILE, &before_);
  }

 private:
  bool known_ = false;
  rlimit before_{};
};

// Raises the soft limit of this process as far as it takes, and no further: some programs size tables by
// it.
inline void raise_open_files(rlim_t wanted) {
  rlimit now{};
  if (getrlimit(RLIMIT_NOFILE, &now) != 0 || now.rlim_cur >= wanted) return;
  now.rlim_cur = wanted < now.rlim_max ? wanted : now.rlim_max;
  setrlimit(RLIMIT_NOFILE, &now);
}

}  // namespace tinyshard
