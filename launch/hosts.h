// Which hosts a job runs on, and how many ranks each of them takes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace tinyshard {

struct Host {
  std::string name;
  int ranks = 1;
};

// "a:4,b:4,[fd00::1]:2"; a host without a number takes one rank. UserError naming the entry.
std::vector<Host> parse_hosts(std::string_view list);

// A file with a host a line: "a", "a 4", "a:4" or "a slots=4"; what follows '#' is a comment.
std::vector<Host> read_host_file(const std::string& path);

// The first `ranks` places of these hosts, host by host; 0: all. UserError where there are fewer.
// Without hosts: all on this one.
std::vector<Host> place_ranks(const std::vector<Host>& hosts, int ranks);

bool is_this_host(const std::string& name);
std::string own_host_name();

}  // namespace tinyshard
