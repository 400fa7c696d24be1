// Example, 3 ranks: each opens a gate, sets "address/0/<rank>" in the store and asks for those of
// the others. Rank 2 connects to 0 and 1, rank 1 to 0. When rank 0 has been connected to by 1 and 2
// it has met all; it waits until 1 and 2 have said so, too ("met/0/1", "met/0/2"), as it may be the
// one that holds the store.
#include "transport/tcp/mesh.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/hosts.h"
#include "launch/job_processes.h"
#include "transport/tcp/gate.h"
#include "transport/tcp/shared_pipe.h"
#include "transport/text_field.h"

namespace tinyshard::tcp {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr uint32_t kMostStreams = 16;
constexpr milliseconds kShortestPause{1}, kLongestPause{50}, kLookEvery{100};
constexpr milliseconds kOthersTurn{500};

// A rank tells this of itself. Plain bytes in the store, where only holders of the key write; yet
// nothing in it is trusted to be a text that ends.
struct RankCard {
  Version version;                    // comes first in all versions
  std::array<char, 64> address = {};  // "10.0.0.1:40123"
  std::array<char, 64> host = {};
  ProcessAddress process;
  int32_t ranks = 0;  // of the job, as this rank was told
  uint32_t encrypts = 0;
};

class Meeting {
 public:
  Meeting(const LaunchEnvironment& launch, const Secret& secret, Store& store, uint64_t number,
          const MeshOptions& options, Deadline deadline)
      : launch_(launch),
        secret_(secret),
        store_(store),
        number_(number),
        options_(options),
        deadline_(deadline),
        arrived_(size_t(launch.size)),
        cards_(size_t(launch.size)),
        come_(size_t(launch.size)) {
    fill_random(who_);
  }

  std::vector<Peer> run() {
    try {
      return meet();
    } catch (const CommError& error) {
      if (options_.store_tells_failures) tell_failure(error);
      throw;
    }
  }

 private:
  std::vector<Peer> meet() {
    const std::string bind =
        launch_.meeting.bind.empty() ? store_.local_address() : launch_.meeting.bind;
    Gate gate(join_address(bind, 0), secret_,
              {.rank = launch_.rank,
               .judge = [this](const Claim& claim) { return judge(claim); },
               .admit =
                   [this](Socket socket, const Claim& claim) {
                     const std::lock_guard lock(mutex_);
                     if (taken_.at({claim.from, claim.stream}).attempt != claim.attempt) return;
                     arrived_[size_t(claim.from)][claim.stream] = std::move(socket);
                     changed_.notify_all();
                   }});
    gate_ = &gate;
    publish(gate.address());
    collect();
    for (int rank = 0; rank < launch_.rank; ++rank) connect(rank);
    await_higher();
    store_.set(key("met", launch_.rank), "1");
    if (launch_.rank == 0) await_all_met();
    std::vector<Peer> all = peers();
    if (options_.share_memory) share_memory(all);
    return all;
  }

  std::string key(const char* what, int rank) const {
    return fmt::format("{}/{}/{}", what, number_, rank);
  }

  // On the gate's thread.
  Verdict judge(const Claim& claim) {
    if (claim.purpose != Purpose::Stream || claim.to != launch_.rank) return Verdict::Unexpected;
    if (claim.epoch != launch_.wire_epoch()) return Verdict::OtherEpoch;
    if (claim.ranks != uint32_t(launch_.size) || claim.meeting != number_) return Verdict::OtherJob;
    if (claim.from <= launch_.rank || claim.from >= launch_.size || claim.stream >= kMostStreams)
      return Verdict::Unexpected;
    const std::lock_guard lock(mutex_);
    const auto [taken, is_first] = taken_.try_emplace({claim.from, claim.stream}, claim);
    if (!is_first && taken->second.who != claim.who) return Verdict::Duplicate;
    taken->second.attempt = std::max(taken->second.attempt, claim.attempt);
    return Verdict::Welcome;
  }

