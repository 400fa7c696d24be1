#include "tests/io/faults.h"

#include <cerrno>
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <map>
#include <sys/syscall.h>
#include <unistd.h>

namespace tinyshard::test {
namespace {

struct Fault {
  std::string call;
  int n = 0, error = 0;
  bool sticky = false, met = false;
};
Fault fault;
std::map<std::string, int>& counts() {
  static std::map<std::string, int> map;
  return map;
}
bool armed = false;  // before and after tests, calls pass without looking

bool fails(const char* call) {
  if (!armed) return false;
  const int n = ++counts()[call];
  if (fault.call != call || n < fault.n || (n > fault.n && !fault.sticky)) return false;
  fault.met = true;
  errno = fault.error;
  return true;
}

}  // namespace

void fail_call(const std::string& call, int n, int error, bool sticky) {
  fault = {call, n, error, sticky, false};
  counts().clear();
  armed = true;
}

bool clear_faults() {
  armed = false;
  return fault.met;
}

int calls_of(const std::string& call) { return counts()[call]; }

}  // namespace tinyshard::test

using tinyshard::test::fails;

extern "C" {

ssize_t write(int fd, const void* data, size_t size) {
  if (fails("write")) return -1;
  return syscall(SYS_write, fd, data, size);
}

ssize_t pwrite(int fd, const void* data, size_t size, off_t offset) {
  if (fails("write")) return -1;
  return syscall(SYS_pwrite64, fd, data, size, offset);
}

int fsync(int fd) {
  if (fails("fsync")) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}

int close(int fd) {
  const bool failed = fails("close");
  const int result =
      static_cast<int>(syscall(SYS_close, fd));  // Linux frees the descriptor even so
  return failed ? (errno = EIO, -1) : result;
}

int rename(const char* from, const char* to) noexcept {
  if (fails("rename")) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0u));
}

dirent* readdir(DIR* folder) {
  static auto* const next = reinterpret_cast<dirent* (*)(DIR*)>(::dlsym(RTLD_NEXT, "readdir"));
  return fails("readdir") ? nullptr : next(folder);
}

}  // extern "C"
