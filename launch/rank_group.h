// The ranks of one host: the launcher has a process for them on each, itself started by fork or by
// ssh (`tinyshard agent`). It starts them, tells what they print and how they end, and sees to it
// that nothing of them stays when it is told so, or when the launcher is gone.
//
// Commands come as lines: first the group as JSON (to_json), then "terminate", "kill" or
// "start <rank> <place>", one more rank with the cores and the local number of such a place. Their end,
// however it comes, means kill. Events go as lines "<letter> <rank> <rest>":
//   S pid          started
//   O text, E text a line of its output, of its errors
//   B peer text    it blames a peer for its end (tell_failure), or none (-1)
//   X status       it has ended, as waitpid says
//   F text         it could not be started
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

struct RankGroup {
  std::vector<std::string> command;
  std::vector<std::string> environment;  // "NAME=value", beside that of the agent
  std::string folder;                    // to run in; empty: where the agent is
  int first_rank = 0, ranks = 1, size = 1;
  bool stays = false;      // until its commands end: ranks may be started when none is left
  bool bind_cores = true;  // to a share of the cores of the host each, where there are enough
};

std::string to_json(const RankGroup& group);
RankGroup rank_group_from_json(std::string_view text);  // UserError

// Runs until all ranks have ended, if it does not stay, or until it is told to kill them. Returns the exit status.
int serve_rank_group(int commands, int events);

}  // namespace tinyshard