  void publish(const std::string& address) {
    RankCard& card = cards_[size_t(launch_.rank)];
    card.version = Version::own();
    put_text(card.address, address);
    put_text(card.host, own_host_name());
    card.process = ProcessAddress::own();
    card.ranks = launch_.size;
    card.encrypts = secret_.encrypts() ? 1 : 0;
    come_[size_t(launch_.rank)] = true;
    const std::string own(reinterpret_cast<const char*>(&card), sizeof(card));
    try {
      store_.set(key("address", launch_.rank), own);
    } catch (const StoreError&) {
      std::string other;
      if (!store_.get(key("address", launch_.rank), other) || other == own) throw;
      fail_as_second(other);
    }
  }

  // Another process said before that it is this rank.
  [[noreturn]] void fail_as_second(const std::string& other) const {
    std::string who = "another process";
    if (other.size() == sizeof(RankCard)) {
      RankCard card;
      std::memcpy(&card, other.data(), sizeof(card));
      who = fmt::format("process {} on {}", card.process.pid, text_in(card.host));
    }
    fail(-1,
         fmt::format("{} has joined this job as rank {} already, and so has this process: was it "
                     "started by a rank, with its environment?",
                     who, launch_.rank));
  }

  void collect() {
    await("the other ranks did not come", [&] {
      bool all = true;
      for (int rank = 0; rank < launch_.size; ++rank) {
        std::string text;
        if (come_[size_t(rank)]) continue;
        if (!store_.get(key("address", rank), text)) {
          all = false;
          continue;
        }
        check_version(rank, text);
        std::memcpy(&cards_[size_t(rank)], text.data(), sizeof(RankCard));
        check_size(rank);
        check_encryption(rank);
        come_[size_t(rank)] = true;
      }
      return all;
    });
    for (const RankCard& card : cards_) watches_.emplace_back(card.process);
    // Each process was there: one that ends before it is watched is missed in the process table.
    if (launch_.local_size >= launch_.size) seen_.assign(size_t(launch_.size), true);
  }

  // Two ranks that do not fit each find the other's card, and each has to say so. If the first one
  // to find it ended at once, the store might go with it before the other has looked: so it waits
  // first.
  [[noreturn]] void fail_as_both_do(int rank, const std::string& why) const {
    std::this_thread::sleep_for(std::min<Clock::duration>(kOthersTurn, deadline_ - Clock::now()));
    fail(rank, why);
  }

  // Ranks that meet in a shared folder find out here; all others were told by the store.
  void check_version(int rank, std::string_view card) const {
    Version theirs;
    std::memcpy(&theirs, card.data(), std::min(card.size(), sizeof(theirs)));
    if (theirs == Version::own() && card.size() == sizeof(RankCard)) return;
    fail_as_both_do(
        rank,
        fmt::format("rank {} runs {}, and rank {} on {} runs {}: all of a job have to run the "
                    "same version",
                    rank, theirs.text(), launch_.rank, own_host_name(), Version::own().text()));
  }

  void check_size(int rank) const {
    const RankCard& card = cards_[size_t(rank)];
    if (card.ranks == launch_.size) return;
    fail_as_both_do(
        rank,
        fmt::format("the ranks were told of jobs of different sizes: rank {} (process {} on {}) "
                    "is one of {}, and rank {} on {} one of {}",
                    rank, card.process.pid, text_in(card.host), card.ranks, launch_.rank,
                    own_host_name(), launch_.size));
  }

  void check_encryption(int rank) const {
    if ((cards_[size_t(rank)].encrypts != 0) == secret_.encrypts()) return;
    fail_as_both_do(rank, other_encryption(secret_.encrypts(), rank_or_store(launch_.rank),
                                           rank_or_store(rank)));
  }

  bool near(int rank) const {
    return cards_[size_t(rank)].process.host == cards_[size_t(launch_.rank)].process.host;
  }
  uint32_t streams(int rank) const {
    return near(rank) ? 1 : uint32_t(std::clamp<int>(options_.far_streams, 1, kMostStreams));
  }

