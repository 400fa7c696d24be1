// Whom a group blames, on a clock of its own and with peers that do what the test says: their news,
// heartbeats and ends come in orders that real ones have once in a million runs.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "transport/endpoint.h"
#include "transport/group.h"

namespace tinyshard::test {
namespace {

using namespace std::chrono_literals;
using Time = std::chrono::milliseconds;

constexpr int kRanks = 4;
constexpr Time kTimeout = 2000ms;

struct Peer {
  std::optional<Time> silent{},
      ends{};                   // since when no heartbeat comes, and its connection is closed
  std::optional<Time> comes{};  // when its part of the barrier does; never, else
};

struct Script {
  std::array<Peer, kRanks> peers{};
  std::deque<std::pair<Time, Notice>> news{};  // with the times of their arrivals
  std::vector<std::pair<int, Notice>> told{};  // what this rank said, and to whom
  Time now{};
};

// All meet, and then each sends what this rank sends itself, when the script says.
class ScriptedChannel final : public Channel {
 public:
  explicit ScriptedChannel(Script& script) : Channel(0, kRanks), script_(script) {}
  std::string_view name() const override { return "scripted"; }
  Transfer send(int, uint32_t, const void* data, size_t bytes) override {
    const auto* begin = static_cast<const std::byte*>(data);
    said_.assign(begin, begin + bytes);
    return kDone;
  }
  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    constexpr int kLocals = 1;
    if (tag != 0 || bytes != sizeof(kLocals)) {
      wanted_[size_t(peer)] = {static_cast<std::byte*>(data), bytes};
      return kOf + Transfer(peer);
    }
    std::memcpy(data, &kLocals, sizeof(kLocals));
    return kDone;
  }
  bool abandon(Transfer) override { return true; }
  void send_notice(int peer, const Notice& notice) override {
    script_.told.emplace_back(peer, notice);
  }
  bool next_notice(Notice& notice) override {
    if (script_.news.empty() || script_.news.front().first > script_.now) return false;
    notice = script_.news.front().second;
    script_.news.pop_front();
    return true;
  }
  Deadline now() override { return Deadline(script_.now); }
  void idle(Duration) override { script_.now += 1ms; }

 private:
  static constexpr Transfer kDone = 0, kOf = 1;  // and on: what a peer sends
  bool poll(Transfer transfer) override {
    if (transfer == kDone) return true;
    const std::optional<Time> comes = script_.peers[transfer - kOf].comes;
    if (!comes || script_.now < *comes) return false;
    std::ranges::copy(said_, wanted_[transfer - kOf].begin());
    return true;
  }
  Script& script_;
  std::vector<std::byte> said_;
  std::array<std::span<std::byte>, kRanks> wanted_{};
};

class ScriptedDetector final : public Detector {
 public:
  explicit ScriptedDetector(const Script& script) : script_(script) {}
  std::optional<detector::Circle> circle() override { return std::nullopt; }
  Sight sight(int rank) const override {
    const Peer& peer = script_.peers[size_t(rank)];
    Sight sight;
    sight.who = "process " + std::to_string(rank);
    sight.gone = peer.ends && script_.now >= *peer.ends;
    sight.silent = peer.silent && script_.now >= *peer.silent + 1s;
    if (peer.silent)
      sight.silent_s = std::chrono::duration<double>(script_.now - *peer.silent).count();
    return sight;
  }

