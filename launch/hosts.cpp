// An entry is "node1" or "node1:4"; an IPv6 address has its number behind brackets, "[fe80::1]:2".
// Host files may say "node1 slots=4" or "node1 4". Ranks fill one host after the other.
#include "launch/hosts.h"

#include <array>
#include <charconv>
#include <fstream>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

constexpr int kMostRanks = 1 << 20;

int parse_count(std::string_view text, std::string_view entry) {
  int count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 1 || count > kMostRanks)
    throw UserError(fmt::format("host \"{}\": \"{}\" is not a number of ranks", entry, text));
  return count;
}

// A name goes to a remote shell and to the resolver: it may not look like an option of either.
Host make_host(std::string_view name, int ranks, std::string_view entry) {
  if (name.size() > 2 && name.front() == '[' && name.back() == ']')
    name = name.substr(1, name.size() - 2);
  constexpr std::string_view kLetters =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:@%";
  if (name.empty() || name.front() == '-' ||
      name.find_first_not_of(kLetters) != std::string_view::npos)
    throw UserError(fmt::format("host \"{}\" has no name that a host can have", entry));
  return {std::string(name), ranks};
}

Host parse_host(std::string_view entry) {
  const size_t colon = entry.rfind(':'), bracket = entry.rfind(']');
  const bool counted =
      colon != std::string_view::npos &&
      (bracket == std::string_view::npos ? entry.find(':') == colon : bracket < colon);
  if (!counted) return make_host(entry, 1, entry);
  return make_host(entry.substr(0, colon), parse_count(entry.substr(colon + 1), entry), entry);
}

}  // namespace

std::vector<Host> parse_hosts(std::string_view list) {
  std::vector<Host> hosts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    hosts.push_back(parse_host(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return hosts;
}

std::vector<Host> read_host_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw UserError(fmt::format("the host file {} cannot be read", path));
  std::vector<Host> hosts;
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kSpace = " \t\r", kSlots = "slots=";
    const std::string_view text = std::string_view(line).substr(0, line.find('#'));
    std::vector<std::string_view> words;
    for (size_t at = 0; (at = text.find_first_not_of(kSpace, at)) != std::string_view::npos;) {
      const size_t end = std::min(text.find_first_of(kSpace, at), text.size());
      words.push_back(text.substr(at, end - at));
      at = end;
    }
    if (words.empty()) continue;
    if (words.size() > 2)
      throw UserError(fmt::format("{}: \"{}\" is not a host and a number of ranks", path, line));
    Host host = parse_host(words[0]);
    if (words.size() == 2) {
      std::string_view count = words[1];
      if (count.starts_with(kSlots)) count.remove_prefix(kSlots.size());
      host.ranks = parse_count(count, line);
    }
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw UserError(fmt::format("the host file {} names no host", path));
  return hosts;
}

std::vector<Host> place_ranks(const std::vector<Host>& hosts, int ranks) {
  if (hosts.empty()) return {{"localhost", std::max(ranks, 1)}};
  std::vector<Host> placed;
  int places = 0;
  for (const Host& host : hosts) {
    const int here = ranks == 0 ? host.ranks : std::min(host.ranks, ranks - places);
    if (here > 0) placed.push_back({host.name, here});
    places += std::max(here, 0);
  }
  if (ranks > places)
    throw UserError(fmt::format("{} ranks are wanted, the hosts take {}", ranks, places));
  return placed;
}

std::string own_host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

bool is_this_host(const std::string& name) {
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own_host_name();
}

}  // namespace tinyshard
