#include "launch/hosts.h"

#include <cstdio>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace tinyshard::hosts_test {
namespace {

std::string text(const std::vector<Host>& hosts) {
  std::string text;
  for (const Host& host : hosts) text += host.name + "*" + std::to_string(host.ranks) + " ";
  return text;
}

TEST(Hosts, Lists) {
  EXPECT_EQ(text(parse_hosts("a")), "a*1 ");
  EXPECT_EQ(text(parse_hosts("a:4,b.example:12")), "a*4 b.example*12 ");
  EXPECT_EQ(text(parse_hosts("10.0.0.1:2,[fd00::1]:3,fd00::2")), "10.0.0.1*2 fd00::1*3 fd00::2*1 ");
  for (const char* bad : {"", "a,,b", "a:0", "a:-1", "a:x", "a:4x", ":4", "-oProxyCommand=x", "a b",
                          "a;rm", "a:99999999999"})
    EXPECT_THROW(parse_hosts(bad), UserError) << bad;
}

TEST(Hosts, Files) {
  const std::string path = ::testing::TempDir() + "/tinyshard_hosts_test";
  std::ofstream(path) << "# ours\na 4\n\n  b slots=2  # the slow one\nc:3\nd\n";
  EXPECT_EQ(text(read_host_file(path)), "a*4 b*2 c*3 d*1 ");
  std::ofstream(path) << "a 4 max_slots=8\n";
  EXPECT_THROW(read_host_file(path), UserError);
  std::ofstream(path) << "# nothing\n";
  EXPECT_THROW(read_host_file(path), UserError);
  std::remove(path.c_str());
  EXPECT_THROW(read_host_file(path), UserError);
}

TEST(Hosts, RanksFillOneHostAfterTheOther) {
  EXPECT_EQ(text(place_ranks({}, 4)), "localhost*4 ");
  EXPECT_EQ(text(place_ranks({{"a", 4}, {"b", 4}}, 0)), "a*4 b*4 ");
  EXPECT_EQ(text(place_ranks({{"a", 4}, {"b", 4}}, 6)), "a*4 b*2 ");
  EXPECT_EQ(text(place_ranks({{"a", 4}, {"b", 4}}, 3)), "a*3 ");
  EXPECT_THROW(place_ranks({{"a", 4}, {"b", 4}}, 9), UserError);
}

}  // namespace
}  // namespace tinyshard::hosts_test