 private:
  const Script& script_;
};

// A barrier that begins at time 0.
void passes(Script& script) {
  CommOptions options;
  options.timeout = kTimeout;
  options.spin = 0ns;
  auto endpoint = std::make_shared<Endpoint>(std::make_unique<ScriptedChannel>(script), options);
  endpoint->set_detector(std::make_unique<ScriptedDetector>(script));
  const auto world = Group::world(std::move(endpoint), 1);
  script.now = 0ms;
  world->barrier().wait();
}

// Returns the error that the script's call throws; script.now says when.
CommErrorInfo fails(Script& script) {
  try {
    passes(script);
  } catch (const CommError& error) {
    return error.info();
  }
  ADD_FAILURE() << "the barrier is done";
  return {};
}

TEST(Blame, OneThatHasEndedIsNamedAtOnce) {
  Script script;
  script.peers[2].ends = 500ms;
  EXPECT_EQ(fails(script).peer, 2);
  EXPECT_LT(script.now, 600ms);
}

// Rank 3 gives up rank 1 and ends; its news is slower than the end of its heartbeats.
TEST(Blame, ASilentRankIsNamedBeforeOneThatGaveItUp) {
  for (const Time before : {1ms, 5ms, 11ms, 25ms, 60ms}) {
    Script script;
    script.peers[1].silent = 10ms;
    script.peers[3].ends = kTimeout - before;
    const CommErrorInfo info = fails(script);
    EXPECT_EQ(info.peer, 1) << before.count() << " ms before: " << info.detail;
    EXPECT_LT(script.now, kTimeout + 100ms);
  }
}

// However seldom this rank asks.
TEST(Blame, WhatOneSaidBeforeItEndedIsHeard) {
  Script script;
  CommOptions options;
  options.timeout = kTimeout;
  auto endpoint = std::make_shared<Endpoint>(std::make_unique<ScriptedChannel>(script), options);
  endpoint->set_detector(std::make_unique<ScriptedDetector>(script));
  const auto world = Group::world(std::move(endpoint), 1);
  script.now = 0ms;
  script.peers[1].ends = 500ms;
  Notice notice{.group = 1, .from = 1, .culprit = -1, .cause = FailureCause::Aborted};
  std::string_view("aborted: no such corpus").copy(notice.text, sizeof(notice.text) - 1);
  script.news.emplace_back(500ms, notice);
  Work work = world->barrier();
  try {
    while (!work.test()) script.now += 70ms;
    ADD_FAILURE() << "the barrier is done";
  } catch (const CommError& error) {
    EXPECT_EQ(error.info().peer, 1);
    EXPECT_NE(error.info().detail.find("rank 1 left: aborted: no such corpus"), std::string::npos)
        << error.what();
  }
}

// However often a late wait is looked at.
TEST(Blame, NewsOnItsWayIsWaitedForPastTheDeadline) {
  Script script;
  script.peers[3].ends = kTimeout + 19ms;
  Notice notice{.group = 1, .from = 3, .culprit = 1, .cause = FailureCause::Late};
  script.news.emplace_back(kTimeout + 60ms, notice);
  const CommErrorInfo info = fails(script);
  EXPECT_EQ(info.peer, 1) << info.detail;
}

TEST(Blame, OneThatHasEndedIsNamedThoughAnotherOneIsStopped) {
  Script script;
  script.peers[1].silent = 10ms;
  script.peers[2].ends = 1100ms;
  EXPECT_EQ(fails(script).peer, 2);
  EXPECT_LT(script.now, 1400ms);
}

// A message that rank 2 sent before it ended is on its way still: once something else has come, the
// looks at its end are counted from there again.
TEST(Blame, OneThatHasEndedIsGivenTimeAgainWhenSomethingComes) {
  Script script;
  script.peers[2].ends = 0ms;
  script.peers[1].comes = script.peers[3].comes = 10ms;
  script.peers[2].comes = 20ms;
  passes(script);
}

TEST(Blame, NewsIsPassedOnToThoseThatMayNotHaveIt) {
  Script script;
  Notice notice{.group = 1, .sequence = 7, .from = 1, .culprit = 2, .cause = FailureCause::Gone};
  script.news.emplace_back(300ms, notice);
  EXPECT_EQ(fails(script).peer, 2);
  std::vector<int> to;
  for (const auto& [rank, said] : script.told) {
    to.push_back(rank);
    EXPECT_EQ(said.culprit, 2);
    EXPECT_EQ(said.from, 1);
  }
  EXPECT_EQ(to, (std::vector<int>{2, 3}));
}

}  // namespace
}  // namespace tinyshard::test
