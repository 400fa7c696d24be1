// The ranks of one host: the launcher has a process for them on each, itself started by fork or by
// ssh (`tinyshard agent`). It starts them, tells what they print and how they end, and sees to it
// that nothing of them stays when it is told so, or when the launcher is gone.
//
// Commands come as lines: first the group as JSON (to_json), then
//   terminate            the ranks are asked to end (SIGTERM)
//   kill                 they are killed, and all that they started
//   signal N             is handed on to them
//   start <rank> <place> one more rank with the cores and the local number of such a place
//   input <text>         for the standard input of rank 0; end-input: there is no more
// Their end, however it comes, means kill. Events go as lines "<letter> <rank> <rest>":
//   S pid          started
//   O text, E text a line of its output, of its errors; o and e: a part of one, which goes on
//   B peer text    it blames a peer for its end (tell_failure), or none (-1)
//   G ms           it asks for so much time to end in (expect_termination)
//   T signal       it was told to end by such a signal
//   X status       it has ended, as waitpid says
//   F text         it could not be started
//   I bytes        it has taken so much of its input; -1: it takes no more
//   A signal       the agent itself was told to end
// In input and its texts a backslash stands before an n for a line's end and before a backslash.
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

// Texts keep their bytes, whatever they mean.
std::string to_json(const RankGroup& group);
RankGroup rank_group_from_json(std::string_view text);  // UserError

std::string escaped(std::string_view text);
std::string unescaped(std::string_view text);

// Runs until all ranks have ended, if it does not stay, or until it is told to kill them. Returns the
// exit status.
int serve_rank_group(int commands, int events);

}  // namespace tinyshard
