// Channels between the threads of one process: every rank has a box with the messages that nobody
// has asked for and the receives that nothing has answered. Whoever comes second copies, straight
// from the sender's memory. A rank whose channel was destroyed counts as gone. Also the channel of
// a process that is alone (one rank).
#pragma once
#include <memory>
#include <vector>

#include "transport/channel.h"

namespace tinyshard {

std::vector<std::unique_ptr<Channel>> make_mailboxes(int ranks);

}  // namespace tinyshard
