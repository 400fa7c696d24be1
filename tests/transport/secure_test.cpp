// TS_SECURE: what goes over the sockets of a job is encrypted, and changed by nobody on its way. A proxy
// stands between two ranks, hears all that they say, and changes a bit of it.
#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "transport/rendezvous/file_store.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/tcp_channel.h"
#include "transport/tcp/tls.h"

namespace tinyshard::test {
namespace {

using namespace tcp;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::string_view kText = "the quick brown fox jumps over the lazy dog";

Secret encrypting(bool on) {
  Secret secret = Secret::random();
  secret.set_encrypts(on);
  return secret;
}

void expect_mentions(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

// Returns what `call` throws, and expects it soon.
template <class Error, class Call>
std::string told(Call&& call) {
  const auto begun = Clock::now();
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_LT(Clock::now() - begun, seconds(5)) << error.what();
    return error.what();
  }
  return {};
}

class Proxy {
 public:
  explicit Proxy(const std::string& to) : to_(address_of(to)) {
    listening_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in own{};
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(own);
    EXPECT_EQ(bind(listening_, reinterpret_cast<const sockaddr*>(&own), sizeof(own)), 0);
    EXPECT_EQ(listen(listening_, 8), 0);
    EXPECT_EQ(getsockname(listening_, reinterpret_cast<sockaddr*>(&own), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(own.sin_port));
    thread_ = std::thread([this] { run(); });
  }
  ~Proxy() {
    over_ = true;
    thread_.join();
    for (const int fd : fds_) close(fd);
    close(listening_);
  }
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  const std::string& address() const { return address_; }
  // A bit of the next bytes, so many or more, that come from the side that was connected to.
  void change_next(size_t least) { changes_ = least; }
  bool heard(std::string_view text) {
    const std::lock_guard lock(mutex_);
    return heard_.find(text) != std::string::npos;
  }

 private:
  static sockaddr_in address_of(const std::string& text) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(uint16_t(std::stoi(text.substr(text.rfind(':') + 1))));
    return address;
  }

  // Connections come in twos: the connector's end, and the one to the acceptor.
  void run() {
    while (!over_) {
      std::vector<pollfd> ready{{.fd = listening_, .events = POLLIN, .revents = 0}};
      for (const int fd : fds_) ready.push_back({.fd = fd, .events = POLLIN, .revents = 0});
      if (poll(ready.data(), ready.size(), 20) <= 0) continue;
      for (size_t i = 0; i + 1 < ready.size(); ++i) {
        if (ready[i + 1].fd >= 0 && ready[i + 1].revents != 0) forward(i);
      }
      if (ready[0].revents != 0) {
        fds_.push_back(accept(listening_, nullptr, nullptr));
        fds_.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        EXPECT_EQ(connect(fds_.back(), reinterpret_cast<const sockaddr*>(&to_), sizeof(to_)), 0);
      }
    }
  }

  void forward(size_t from) {
    std::array<char, 4096> bytes;
    const ssize_t n = recv(fds_[from], bytes.data(), bytes.size(), 0);
    int& other = fds_[from ^ 1];
    if (n <= 0) {
      shutdown(other, SHUT_RDWR);
      close(std::exchange(fds_[from], -1));
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      heard_.append(bytes.data(), size_t(n));
    }
    if (const size_t least = changes_; from % 2 == 1 && least != 0 && size_t(n) >= least) {
      bytes[size_t(n) - 1] ^= 1;
      changes_ = 0;
    }
    for (ssize_t at = 0; at < n;) {
      const ssize_t sent = send(other, bytes.data() + at, size_t(n - at), MSG_NOSIGNAL);
      if (sent <= 0) return;
      at += sent;
    }
  }

  const sockaddr_in to_;
  int listening_ = -1;
  std::string address_;
  std::vector<int> fds_;
  std::atomic<bool> over_ = false;
  std::atomic<size_t> changes_ = 0;
  std::mutex mutex_;
  std::string heard_;
  std::thread thread_;
};

// Tells rank 1 that rank 0 listens at the proxy, which it makes for that.
class StoreWithProxy final : public Store {
 public:
  explicit StoreWithProxy(std::unique_ptr<Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  bool get(const std::string& key, std::string& value) override {
    if (!store_->get(key, value)) return false;
    if (key != "address/0/0") return true;
    char* address = value.data() + sizeof(Version);
    if (!proxy) proxy = std::make_unique<Proxy>(address);
    std::memset(address, 0, 64);
    proxy->address().copy(address, 63);
    return true;
  }
  std::string local_address() const override { return store_->local_address(); }

  std::unique_ptr<Proxy> proxy;

 private:
  std::unique_ptr<Store> store_;
};

LaunchEnvironment rank_of(int rank) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::Own;
  launch.rank = launch.local_rank = rank;
  launch.size = launch.local_size = 2;
  return launch;
}

Deadline soon() { return Clock::now() + seconds(10); }

// Two ranks with a proxy between them.
struct Overheard {
  explicit Overheard(bool encrypts) : secret(encrypting(encrypts)) {
    std::thread other([&] {
      ends[0] =
          meet_by_tcp(rank_of(0), secret, *connect_store(server.address(), secret, 0, 0, soon()), 0,
                      false, seconds(20));
    });
    ends[1] = meet_by_tcp(rank_of(1), secret, store, 0, false, seconds(20));
    other.join();
  }

