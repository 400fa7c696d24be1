// The TCP transport against those who do not belong to the job: garbage, other keys, what was heard
// of another connection, ranks that are there twice, frames that no honest rank sends.
#include <arpa/inet.h>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "launch/hosts.h"
#include "transport/rendezvous/file_store.h"
#include "transport/rendezvous/tcp_store.h"
#include "transport/tcp/frame.h"
#include "transport/tcp/gate.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/mesh.h"
#include "transport/tcp/refusals.h"
#include "transport/tcp/tcp_channel.h"

namespace tinyshard::test {
namespace {

using namespace tcp;
using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline in(std::chrono::nanoseconds time) { return std::chrono::steady_clock::now() + time; }

template <class Value>
std::span<const std::byte> bytes_of(const Value& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class Value>
std::span<std::byte> room_of(Value& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// Within five seconds; what still comes is read.
bool is_closed(const Socket& socket) {
  std::byte byte;
  try {
    for (const Deadline end = in(seconds(5));;) read_all(socket, {&byte, 1}, end);
  } catch (const SocketError& error) {
    return std::string(error.what()).find("deadline") == std::string::npos;
  }
}

TEST(Handshake, WhoHoldsTheKeyIsLetIn) {
  const Secret secret = Secret::random();
  const Connector connector(secret);
  Acceptor acceptor(secret);
  const auto challenge = acceptor.challenge(connector.hello());
  ASSERT_TRUE(challenge);
  const auto answer = connector.answer(*challenge, {.from = 3, .to = 1});
  ASSERT_TRUE(answer);
  const auto claim = acceptor.claim(*answer);
  ASSERT_TRUE(claim);
  EXPECT_EQ(claim->from, 3);
  EXPECT_EQ(claim->to, 1);
}

TEST(Handshake, NeitherSideTrustsAnotherKey) {
  const Secret ours = Secret::random(), theirs = Secret::random();
  const Connector connector(ours);
  Acceptor acceptor(theirs);
  const auto challenge = acceptor.challenge(connector.hello());
  EXPECT_FALSE(connector.answer(*challenge, {})) << "the acceptor is believed";
  // A connector that does not care and answers all the same.
  Acceptor honest(ours);
  const Connector intruder(theirs);
  const auto asked = honest.challenge(intruder.hello());
  Acceptor accomplice(theirs);
  const Answer forged = *intruder.answer(*accomplice.challenge(intruder.hello()), {});
  EXPECT_FALSE(honest.claim(forged));
  EXPECT_TRUE(asked);
}

TEST(Handshake, WhatWasHeardOpensNothing) {
  const Secret secret = Secret::random();
  const Connector connector(secret);
  Acceptor first(secret);
  const Answer heard = *connector.answer(*first.challenge(connector.hello()), {});
  ASSERT_TRUE(first.claim(heard));
  Acceptor second(secret);
  ASSERT_TRUE(second.challenge(connector.hello()));
  EXPECT_FALSE(second.claim(heard)) << "a replay is let in";
  // The acceptor's own proof, sent back as an answer.
  Acceptor third(secret);
  const auto challenge = third.challenge(connector.hello());
  EXPECT_FALSE(third.claim(Answer{{}, challenge->proof})) << "a reflection is let in";
  // Another claim under the same proof.
  Answer changed = *connector.answer(*third.challenge(connector.hello()), {.from = 1});
  changed.claim.from = 2;
  EXPECT_FALSE(third.claim(changed));
}

TEST(Handshake, OtherVersionsAreRefused) {
  const Secret secret = Secret::random();
  Hello hello = Connector(secret).hello();
  ASSERT_TRUE(Acceptor(secret).challenge(hello));
  ++hello.version.protocol;
  EXPECT_FALSE(Acceptor(secret).challenge(hello));
  EXPECT_TRUE(Acceptor::is_hello(hello));
  hello = Connector(secret).hello();
  hello.version.library[0] = '9';
  EXPECT_FALSE(Acceptor(secret).challenge(hello));
  hello = Connector(secret).hello();
  hello.magic[0] = 'T';
  EXPECT_FALSE(Acceptor(secret).challenge(hello));
  EXPECT_FALSE(Acceptor::is_hello(hello));
}

Version another_version() {
  Version version = Version::own();
  version.protocol = 77;
  version.library = {'8', '.', '1', '\x1b'};
  return version;
}
constexpr const char* kAnotherVersion = "tinyshard 8.1? (protocol 77)";

// A connector of another version hears of which one the other side is, and where, before the end;
// the other side's line names both, too.
TEST(Handshake, AConnectorOfAnotherVersionIsToldWhy) {
  const Secret secret = Secret::random();
  std::string address;
  ::testing::internal::CaptureStderr();
  {
    const Gate gate("127.0.0.1:0", secret,
                    {.rank = 2,
                     .judge = [](const Claim&) { return Verdict::Welcome; },
                     .admit = [](Socket, const Claim&) { ADD_FAILURE() << "it got in"; }});
    address = gate.address();
    const Socket socket = connect_to(address, in(seconds(5)));
    Hello hello = Connector(secret, 5).hello();
    hello.version = another_version();
    write_all(socket, bytes_of(hello), in(seconds(5)));
    OtherVersion told{};
    read_all(socket, room_of(told), in(seconds(5)));
    EXPECT_EQ(told.version, Version::own());
    EXPECT_EQ(told.who(), "rank 2 on " + own_host_name());
    EXPECT_TRUE(is_closed(socket));
    EXPECT_EQ(gate.refused(), 1u);
  }
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(line.find(address + " refuses rank 5 at 127.0.0.1:"), std::string::npos) << line;
  EXPECT_NE(line.find(std::string(kAnotherVersion) + ": it is another version than rank 2 on " +
                      own_host_name() + ", " + Version::own().text()),
            std::string::npos)
      << line;
}

// And this version, where another one listens.
TEST(Handshake, AnAcceptorOfAnotherVersionIsNamed) {
  const Secret secret = Secret::random();
  const Socket listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  ASSERT_EQ(bind(listening.fd(), reinterpret_cast<sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listening.fd(), 4), 0);
  ASSERT_EQ(getsockname(listening.fd(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  std::thread other([&] {
    const Socket connection(accept(listening.fd(), nullptr, nullptr));
    Hello hello{};
    read_all(connection, room_of(hello), in(seconds(5)));
    EXPECT_EQ(hello.rank, 3);
    EXPECT_EQ(hello.version, Version::own());
    OtherVersion told = Acceptor::other_version(-1, "node07");
    told.version = another_version();
    write_all(connection, bytes_of(told), in(seconds(5)));
  });
  const auto begun = std::chrono::steady_clock::now();
  try {
    connect_store("127.0.0.1:" + std::to_string(ntohs(at.sin_port)), secret, 0, 3, in(seconds(10)));
    ADD_FAILURE() << "it is connected";
  } catch (const StoreError& error) {
    EXPECT_NE(std::string(error.what())
                  .find("a store on node07 runs " + std::string(kAnotherVersion) +
                        ", and rank 3 on " + own_host_name() + " runs " + Version::own().text()),
              std::string::npos)
        << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(5)) << "it is asked again in vain";
  other.join();
}

TEST(Secret, TextsAndFiles) {
  const Secret secret = Secret::random();
  EXPECT_EQ(Secret::parse(" " + secret.text() + "\n", "x").text(), secret.text());
  for (const std::string& bad :
       {std::string(), std::string("0f"), secret.text() + "0", "g" + secret.text().substr(1)})
    EXPECT_THROW(Secret::parse(bad, "TS_JOB_KEY"), UserError);
  EXPECT_NE(secret.for_job("a").text(), secret.for_job("b").text());

  const std::string path = ::testing::TempDir() + "/tinyshard_tcp_test.key";
  std::ofstream(path) << secret.text() << '\n';
  const auto lookup = [&](const char* name) {
    return std::string(name) == "TS_JOB_KEY_FILE" ? path.c_str() : nullptr;
  };
  chmod(path.c_str(), 0644);
  EXPECT_THROW(job_secret("j", lookup), UserError) << "others can read it";
  chmod(path.c_str(), 0600);
  EXPECT_EQ(job_secret("j", lookup).text(), secret.for_job("j").text());
  std::remove(path.c_str());
}

TEST(Secret, TheUsersOwnKeyIsMadeOnce) {
  const std::string home = ::testing::TempDir() + "/tinyshard_tcp_test_home";
  const auto lookup = [&](const char* name) {
    return std::string(name) == "HOME" ? home.c_str() : nullptr;
  };
  std::vector<std::string> texts(8);
  std::vector<std::thread> threads;
  for (std::string& text : texts)
    threads.emplace_back([&] { text = job_secret("j", lookup).text(); });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  struct stat about{};
  const std::string path = home + "/.config/tinyshard/job.key";
  ASSERT_EQ(stat(path.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600u);
  std::remove(path.c_str());
}

TEST(Store, ValuesAreSetOnceAndSeenByAll) {
  const Secret secret = Secret::random();
  StoreServer server("127.0.0.1:0", secret, 7);
  const auto a = connect_store(server.address(), secret, 7, 0, in(seconds(10)));
  const auto b = connect_store(server.address(), secret, 7, 1, in(seconds(10)));
  std::string value;
  EXPECT_FALSE(a->get("address/0/1", value));
  b->set("address/0/1", "here");
  EXPECT_TRUE(a->get("address/0/1", value));
  EXPECT_EQ(value, "here");
  b->set("address/0/1", "here");
  EXPECT_THROW(a->set("address/0/1", "there"), StoreError) << "a rank is there twice";
  server.give_up(2, "rank 2 has ended");
  try {
    while (!a->get("address/0/2", value)) std::this_thread::sleep_for(milliseconds(1));
    ADD_FAILURE() << "rank 2 has a value";
  } catch (const StoreError& error) {
    EXPECT_EQ(error.culprit, 2);
    EXPECT_STREQ(error.what(), "rank 2 has ended");
  }
}

TEST(Store, OtherKeysAndEpochsAreRefused) {
  const Secret secret = Secret::random();
  StoreServer server("127.0.0.1:0", secret, 7);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_THROW(connect_store(server.address(), Secret::random(), 7, 0, in(seconds(10))),
               StoreError);
  EXPECT_THROW(connect_store(server.address(), secret, 6, 0, in(seconds(10))), StoreError);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(5)) << "tried again in vain";
  EXPECT_GE(server.refused(), 1u);
}

TEST(Store, RequestsBeyondTheLimitsEndTheConnection) {
  const Secret secret = Secret::random();
  StoreServer server("127.0.0.1:0", secret, 0);
  for (const std::array<uint32_t, 3>& request :
       {std::array<uint32_t, 3>{1, 1u << 30, 1}, {1, 1, 1u << 30}, {9, 1, 1}}) {
    Socket socket = connect_to(server.address(), in(seconds(5)));
    introduce(socket, secret, {.purpose = Purpose::Store}, in(seconds(5)));
    write_all(socket, bytes_of(request), in(seconds(5)));
    write_all(socket, bytes_of(std::array<char, 2>{'k', 'v'}), in(seconds(5)));
    EXPECT_TRUE(is_closed(socket));
  }
}

// Its host or its process may be stopped: who asks says how long it is waited for.
TEST(Store, OneThatDoesNotAnswerIsGivenUpInTime) {
  const Secret secret = Secret::random();
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t server = fork();
  if (server == 0) {
    const StoreServer store("127.0.0.1:0", secret, 0);
    const std::string address = store.address();
    if (write(ends[1], address.data(), address.size()) < 0) _exit(1);
    for (;;) pause();
  }
  std::array<char, 64> address{};
  ASSERT_GT(read(ends[0], address.data(), address.size() - 1), 0);
  const auto store = connect_store(address.data(), secret, 0, 0, in(seconds(5)), milliseconds(200));
  store->set("k/0", "v");
  kill(server, SIGSTOP);
  waitpid(server, nullptr, WUNTRACED);
  const Deadline begun = std::chrono::steady_clock::now();
  std::string value;
  EXPECT_THROW(store->get("k/0", value), StoreError);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, seconds(3));
  kill(server, SIGKILL);
  waitpid(server, nullptr, 0);
  close(ends[0]);
  close(ends[1]);
}

TEST(Store, InAFolder) {
  const std::string path = ::testing::TempDir() + "/tinyshard_tcp_test_store";
  {
    const auto first = open_file_store({path, "job"}, FolderRole::Leads, true),
               second = open_file_store({path, "job"}, FolderRole::Joins, false);
    second->set("address/0/1", "here");
    std::string value;
    EXPECT_TRUE(first->get("address/0/1", value));
    EXPECT_EQ(value, "here");
    EXPECT_FALSE(first->get("address/0/2", value));
    EXPECT_THROW(first->set("address/0/1", "there"), StoreError);
  }
  struct stat about{};
  EXPECT_NE(stat(path.c_str(), &about), 0) << "something was left behind";
  mkdir(path.c_str(), 0700);
  chmod(path.c_str(), 0777);
  EXPECT_THROW(open_file_store({path}, FolderRole::Leads, true), UserError)
      << "others may write to it";
  rmdir(path.c_str());
}

// A process that does its part, and is killed where it does not end itself. Returns how it ended.
template <class Part>
int end_of_process(Part&& part) {
  const pid_t child = fork();
  if (child == 0) {
    part();
    kill(getpid(), SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

size_t files_in(const std::string& path) {
  return size_t(std::distance(std::filesystem::directory_iterator(path),
                              std::filesystem::directory_iterator()));
}

TEST(Store, FormerJobsInAFolderTouchNoLaterOne) {
  for (const std::string name : {"", "job"}) {
    SCOPED_TRACE(name);
    const std::string path = ::testing::TempDir() + "/tinyshard_former_" + std::to_string(getpid());
    const JobFolder folder{path, name};
    // Killed while it met, and while it agreed to go on without a rank.
    end_of_process([&] {
      const auto meeting = open_file_store(folder, FolderRole::Leads, true);
      meeting->set("address/0/1", "old");
      kill(getpid(), SIGKILL);
    });
    end_of_process([&] {
      const auto meeting = open_file_store(folder, FolderRole::Leads, true);
      meeting->set("address/0/0", "old");
      open_file_store(folder, FolderRole::Reforms, false)->set("formation/1/members", "0,2");
      kill(getpid(), SIGKILL);
    });
    std::ofstream(path + "/." +
                  std::filesystem::directory_iterator(path)->path().filename().native())
        << "a draft";
    EXPECT_GT(files_in(path), 2u);
    // A rank that comes before rank 0 takes nothing of theirs.
    const int early = end_of_process([&] {
      const auto joins = open_file_store(folder, FolderRole::Joins, false);
      std::string value;
      if (joins->get("address/0/1", value) || joins->get("address/0/0", value)) _exit(1);
      joins->set("address/0/1", "early");
      _exit(joins->get("address/0/1", value) ? 2 : 0);
    });
    EXPECT_EQ(early, 0);
    const auto store = open_file_store(folder, FolderRole::Leads, true);
    std::string value;
    EXPECT_FALSE(store->get("address/0/1", value)) << value;
    EXPECT_FALSE(store->get("formation/1/members", value)) << value;
    EXPECT_NO_THROW(store->set("address/0/1", "new"));
    EXPECT_EQ(files_in(path), 2u) << "what is old stays";
    // A process that comes now finds this one's.
    const int late = end_of_process([&] {
      std::string seen;
      const auto joins = open_file_store(folder, FolderRole::Joins, false);
      _exit(joins->get("address/0/1", seen) && seen == "new" ? 0 : 1);
    });
    EXPECT_EQ(late, 0);
    std::filesystem::remove_all(path);
  }
}

// While a rank asks again and again, strangers come in hundreds.
TEST(Gate, GarbageIsDroppedWithoutHarm) {
  const Secret secret = Secret::random();
  StoreServer server("127.0.0.1:0", secret, 0);
  const auto store = connect_store(server.address(), secret, 0, 0, in(seconds(10)));
  store->set("k/0", "v");
  std::vector<Socket> silent;
  uint64_t seed = 1;
  for (int i = 0; i < 500; ++i) {
    Socket socket = connect_to(server.address(), in(seconds(10)));
    std::array<std::byte, 200> noise;
    for (std::byte& b : noise) b = std::byte((seed = seed * 6364136223846793005u + 1) >> 56);
    try {
      if (i % 5 == 1) write_all(socket, noise, in(seconds(5)));
      if (i % 5 == 2) write_all(socket, std::span(noise).first(10), in(seconds(5)));
      if (i % 5 == 3) {  // the first half of a proper handshake
        write_all(socket, bytes_of(Connector(secret).hello()), in(seconds(5)));
      }
    } catch (const SocketError&) {  // NOLINT(bugprone-empty-catch)
      // It was turned away already.
    }
    if (i % 5 != 4) silent.push_back(std::move(socket));
    std::string value;
    if (i % 50 == 0) {
      EXPECT_TRUE(store->get("k/0", value));
    }
  }
  // Another rank comes in through all of them, within its deadline.
  const auto late = connect_store(server.address(), secret, 0, 1, in(seconds(20)));
  std::string value;
  EXPECT_TRUE(late->get("k/0", value));
  EXPECT_GT(server.refused(), 300u);
  for (const Socket& socket : silent) EXPECT_TRUE(is_closed(socket));
}

// A rank that inherits the launcher's socket keeps its port open after the launcher has ended.
TEST(Gate, NoSocketIsInheritedByWhatIsStarted) {
  const Secret secret = Secret::random();
  const StoreServer server("127.0.0.1:0", secret, 0);
  const auto store = connect_store(server.address(), secret, 0, 0, in(seconds(10)));
  store->set("k/0", "v");
  // As the system tells of them: asking the descriptors themselves would race with the server that closes some.
  int sockets = 0;
  for (int fd = STDERR_FILENO + 1; fd < 256; ++fd) {
    std::error_code gone;
    const auto what = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), gone);
    if (gone || !what.string().starts_with("socket:")) continue;
    std::ifstream about("/proc/self/fdinfo/" + std::to_string(fd));
    std::string key, flags;
    while (about >> key && key != "flags:") std::getline(about, flags);
    if (!(about >> flags)) continue;
    ++sockets;
    EXPECT_EQ(std::stol(flags, nullptr, 8) & O_CLOEXEC, O_CLOEXEC) << fd;
  }
  EXPECT_GE(sockets, 3) << "a listener and both ends of a connection";
}

TEST(Gate, RefusalsOfAReasonAreALineAMinute) {
  std::vector<std::string> lines;
  Refusals refusals([&](std::string_view line) { lines.emplace_back(line); });
  const Refusals::Clock::time_point begun;
  for (int i = 0; i < 1000; ++i) refusals.note("here", "a", "no key", begun + milliseconds(i));
  refusals.note("here", "rank 3", "there already", begun);
  refusals.note("here", "b", "no key", begun + seconds(61));
  refusals.note("here", "c", "no key", begun + seconds(62));
  refusals.close("here");
  EXPECT_EQ(lines,
            (std::vector<std::string>{
                "here refuses a: no key", "here refuses rank 3: there already",
                "here refuses b: no key; 999 more before it", "here refused 1 more: no key"}));
}

LaunchEnvironment rank_of(int rank, int size) {
  LaunchEnvironment launch;
  launch.launcher = Launcher::Own;
  launch.rank = launch.local_rank = rank;
  launch.size = launch.local_size = size;
  return launch;
}

// By itself, or encrypted where TS_SECURE says so.
Secret key_of_test() {
  Secret secret = Secret::random();
  secret.set_encrypts(wants_encryption());
  return secret;
}

struct MeetingOf {
  explicit MeetingOf(int ranks) : size(ranks) {}
  std::unique_ptr<Store> store(int rank) const {
    return connect_store(server.address(), secret, 0, rank, in(seconds(10)));
  }
  std::unique_ptr<Channel> join(int rank, std::chrono::nanoseconds timeout = seconds(20)) const {
    return meet_by_tcp(rank_of(rank, size), secret, *store(rank), 0, share_memory, timeout);
  }
  int size;
  bool share_memory = true;
  Secret secret = key_of_test();
  StoreServer server{"127.0.0.1:0", secret, 0};
};

TEST(Mesh, ARankThatDoesNotComeIsNamed) {
  const MeetingOf job(2);
  try {
    job.join(0, milliseconds(300));
    ADD_FAILURE() << "rank 1 came";
  } catch (const CommError& error) {
    EXPECT_EQ(error.info().peer, 1) << error.what();
    EXPECT_NE(std::string(error.what()).find("did not come"), std::string::npos) << error.what();
  }
}

// If the store is a folder, only the ranks can find that one has another version.
TEST(Mesh, ARankOfAnotherVersionIsNamed) {
  const Secret secret = Secret::random();
  const std::string path = ::testing::TempDir() + "/tinyshard_tcp_test_versions";
  const auto store = open_file_store({path}, FolderRole::Leads, true);
  const Version other = another_version();
  std::string card(reinterpret_cast<const char*>(&other), sizeof(other));
  store->set("address/0/1", card + "whatever it has to say");
  try {
    meet_by_tcp(rank_of(0, 2), secret, *store, 0, true, seconds(10));
    ADD_FAILURE() << "they met";
  } catch (const CommError& error) {
    EXPECT_EQ(error.info().peer, 1);
    EXPECT_NE(std::string(error.what())
                  .find("rank 1 runs " + std::string(kAnotherVersion) + ", and rank 0 on " +
                        own_host_name() + " runs " + Version::own().text()),
              std::string::npos)
        << error.what();
  }
}

// The verdict on a rank was lost on its way, and the rank comes again.
TEST(Mesh, ARankMayAskAgainForItsVerdict) {
  const MeetingOf job(2);
  const auto store = job.store(1);
  std::thread first([&] { EXPECT_THROW(job.join(0, seconds(3)), CommError); });
  std::string card;
  for (const Deadline end = in(seconds(10)); !store->get("address/0/0", card);)
    ASSERT_LT(std::chrono::steady_clock::now(), end);
  const std::string address = card.substr(sizeof(Version)).c_str();
  Claim claim{.purpose = Purpose::Stream, .from = 1, .to = 0, .ranks = 2, .meeting = 0};
  fill_random(claim.who);
  for (claim.attempt = 1; claim.attempt <= 3; ++claim.attempt) {
    Socket socket = connect_to(address, in(seconds(5)));
    EXPECT_NO_THROW(introduce(socket, job.secret, claim, in(seconds(5)))) << claim.attempt;
  }
  // Another process of the same number is none that asks again.
  Claim second = claim;
  fill_random(second.who);
  Socket socket = connect_to(address, in(seconds(5)));
  EXPECT_THROW(introduce(socket, job.secret, second, in(seconds(5))), SocketError);
  EXPECT_THROW(job.join(1, seconds(2)), CommError);
  first.join();
}

TEST(Mesh, JobsOfDifferentSizesSayBoth) {
  const MeetingOf job(2);
  std::string told;
  std::thread zero([&] {
    try {
      meet_by_tcp(rank_of(0, 2), job.secret, *job.store(0), 0, true, seconds(10));
    } catch (const CommError& error) {
      told = error.what();
    }
  });
  std::string told_one;
  try {
    meet_by_tcp(rank_of(1, 3), job.secret, *job.store(1), 0, true, seconds(10));
  } catch (const CommError& error) {
    told_one = error.what();
  }
  zero.join();
  EXPECT_NE(told_one.find("rank 0 (process "), std::string::npos) << told_one;
  EXPECT_NE(told_one.find("is one of 2, and rank 1 on " + own_host_name() + " one of 3"),
            std::string::npos)
      << told_one;
  EXPECT_NE(told.find("is one of 3, and rank 0 on " + own_host_name() + " one of 2"),
            std::string::npos)
      << told;
}

TEST(Mesh, ASecondProcessOfARankIsToldSo) {
  const MeetingOf job(2);
  job.store(1)->set("address/0/1", std::string(8, 'x'));
  try {
    meet_by_tcp(rank_of(1, 2), job.secret, *job.store(1), 0, true, seconds(5));
    ADD_FAILURE() << "they met";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("has joined this job as rank 1 already"),
              std::string::npos)
        << error.what();
  }
}

TEST(Mesh, ARankThatIsThereTwiceIsRefusedAndDoesNoHarm) {
  const MeetingOf job(2);
  std::unique_ptr<Channel> first;
  std::thread zero([&] { first = job.join(0); });
  const auto one = job.join(1);
  EXPECT_THROW(job.join(1, seconds(2)), CommError);
  zero.join();
  int sent = 7, received = 0;
  const auto out = first->send(1, 3, &sent, sizeof(int));
  const auto got = one->receive(0, 3, &received, sizeof(int));
  for (bool a = false, b = false; !a || !b;) {
    a = a || first->test(out);
    b = b || one->test(got);
  }
  EXPECT_EQ(received, 7);
}

// Rank 0 streams small messages that rank 1 does not ask for, and then sends a large one that it waits
// for: no room for the former keeps the latter from coming, nor news.
TEST(TcpChannel, MessagesWithoutAReceiveHoldNothingUp) {
  for (const bool memory : {true, false}) {
    SCOPED_TRACE(memory);
    MeetingOf job(2);
    job.share_memory = memory;
    std::unique_ptr<Channel> zero;
    std::thread other([&] { zero = job.join(0); });
    const auto one = job.join(1);
    other.join();
    const size_t each = memory ? kEagerBytesInMemory : kEagerBytes;
    const size_t small = 3 * kUnexpectedBytes / 2 / each;
    std::vector<std::byte> large(4 << 20), arrived(large.size()), message(each), got(each);
    for (size_t i = 0; i < large.size(); ++i) large[i] = std::byte(i * 7);
    std::vector<Channel::Transfer> sent;
    for (size_t i = 0; i < small; ++i) {
      message[0] = std::byte(i % 3 == 0 ? 1 : 2);  // of each tag the content says which it is
      sent.push_back(zero->send(1, i % 3 == 0 ? 1 : 2, message.data(), each));
    }
    sent.push_back(zero->send(1, 3, large.data(), large.size()));
    zero->send_notice(1, {.group = 5});
    const auto moves = [&](Channel::Transfer wanted) {
      for (const Deadline end = in(seconds(20)); std::chrono::steady_clock::now() < end;) {
        std::erase_if(sent, [&](Channel::Transfer t) { return zero->test(t); });
        if (one->test(wanted)) return true;
      }
      return false;
    };
    ASSERT_TRUE(moves(one->receive(0, 3, arrived.data(), arrived.size()))) << "it is held up";
    EXPECT_EQ(arrived, large);
    Notice notice;
    for (const Deadline end = in(seconds(5)); !one->next_notice(notice);)
      ASSERT_LT(std::chrono::steady_clock::now(), end) << "there are no news";
    EXPECT_EQ(notice.group, 5u);
    // The second tag first, though most of what waits is of both.
    for (const uint32_t tag : {2u, 1u}) {
      const size_t n = (small + 2) / 3, count = tag == 1 ? n : small - n;
      for (size_t i = 0; i < count; ++i) ASSERT_TRUE(moves(one->receive(0, tag, got.data(), each)));
    }
    while (!sent.empty()) std::erase_if(sent, [&](Channel::Transfer t) { return zero->test(t); });
  }
}

TEST(TcpChannel, HoweverManyMessagesWaitTheirSenderStays) {
  constexpr uint32_t kMany = 100000;
  MeetingOf job(2);
  std::unique_ptr<Channel> zero;
  std::thread other([&] { zero = job.join(0); });
  const auto one = job.join(1);
  other.join();
  std::vector<uint32_t> numbers(kMany), got(kMany);
  std::vector<Channel::Transfer> sent, received;
  for (uint32_t i = 0; i < kMany; ++i) {
    numbers[i] = i;
    sent.push_back(zero->send(1, 1, &numbers[i], sizeof(uint32_t)));
  }
  for (int i = 0; i < 100; ++i) one->peer_state(0);  // reads all that has come
  EXPECT_FALSE(one->peer_state(0).gone) << one->peer_state(0).text;
  for (uint32_t i = 0; i < kMany; ++i)
    received.push_back(one->receive(0, 1, &got[i], sizeof(uint32_t)));
  for (const Deadline end = in(seconds(30)); !sent.empty() || !received.empty();) {
    ASSERT_LT(std::chrono::steady_clock::now(), end);
    std::erase_if(sent, [&](Channel::Transfer t) { return zero->test(t); });
    std::erase_if(received, [&](Channel::Transfer t) { return one->test(t); });
  }
  EXPECT_EQ(got, numbers);
}

// A child that forks and goes on, as a helper that loads data does, keeps no connection open.
TEST(Socket, AChildKeepsNoneOpen) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  Socket own(ends[0]);
  const Socket peer(ends[1]);
  const pid_t child = fork();
  if (child == 0) {
    // Its numbers are taken still: what the child opens gets others, and closing them closes nothing else.
    const int opened = dup(STDERR_FILENO);
    own.reset();
    const bool well = opened != ends[0] && opened != ends[1] && fcntl(opened, F_GETFD) >= 0;
    if (!well) _exit(1);
    for (;;) pause();
  }
  own.reset();
  std::byte byte;
  EXPECT_TRUE(is_closed(peer)) << "the child keeps it open";
  EXPECT_EQ(recv(peer.fd(), &byte, 1, MSG_DONTWAIT), 0);
  EXPECT_EQ(waitpid(child, nullptr, WNOHANG), 0) << "the child has ended";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// Rank 1 of two holds the key and sends what no rank sends.
TEST(TcpChannel, MalformedFramesEndTheConnectionOnly) {
  const std::vector<Frame> malformed = {
      {.kind = Kind::Eager, .tag = 1, .bytes = ~uint64_t{0}},
      {.kind = Kind::Eager, .tag = 1, .bytes = kEagerBytes + 1},
      {.kind = Kind::Eager, .epoch = 1, .tag = 1, .bytes = 1},
      {.kind = Kind::Data, .handle = 0, .bytes = 1},
      {.kind = Kind::Data, .handle = 1u << 31, .bytes = 1},
      {.kind = Kind::Data, .handle = 1, .bytes = 8, .offset = 1u << 20},
      {.kind = Kind::Data, .handle = 1, .bytes = ~uint64_t{0}, .offset = 16},
      {.kind = Kind::Offer, .tag = 1, .bytes = 8},
      {.kind = Kind::News, .bytes = 1u << 30},
      {.kind = Kind::Held, .tag = 1, .bytes = kEagerBytesInMemory + 1},
      {.kind = Kind::Pull, .handle = 0, .offset = 1},
      {.kind = Kind::Credit, .bytes = 1},
      {.kind = static_cast<Kind>(99)}};
  for (size_t i = 0; i < malformed.size(); ++i) {
    SCOPED_TRACE(i);
    MeetingOf job(2);
    job.share_memory = i % 2 == 0;
    std::unique_ptr<Channel> honest;
    std::thread zero([&] { honest = job.join(0); });
    const auto store = job.store(1);
    std::vector<Peer> peers = form_mesh(rank_of(1, 2), job.secret, *store, 0,
                                        {.share_memory = job.share_memory}, in(seconds(20)));
    EXPECT_EQ(peers[0].memory != nullptr, job.share_memory);
    zero.join();
    std::vector<std::byte> room(1 << 20, std::byte{5});
    int small = 5;
    const auto a = honest->receive(1, 2, &small, sizeof(small));     // handle 0
    const auto b = honest->receive(1, 2, room.data(), room.size());  // handle 1, announced
    if (job.share_memory) {
      const iovec part{const_cast<Frame*>(&malformed[i]), sizeof(Frame)};
      EXPECT_EQ(peers[0].memory->write({&part, 1}), ssize_t(sizeof(Frame)));
    } else {
      write_all(peers[0].streams[0], bytes_of(malformed[i]), in(seconds(5)));
    }
    const auto end = in(seconds(5));
    while (!honest->peer_state(1).gone && std::chrono::steady_clock::now() < end)
      honest->idle(milliseconds(1));
    EXPECT_TRUE(honest->peer_state(1).gone);
    EXPECT_NE(honest->peer_state(1).text.find("no message of this job"), std::string::npos);
    EXPECT_FALSE(honest->test(a));
    EXPECT_FALSE(honest->test(b));
    EXPECT_EQ(small, 5);
    EXPECT_EQ(room.back(), std::byte{5});
    EXPECT_TRUE(honest->abandon(a));
    EXPECT_TRUE(honest->abandon(b));
  }
}

TEST(TcpChannel, WhatASenderWroteLastArrivesThoughItHasLeft) {
  for (const bool share_memory : {false, true}) {
    MeetingOf job(2);
    job.share_memory = share_memory;
    std::unique_ptr<Channel> one;
    std::thread other([&] { one = job.join(1); });
    auto zero = job.join(0);
    other.join();
    // Something that nobody reads waits at the one that leaves.
    int ignored = 1, sent = 42, received = 0;
    one->send(0, 1, &ignored, sizeof(int));
    for (int i = 0; i < 3000; ++i) zero->send(1, 4, &sent, sizeof(int));
    std::thread leaving([&] { zero.reset(); });
    for (int i = 0; i < 3000; ++i) {
      received = 0;
      const auto got = one->receive(0, 4, &received, sizeof(int));
      const auto end = in(seconds(10));
      while (!one->test(got)) ASSERT_LT(std::chrono::steady_clock::now(), end);
      ASSERT_EQ(received, 42);
    }
    leaving.join();
    const auto end = in(seconds(10));
    while (!one->peer_state(0).left && std::chrono::steady_clock::now() < end) {
    }
    EXPECT_TRUE(one->peer_state(0).left);
  }
}

// The one that fails has filled the way to the other one, which has no turn for a while.
TEST(TcpChannel, LastWordsWaitForOneThatHasNoTurn) {
  for (const bool share_memory : {false, true}) {
    SCOPED_TRACE(share_memory);
    MeetingOf job(2);
    job.share_memory = share_memory;
    std::unique_ptr<Channel> one;
    std::thread other([&] { one = job.join(1); });
    const auto zero = job.join(0);
    other.join();
    const std::vector<std::byte> message(share_memory ? kEagerBytesInMemory : kEagerBytes);
    std::vector<Channel::Transfer> sent;
    for (size_t bytes = 0; bytes < 60u << 20; bytes += message.size())
      sent.push_back(one->send(0, 1, message.data(), message.size()));
    std::erase_if(sent, [&](Channel::Transfer t) { return one->test(t); });
    EXPECT_FALSE(sent.empty()) << "the way is not filled";
    for (const Channel::Transfer transfer : sent) one->abandon(transfer);
    one->send_notice(0, {.group = 7});
    std::thread leaving([&] { one.reset(); });
    std::this_thread::sleep_for(milliseconds(600));
    Notice notice;
    bool heard = false;
    for (const Deadline end = in(seconds(5)); !heard && std::chrono::steady_clock::now() < end;)
      heard = zero->next_notice(notice);
    EXPECT_TRUE(heard);
    EXPECT_EQ(notice.group, 7u);
    leaving.join();
  }
}

// Messages of all sizes, many under way, through rings that are smaller than what is sent.
TEST(TcpChannel, BytesArriveAsTheyWereSent) {
  for (const bool share_memory : {false, true}) {
    MeetingOf job(2);
    job.share_memory = share_memory;
    std::unique_ptr<Channel> ends[2];
    std::thread other([&] { ends[1] = job.join(1); });
    ends[0] = job.join(0);
    other.join();
    const std::vector<size_t> sizes = {
        0, 1, 31, kEagerBytes, kEagerBytes + 1, 1 << 20, (1 << 20) + 7, 5 << 20, 100, 3 << 20};
    const auto exchange = [&](int rank) {
      Channel& channel = *ends[rank];
      std::vector<std::vector<uint8_t>> out, in_;
      std::vector<Channel::Transfer> under_way;
      for (size_t i = 0; i < sizes.size(); ++i) {
        out.emplace_back(sizes[i]);
        in_.emplace_back(sizes[i]);
        for (size_t b = 0; b < sizes[i]; ++b)
          out[i][b] = uint8_t(b * 7 + b / 251 + i + size_t(rank));
      }
      // Rank 1 posts its receives first, rank 0 last.
      for (int turn = 0; turn < 2; ++turn) {
        for (size_t i = 0; i < sizes.size(); ++i) {
          under_way.push_back(
              (turn == 0) == (rank == 0)
                  ? channel.send(1 - rank, uint32_t(i % 3), out[i].data(), sizes[i])
                  : channel.receive(1 - rank, uint32_t(i % 3), in_[i].data(), sizes[i]));
        }
      }
      const auto end = in(seconds(30));
      while (!under_way.empty() && std::chrono::steady_clock::now() < end)
        std::erase_if(under_way, [&](Channel::Transfer t) { return channel.test(t); });
      EXPECT_TRUE(under_way.empty());
      for (size_t i = 0; i < sizes.size(); ++i) {
        for (size_t b = 0; b < sizes[i]; ++b) {
          ASSERT_EQ(in_[i][b], uint8_t(b * 7 + b / 251 + i + size_t(1 - rank))) << i << " at " << b;
        }
      }
    };
    std::thread one([&] { exchange(1); });
    exchange(0);
    one.join();
  }
}

}  // namespace
}  // namespace tinyshard::test
