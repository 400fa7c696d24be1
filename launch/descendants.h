// The processes below this one, whatever session or group they made themselves. Reads /proc; where it
// is not mounted, nothing is found.
#pragma once
#include <functional>
#include <string>
#include <sys/types.h>
#include <vector>

namespace tinyshard {

struct ProcessEntry {
  pid_t pid = 0, parent = 0, group = 0;
  bool ended = false;  // and waits to be asked for
};

// All processes that are shown.
std::vector<ProcessEntry> process_table();

// The living processes below the roots, without these themselves. Not below `spared`.
std::vector<pid_t> descendants(const std::vector<ProcessEntry>& table,
                               const std::vector<pid_t>& roots,
                               const std::vector<pid_t>& spared = {});

// The children of this process, by one small file; ended ones included.
std::vector<pid_t> own_children();

// Tells whether "NAME=value" was in the environment that the process began with.
bool began_with(pid_t pid, const std::string& variable);

// From now on processes below this one whose parent ends become its children.
void adopt_orphans();

// Kills what `find` names until it names nothing, for some seconds at most, and asks for the ends of
// those that are children of this process. A process that forks faster than it is found comes next.
void kill_all(const std::function<std::vector<pid_t>()>& find);

}  // namespace tinyshard