  // A message from rank 0; whether it came, and as it was sent.
  enum class Came { AsSent, Changed, Never };
  Came send(size_t bytes) {
    std::string out, in(bytes, '\0');
    while (out.size() < bytes) out += kText;
    const auto sent = ends[0]->send(1, 7, out.data(), bytes);
    const auto got = ends[1]->receive(0, 7, in.data(), bytes);
    bool gone = false, a = false, b = false;
    while (!b && !gone && Clock::now() < end) {
      gone = ends[1]->peer_state(0).gone;  // what came before is read by now
      a = a || ends[0]->test(sent);
      b = ends[1]->test(got);
    }
    if (!a) ends[0]->abandon(sent);
    if (!b) ends[1]->abandon(got);
    if (!b) return Came::Never;
    return std::string_view(out).substr(0, bytes) == in ? Came::AsSent : Came::Changed;
  }

  const Deadline end = soon();
  Secret secret;
  StoreServer server{"127.0.0.1:0", secret, 0};
  StoreWithProxy store{connect_store(server.address(), secret, 0, 1, soon())};
  std::unique_ptr<Channel> ends[2];
};

TEST(Secure, WhatRanksSendIsHeardByNobodyElse) {
  for (const bool encrypts : {false, true}) {
    Overheard job(encrypts);
    for (const size_t bytes : {100u, 40000u, 3u << 20})
      EXPECT_EQ(job.send(bytes), Overheard::Came::AsSent) << bytes;
    EXPECT_EQ(job.store.proxy->heard(kText), !encrypts);
  }
}

TEST(Secure, WhatIsChangedOnItsWayIsTold) {
  for (const size_t bytes : {100u, 40000u, 3u << 20}) {
    SCOPED_TRACE(bytes);
    const size_t piece = std::min<size_t>(bytes, 1000);  // of the content, not of what announces it
    Overheard open(false);
    ASSERT_EQ(open.send(bytes), Overheard::Came::AsSent);
    open.store.proxy->change_next(piece);
    EXPECT_NE(open.send(bytes), Overheard::Came::AsSent) << "the proxy changes nothing";

    Overheard job(true);
    ASSERT_EQ(job.send(bytes), Overheard::Came::AsSent);
    job.store.proxy->change_next(piece);
    EXPECT_EQ(job.send(bytes), Overheard::Came::Never);
    expect_mentions(job.ends[1]->peer_state(0).text, "came what its other end did not send (");
  }
}

// Both ranks say so.
TEST(Secure, RanksThatDifferInItAreTold) {
  for (const bool first : {true, false}) {
    SCOPED_TRACE(first);
    Secret secret = encrypting(first), other = secret;
    other.set_encrypts(!first);
    const std::string one = first ? "rank 0" : "rank 1", two = first ? "rank 1" : "rank 0";
    const std::string path = ::testing::TempDir() + "/tinyshard_secure_test_" +
                             std::to_string(getpid()) + (first ? "a" : "b");
    std::array<std::string, 2> texts;
    const auto join = [&](int rank, FolderRole role) {
      texts[size_t(rank)] = told<CommError>([&] {
        const auto store = open_file_store({path}, role, rank == 0);
        meet_by_tcp(rank_of(rank), rank == 0 ? secret : other, *store, 0, true, seconds(20));
      });
    };
    std::thread thread([&] { join(0, FolderRole::Leads); });
    join(1, FolderRole::Joins);
    thread.join();
    std::string sentence = one;
    sentence.append(" has TS_SECURE=1, and ").append(two).append(" has not");
    for (const std::string& text : texts) expect_mentions(text, sentence);
  }
}

// Rank 1 is told by the store, and rank 0, which waits for it, by the store, too.
TEST(Secure, ARankThatDiffersFromTheStoreIsTold) {
  for (const bool first : {true, false}) {
    SCOPED_TRACE(first);
    Secret secret = encrypting(first), other = secret;
    other.set_encrypts(!first);
    StoreServer server("127.0.0.1:0", secret, 0);
    std::string zero;
    std::thread thread([&] {
      zero = told<CommError>([&] {
        meet_by_tcp(rank_of(0), secret, *connect_store(server.address(), secret, 0, 0, soon()), 0,
                    true, seconds(20));
      });
    });
    const std::string one =
        told<StoreError>([&] { connect_store(server.address(), other, 0, 1, soon()); });
    thread.join();
    const std::string has = first ? "the job's store has TS_SECURE=1, and rank 1 has not"
                                  : "rank 1 has TS_SECURE=1, and the job's store has not";
    expect_mentions(one, has);
    expect_mentions(zero, has);
  }
}

TEST(Secure, AnotherKeyIsRefusedInASentence) {
  StoreServer server("127.0.0.1:0", encrypting(true), 0);
  expect_mentions(
      told<StoreError>([&] { connect_store(server.address(), encrypting(true), 0, 1, soon()); }),
      "the other side does not hold this job's key");
}

struct Ends {
  Ends() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0); }
  ~Ends() {
    for (const int fd : fds) close(fd);
  }
  int fds[2] = {-1, -1};
};