  void connect(int rank) {
    come_[size_t(rank)] = false;
    for (uint32_t stream = 0; stream < streams(rank); ++stream) {
      Claim claim{.purpose = Purpose::Stream,
                  .epoch = launch_.wire_epoch(),
                  .from = launch_.rank,
                  .to = rank,
                  .stream = stream,
                  .ranks = uint32_t(launch_.size),
                  .meeting = number_,
                  .who = who_};
      await(fmt::format("rank {} does not answer", rank), [&] {
        ++claim.attempt;
        try {
          Socket socket = connect_to(std::string(text_in(cards_[size_t(rank)].address)), deadline_);
          introduce(socket, secret_, claim, deadline_);
          const std::lock_guard lock(mutex_);
          arrived_[size_t(rank)][stream] = std::move(socket);
          return true;
        } catch (const SocketError& error) {
          if (error.final) fail(rank, error.what());
          check_lives(rank);
          return false;
        }
      });
    }
    come_[size_t(rank)] = true;
  }

  void await_higher() {
    std::fill(come_.begin() + launch_.rank + 1, come_.end(), false);
    await(fmt::format("not all of {} ranks have connected", launch_.size), [&] {
      for (int rank = launch_.rank + 1; rank < launch_.size; ++rank) {
        {
          const std::lock_guard lock(mutex_);
          const auto& sockets = arrived_[size_t(rank)];
          come_[size_t(rank)] = std::all_of(sockets.begin(), sockets.begin() + streams(rank),
                                            [](const Socket& s) { return bool(s); });
        }
        if (come_[size_t(rank)]) continue;
        check_lives(rank);
        return false;
      }
      return true;
    });
  }

  void await_all_met() {
    std::fill(come_.begin() + 1, come_.end(), false);
    await(fmt::format("not all of {} ranks have met", launch_.size), [&] {
      std::string ignored;
      for (int rank = 1; rank < launch_.size; ++rank) {
        if (come_[size_t(rank)]) continue;
        if (!store_.get(key("met", rank), ignored)) {
          check_lives(rank);
          return false;
        }
        come_[size_t(rank)] = true;
      }
      return true;
    });
  }

  std::vector<Peer> peers() {
    std::vector<Peer> all(arrived_.size());
    for (int rank = 0; rank < launch_.size; ++rank) {
      Peer& peer = all[size_t(rank)];
      peer.process = cards_[size_t(rank)].process;
      peer.host = text_in(cards_[size_t(rank)].host);
      if (rank == launch_.rank) continue;
      for (uint32_t stream = 0; stream < streams(rank); ++stream)
        peer.streams.push_back(std::move(arrived_[size_t(rank)][stream]));
    }
    return all;
  }

  // Three rounds over all peers of this host, so that nobody waits for one that waits for it.
  void share_memory(std::vector<Peer>& all) {
    std::vector<std::pair<int, SharedMemoryOffer>> offers;
    int rank = -1;
    try {
      for (rank = 0; rank < launch_.size; ++rank) {
        Peer& peer = all[size_t(rank)];
        if (rank == launch_.rank || !near(rank)) continue;
        offers.emplace_back(rank, SharedMemoryOffer(peer.streams[0], peer.process, deadline_));
      }
      for (auto& [to, offer] : offers) {
        rank = to;
        offer.answer();
      }
      for (auto& [to, offer] : offers) {
        rank = to;
        all[size_t(to)].memory = offer.accept();
      }
    } catch (const SocketError& error) {
      fail(rank, fmt::format("the job cannot begin; rank {}: {}", rank, error.what()));
    }
  }

  void check_lives(int rank) {
    const PeerState state = watches_[size_t(rank)].state();
    if (state.gone) fail(rank, fmt::format("the job cannot begin; rank {}: {}", rank, state.text));
  }

  void tell_failure(const CommError& error) {
    try {
      store_.set(key("failed", launch_.rank),
                 fmt::format("{} {}", error.info().peer, error.info().detail));
    } catch (const StoreError&) {  // NOLINT(bugprone-empty-catch)
      // The others find out by themselves.
    }
  }

