// The agent alone holds the writing end of a pipe; its end is the agent's, however that came. Numbers
// of groups travel through the pipe: a positive one is to be watched, a negative one no more, 0 ends
// the guardian. It has a session, a name and a command line of its own, so that what is sent to the
// launcher and its agents by name or by terminal does not meet it.
#include "launch/guardian.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "launch/descendants.h"

namespace tinyshard {
namespace {

constexpr const char* kName = "ts-guardian";

void take_own_name() {
  prctl(PR_SET_NAME, kName);
  const size_t room = std::strlen(program_invocation_name);
  if (room < std::strlen(kName)) return;
  std::memset(program_invocation_name, 0, room);
  std::memcpy(program_invocation_name, kName, std::strlen(kName));
}

void close_all_but(int kept) {
  dup2(kept, STDIN_FILENO);
#ifdef SYS_close_range
  if (syscall(SYS_close_range, 1U, ~0U, 0U) == 0) return;
#endif
  for (int fd = 1; fd < int(sysconf(_SC_OPEN_MAX)); ++fd) close(fd);
}

// Finds the processes of the job and those below them: a job within the job has another name.
std::vector<pid_t> left_of(const std::string& job) {
  const std::vector<ProcessEntry> table = process_table();
  std::vector<pid_t> found;
  for (const ProcessEntry& entry : table) {
    if (!entry.ended && entry.pid != getpid() && began_with(entry.pid, job))
      found.push_back(entry.pid);
  }
  const std::vector<pid_t> below = descendants(table, found, {getpid()});
  found.insert(found.end(), below.begin(), below.end());
  return found;
}

[[noreturn]] void guard(const std::string& job) {
  std::set<pid_t> groups;
  for (pid_t group; read(STDIN_FILENO, &group, sizeof(group)) == ssize_t(sizeof(group));) {
    if (group == 0) _exit(0);
    if (group > 0) {
      groups.insert(group);
    } else {
      groups.erase(-group);
    }
  }
  for (pid_t group : groups) kill(-group, SIGKILL);
  kill_all([&] { return left_of(job); });
  _exit(0);
}

}  // namespace

Guardian::Guardian(const std::string& job) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return;
  pid_ = fork();
  if (pid_ == 0) {
    setsid();
    for (int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGPIPE, SIGTSTP})
      std::signal(s, SIG_IGN);
    close_all_but(ends[0]);
    take_own_name();
    guard(job);
  }
  close(ends[0]);
  pipe_ = ends[1];
}

Guardian::~Guardian() {
  tell(0);
  if (pipe_ >= 0) close(pipe_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

void Guardian::watch(pid_t group) { tell(group); }
void Guardian::forget(pid_t group) { tell(-group); }

void Guardian::tell(pid_t group) const {
  if (pipe_ >= 0 && write(pipe_, &group, sizeof(group)) < 0) return;
}

}  // namespace tinyshard