Proof key(int number) {
  Proof proof{};
  proof[0] = std::byte(number);
  return proof;
}

TEST(TlsSession, TwoWithOneKeyAgreeAndOthersDoNot) {
  for (const int other : {1, 2}) {
    const Ends ends;
    TlsSession a(ends.fds[0], TlsSession::Side::Connector, key(1));
    TlsSession b(ends.fds[1], TlsSession::Side::Acceptor, key(other));
    using Step = TlsSession::Step;
    Step one = a.handshake(), two = b.handshake();
    const auto goes_on = [](Step step) { return step != Step::Done && step != Step::Failed; };
    for (int turns = 0; turns < 100 && (goes_on(one) || goes_on(two)); ++turns) {
      if (goes_on(one)) one = a.handshake();
      if (goes_on(two)) two = b.handshake();
    }
    EXPECT_EQ(one, other == 1 ? Step::Done : Step::Failed) << a.problem();
    EXPECT_EQ(two, other == 1 ? Step::Done : Step::Failed) << b.problem();
    EXPECT_EQ(a.problem().empty() && b.problem().empty(), other == 1);
  }
}

// Without the key one might offer a certificate, or anything else; without TLS, any bytes.
TEST(TlsSession, WhatIsNoTlsFails) {
  const Ends ends;
  TlsSession a(ends.fds[0], TlsSession::Side::Acceptor, key(1));
  const std::string junk(300, 'x');
  ASSERT_EQ(send(ends.fds[1], junk.data(), junk.size(), 0), ssize_t(junk.size()));
  EXPECT_EQ(a.handshake(), TlsSession::Step::Failed);
  EXPECT_FALSE(a.problem().empty());
}

// The socket takes few bytes at a time. Bytes that write() took may be changed by the caller at
// once.
TEST(TlsSession, BytesArriveThoughTheSocketTakesFew) {
  const Ends ends;
  const int small = 8 << 10;
  for (const int fd : ends.fds) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
  TlsSession a(ends.fds[0], TlsSession::Side::Connector, key(1));
  TlsSession b(ends.fds[1], TlsSession::Side::Acceptor, key(1));
  for (int turns = 0; turns < 10; ++turns) a.handshake(), b.handshake();
  std::string out(3 << 20, '\0'), in;
  for (size_t i = 0; i < out.size(); ++i) out[i] = char(i * 7 + i / 251);
  size_t sent = 0;
  bool held = false;
  while (in.size() < out.size()) {
    std::string piece = out.substr(sent, 100000), got(70000, '\0');
    const iovec parts[] = {{piece.data(), piece.size() / 3},
                           {piece.data() + piece.size() / 3, piece.size() - piece.size() / 3}};
    const ssize_t n = a.write(parts);
    ASSERT_NE(n, Pipe::kEnded) << a.problem();
    std::ranges::fill(piece, '?');
    if (n > 0) sent += size_t(n);
    held = held || a.holds();
    const iovec room{got.data(), got.size()};
    const ssize_t came = b.read({&room, 1});
    ASSERT_NE(came, Pipe::kEnded) << b.problem();
    if (came > 0) in.append(got, 0, size_t(came));
  }
  EXPECT_EQ(in, out);
  EXPECT_TRUE(held) << "the socket takes all at once: this shows nothing";
}

}  // namespace
}  // namespace tinyshard::test