  void check_nobody_failed() {
    for (int rank = 0; rank < launch_.size; ++rank) {
      std::string text;
      if (rank == launch_.rank || !store_.get(key("failed", rank), text)) continue;
      int culprit = rank;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), culprit);
      if (error != std::errc() || culprit < 0 || culprit >= launch_.size) culprit = rank;
      fail(culprit, text.substr(std::min(size_t(end - text.data()) + 1, text.size())));
    }
  }

  // Repeats `done` until it is true. CommError at the deadline, or when a rank that was seen in the
  // process table is there no more.
  template <class Done>
  void await(const std::string& what, Done&& done) {
    milliseconds pause = kShortestPause;
    Deadline next_look = Clock::now() + kLookEvery;
    while (!done()) {
      const Deadline now = Clock::now();
      const bool over = now >= deadline_;
      if (over || now >= next_look) {
        next_look = now + kLookEvery;
        int culprit = -1;
        const bool lost = look();
        if (options_.store_tells_failures) check_nobody_failed();
        if (options_.check_peers) options_.check_peers();
        if (gate_->is_short_of_files())
          fail(-1,
               "this process may open no more descriptors, and connections of other ranks wait: "
               "raise the limit (ulimit -n)");
        if (over || lost) {
          const std::string missing = missing_ranks(processes_, launch_.rank, expected_, &culprit);
          if (culprit < 0) culprit = int(std::ranges::find(come_, false) - come_.begin());
          if (culprit == launch_.size) culprit = -1;
          fail(culprit,
               (over ? what : "the job cannot begin") + (missing.empty() ? "" : "; " + missing));
        }
      }
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  // Looks into the process table of this host. True when a rank that has not come was there, and is
  // not at two looks in a row: one that becomes another program has no environment for a moment.
  bool look() {
    processes_ = job_processes();
    for (JobProcess& process : processes_) process.rank = launch_.rank_now(process.rank);
    std::erase_if(processes_, [](const JobProcess& process) { return process.rank < 0; });
    expected_.resize(come_.size(), launch_.local_size == launch_.size);
    missed_.resize(come_.size());
    seen_.resize(come_.size());
    if (processes_.empty()) return false;  // this host shows none, and says nothing of any
    for (int& looks : missed_) ++looks;
    for (JobProcess& process : processes_) {
      if (process.rank < 0 || process.rank >= launch_.size) continue;
      const size_t rank = size_t(process.rank);
      process.joining = come_[rank];
      expected_[rank] = true;
      seen_[rank] = true;
      missed_[rank] = 0;
    }
    bool lost = false;
    for (size_t rank = 0; rank < come_.size(); ++rank) {
      if (come_[rank]) expected_[rank] = false;
      lost = lost || (!come_[rank] && seen_[rank] && missed_[rank] > 1);
    }
    return lost;
  }

  [[noreturn]] void fail(int culprit, const std::string& detail) const {
    throw CommError({.rank = launch_.rank,
                     .peer = culprit,
                     .operation = "connect",
                     .elapsed_s = std::chrono::duration<double>(Clock::now() - begun_).count(),
                     .detail = detail});
  }

  const LaunchEnvironment& launch_;
  const Secret& secret_;
  Store& store_;
  const Gate* gate_ = nullptr;  // while they meet
  const uint64_t number_;
  const MeshOptions& options_;
  const Deadline begun_ = Clock::now(), deadline_;

  std::mutex mutex_;  // of what the gate's thread shares: the two below
  std::condition_variable changed_;
  std::vector<std::array<Socket, kMostStreams>> arrived_;  // by rank and stream
  std::map<std::pair<int, uint32_t>, Claim> taken_;        // the last of each

  std::array<std::byte, 16> who_ = {};
  std::vector<RankCard> cards_;
  std::vector<bool> come_;  // by rank, of the phase at hand
  std::vector<ProcessWatch> watches_;
  std::vector<JobProcess> processes_;
  std::vector<bool> expected_, seen_;
  std::vector<int> missed_;
};

}  // namespace

uint64_t next_meeting(uint32_t epoch, uint32_t kind) {
  static std::mutex mutex;
  static auto& meetings = *new std::map<std::pair<uint32_t, uint32_t>, uint32_t>;
  const std::lock_guard lock(mutex);
  return uint64_t{kind} << 32 | meetings[{epoch, kind}]++;
}

std::vector<Peer> form_mesh(const LaunchEnvironment& launch, const Secret& secret, Store& store,
                            uint64_t meeting, const MeshOptions& options, Deadline deadline) {
  const Deadline begun = Clock::now();
  try {
    return Meeting(launch, secret, store, meeting, options, deadline).run();
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = error.culprit,
                     .operation = "connect",
                     .elapsed_s = std::chrono::duration<double>(Clock::now() - begun).count(),
                     .detail = error.what()});
  }
}

}  // namespace tinyshard::tcp
