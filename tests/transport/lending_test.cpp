// Memory that is lent to the kernel, over sockets of this host: the kernel copies there in the end,
// so the pipe is told to lend all the same.
#include <algorithm>
#include <arpa/inet.h>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <netinet/in.h>
#include <numeric>
#include <poll.h>
#include <random>
#include <sys/socket.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "transport/tcp/frame_pipe.h"

namespace tinyshard::tcp {
namespace {

std::pair<Socket, Socket> connected() {
  Socket listener(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(listener.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(listen(listener.fd(), 1), 0);
  EXPECT_EQ(getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  Socket one(socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_EQ(connect(one.fd(), reinterpret_cast<sockaddr*>(&address), size), 0);
  pollfd ready{.fd = listener.fd(), .events = POLLIN, .revents = 0};
  poll(&ready, 1, 1000);
  return {std::move(one), Socket(accept(listener.fd(), nullptr, nullptr))};
}

// Keeps what comes, and counts what has gone.
struct Sink final : FrameSink {
  bool begin(const Frame& frame) override {
    messages.emplace_back(frame.bytes);
    return true;
  }
  std::byte* place(const Frame&, uint64_t at) override { return messages.back().data() + at; }
  void end(const Frame&) override { ++ended; }
  void sent(uint32_t transfer, uint64_t bytes) override { gone[transfer] += bytes; }

  std::vector<std::vector<std::byte>> messages;
  size_t ended = 0;
  std::map<uint32_t, uint64_t> gone;
};

struct Lending : testing::Test {
  Lending() : ends(connected()) {}
  FramePipe pipe(const Socket& socket, Sink& sink) {
    return {std::make_unique<SocketPipe>(socket.fd(), SocketPipe::Lending::Always), sink};
  }
  std::pair<Socket, Socket> ends;
  Sink near, far;
  FramePipe from = pipe(ends.first, near), to = pipe(ends.second, far);
};

std::vector<std::byte> bytes_of(uint32_t seed, size_t size) {
  std::vector<std::byte> values(size);
  std::mt19937 random(seed);
  std::ranges::generate(values, [&] { return static_cast<std::byte>(random()); });
  return values;
}

// A message that has gone is written over at once: the receiver has it as it was.
TEST_F(Lending, MessagesOfAllSizesArriveAsTheyWere) {
  std::mt19937 random(7);
  std::vector<std::vector<std::byte>> sent, lent;
  for (uint32_t i = 0; i < 60; ++i) {
    const size_t most = i % 3 == 0 ? 1000 : i % 3 == 1 ? 100'000 : 3'000'000;
    sent.push_back(bytes_of(i, std::uniform_int_distribution<size_t>(1, most)(random)));
  }
  lent = sent;
  for (uint32_t i = 0; i < lent.size(); ++i)
    from.push({.kind = Kind::Data, .bytes = lent[i].size()}, lent[i].data(), i);
  std::vector<bool> overwritten(lent.size());
  for (int turns = 0; far.ended < sent.size() || near.gone.size() < sent.size(); ++turns) {
    ASSERT_LT(turns, 1'000'000) << far.ended << " came, " << near.gone.size() << " have gone";
    ASSERT_TRUE(from.write());
    from.collect();
    ASSERT_TRUE(to.read());
    for (uint32_t i = 0; i < lent.size(); ++i) {
      if (overwritten[i] || near.gone[i] < lent[i].size()) continue;
      ASSERT_EQ(near.gone[i], lent[i].size());
      std::ranges::fill(lent[i], std::byte{0});
      overwritten[i] = true;
    }
  }
  EXPECT_EQ(far.messages, sent);
  for (int turns = 0; std::ranges::count(overwritten, true) < int(sent.size()) && turns < 1000;
       ++turns) {
    from.collect();
    poll(nullptr, 0, 1);
    for (uint32_t i = 0; i < lent.size(); ++i) overwritten[i] = near.gone[i] == lent[i].size();
  }
  EXPECT_EQ(std::ranges::count(overwritten, true), int(sent.size()));
}

// The kernel has some of it that nobody reads: the memory is its owner's once that has been taken.
TEST_F(Lending, WhatIsForgottenComesBackOnceItHasArrived) {
  std::vector<std::byte> lent = bytes_of(1, 20'000'000);
  const std::vector<std::byte> as_it_was = lent;
  from.push({.kind = Kind::Data, .bytes = lent.size()}, lent.data(), 5);
  ASSERT_TRUE(from.write());
  ASSERT_TRUE(from.blocked());
  EXPECT_FALSE(from.forget(5));
  EXPECT_LT(near.gone[5], lent.size());
  const uint64_t lent_before = near.gone[5];
  for (int turns = 0; far.ended == 0; ++turns) {
    ASSERT_LT(turns, 1'000'000);
    ASSERT_TRUE(from.write());  // the rest of the frame, from a copy
    if (from.forget(5)) std::ranges::fill(lent, std::byte{0});
    ASSERT_TRUE(to.read());
  }
  EXPECT_TRUE(from.forget(5));
  EXPECT_GT(near.gone[5], lent_before);
  ASSERT_EQ(far.messages.size(), 1);
  EXPECT_EQ(far.messages[0], as_it_was);
}

// Lending ends by itself between processes of one host: the kernel says that it copies anyhow, and
// is lent nothing more.
TEST(LendingToThisHost, EndsWithTheFirstMessage) {
  const auto ends = connected();
  SocketPipe pipe(ends.first.fd());
  if (!pipe.lends()) GTEST_SKIP() << "the kernel takes no memory without a copy";
  std::vector<std::byte> values(100'000), got(values.size());
  const ssize_t n = pipe.lend({values.data(), values.size()});
  ASSERT_GT(n, 0);
  for (ssize_t at = 0; at < n;) at += recv(ends.second.fd(), got.data(), got.size(), 0);
  pollfd told{.fd = ends.first.fd(), .events = 0, .revents = 0};
  ASSERT_EQ(poll(&told, 1, 1000), 1);
  EXPECT_EQ(pipe.given_back(), static_cast<uint64_t>(n));
  EXPECT_EQ(pipe.given_back(), 0);
  EXPECT_FALSE(pipe.lends());
}

}  // namespace
}  // namespace tinyshard::tcp
