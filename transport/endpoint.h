// Shared by all communicators of one rank: the channel, the lock around it, the numbers of the
// groups, and the wait. A wait for one call moves the calls of every group along, so the order in
// which ranks wait for things is free. Lives as long as the last of its groups.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "transport/channel.h"
#include "transport/comm_options.h"
#include "transport/detector/detector.h"
#include "transport/recorder/recorder.h"

namespace tinyshard {

class Group;

class Endpoint {
 public:
  // Groups alive at once; context 0 is for the talk that sets up groups.
  static constexpr uint32_t kContexts = 256;
  // A tag: its payload, above it a bit for "pair, not collective", above it the context.
  static constexpr int kPayloadBits = 14;
  using Contexts = std::array<uint64_t, kContexts / 64>;

  Endpoint(std::unique_ptr<Channel> channel, const CommOptions& options,
           std::shared_ptr<Recorder> recorder = {});

  Channel& channel() { return *channel_; }
  const CommOptions& options() const { return options_; }
  Recorder* recorder() const { return recorder_.get(); }  // null: nothing is recorded
  const std::shared_ptr<Recorder>& shared_recorder() const { return recorder_; }
  // Null if only the channel knows anything of the peers.
  Detector* detector() const { return detector_.get(); }
  void set_detector(std::unique_ptr<Detector> detector) { detector_ = std::move(detector); }

  // Guards everything here, the channel, and the groups' requests.
  std::mutex mutex;
  // Allows a rank one split at a time: between the offer of free contexts and the choice, nobody
  // else takes one. Never taken while holding `mutex`.
  std::mutex split_mutex;
  uint64_t splits = 0;  // with split_mutex: makes group ids unique

  // Where this rank stands. Called without the mutex. Where another thread holds that for long, as in
  // a reduction, this rank works, and waits for nobody.
  detector::Standing look(std::span<const uint64_t> places);
  // With the mutex held: notes that a call begins on this thread. Returns its number among the
  // calls at its place. Collectives of a group have the place kNoPlace, as groups count them
  // themselves.
  uint64_t count_call(uint64_t place);
  uint64_t calls() const { return calls_; }
  // With the mutex held: notes that the program waits on this thread for these ranks, in that call.
  // Called again and again for as long as it waits. `doing` names the call if it is under way in no
  // group.
  void hold(std::span<const int> ranks, detector::CallNumber call, Deadline now,
            const detector::Doing& doing = {});
  // Returns what channel and detector know of a rank, with the mutex held.
  PeerState peer_state(int rank);
  // "process 812 on node02"; empty of this rank, of -1 and where it is not known.
  std::string process_of(int rank) const;

  // With the mutex held. `thorough` also looks for notices from peers; otherwise that happens now
  // and then.
  void progress(bool thorough);
  void attach(Group* group);  // the group's own, as detach
  void detach(Group* group, bool context_may_be_reused);
  const Contexts& contexts() const { return contexts_; }

  // Repeats `step(now)` under the mutex until it is true or throws, with progress before and a
  // pause between. Every wait of this library for a peer is one of these. Called without the mutex.
  template <class Step>
  void wait_until(Step&& step) {
    Idle idle;
    while (true) {
      {
        std::lock_guard lock(mutex);
        progress(idle.napping);
        const Deadline now = channel_->now();
        if (step(now)) return;
        if (idle.polls++ == 0 || idle.completed != channel_->completed()) {
          idle.completed = channel_->completed();
          idle.since = now;
        }
        idle.duration = now - idle.since;
      }
      pause(idle);
    }
  }

  // A message of `bytes` to and from each of `ranks`, on the set-up context: `out` goes to all, the
  // i-th piece of `in` comes from ranks[i]; either may be null. Throws CommError named `operation`
  // at the deadline.
  void exchange(std::span<const int> ranks, const void* out, void* in, size_t bytes,
                Deadline deadline, std::string_view operation);

  // The first failure of a group here, with the mutex held. Programs end by it, and then say why in
  // their other groups, too.
  struct Failure {
    int culprit = -1;
    std::string detail;
    FailureCause cause = FailureCause::Unknown;
  };
  std::optional<Failure> first_failure;

  // Hands what other ranks said of failures to their groups.
  void deliver_notices();

 private:
  struct Idle {  // how long a wait has seen nothing move
    uint64_t polls = 0, completed = 0;
    Deadline since{};
    Channel::Duration duration{};
    bool napping = false;
  };
  void pause(Idle& idle);
  // Why a wait for these ranks has gone on for some time.
  struct Hold {
    std::vector<detector::Standing::Awaited> awaited;
    Deadline at{};
    std::thread::id thread;
    uint64_t calls = 0;
    detector::Doing doing;
  };
  uint64_t calls_made(int rank, uint64_t place) const;

  std::unique_ptr<Channel> channel_;
  CommOptions options_;
  std::shared_ptr<Recorder> recorder_;
  std::vector<Group*> groups_;
  Contexts contexts_{1};
  std::vector<Notice> early_;  // for groups that this rank has not attached yet
  uint32_t polls_ = 0;
  uint64_t calls_ = 0;
  std::thread::id caller_;                               // of the last of them
  std::unordered_map<uint64_t, uint64_t> place_calls_;   // of pairs, and of groups that have ended
  std::vector<uint64_t> set_up_sent_, set_up_received_;  // by rank
  std::vector<Hold> holds_;                              // one of each place
  std::unique_ptr<Detector> detector_;                   // the last: its thread asks this object
};

// Keeps memory that a transfer may still touch after its call failed. It is never freed.
void keep_for_good(std::shared_ptr<void> memory);

}  // namespace tinyshard
