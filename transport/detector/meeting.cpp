// How detectors meet, though they have no store: the channel is there already, so each value that a
// store would hold is exchanged by all ranks at once. Example, 3 ranks: each opens its gate and
// "sets" its address, which is an exchange of one message with each other rank; afterwards all
// addresses are known. The connections are formed and proven as those of the TCP channel
// (tcp/mesh.cpp). At the end all tell whether they succeeded: one that did not makes all do without.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "launch/environment.h"
#include "launch/secret.h"
#include "transport/detector/mesh_detector.h"
#include "transport/endpoint.h"
#include "transport/process_watch.h"
#include "transport/rendezvous/store.h"

namespace tinyshard {
namespace {

constexpr std::chrono::seconds kMeetingTime{20};
constexpr uint32_t kMeetingOfDetectors = 1;                // apart from those of channels
constexpr int kSetsToFindAddress = 2, kSetsOfMeeting = 2;  // of address_for and of form_mesh

class ExchangedStore final : public Store {
 public:
  ExchangedStore(Endpoint& endpoint, Deadline deadline) : endpoint_(endpoint), deadline_(deadline) {
    for (int rank = 0; rank < endpoint.channel().ranks(); ++rank) {
      if (rank != endpoint.channel().rank()) others_.push_back(rank);
    }
  }

  // Keys end in the rank that sets them; all ranks set theirs, in the same order.
  void set(const std::string& key, const std::string& value) override {
    if (value.size() > Value().size() - 1) throw StoreError("a value is too long");
    Value own{};
    own[0] = static_cast<char>(value.size());
    value.copy(own.data() + 1, own.size() - 1);
    ++sets_;
    std::vector<Value> values(others_.size());
    endpoint_.exchange(others_, own.data(), values.data(), sizeof(Value), deadline_, "connect");
    const std::string prefix = key.substr(0, key.rfind('/') + 1);
    values_[key] = value;
    for (size_t i = 0; i < others_.size(); ++i) {
      const size_t length = static_cast<unsigned char>(values[i][0]);  // 255 at most, all there is
      values_[prefix + std::to_string(others_[i])] = std::string(values[i].data() + 1, length);
    }
  }

  bool get(const std::string& key, std::string& value) override {
    const auto found = values_.find(key);
    if (found != values_.end()) value = found->second;
    return found != values_.end();
  }

  // Makes up for those that a rank left out when it gave up: the others wait for it in each.
  void reach(int sets) {
    while (sets_ < sets) set("none/" + std::to_string(endpoint_.channel().rank()), "");
  }
  int sets() const { return sets_; }

  std::string local_address() const override { return address_; }
  void set_local_address(std::string address) { address_ = std::move(address); }

  // Returns the values of all ranks, in their order.
  std::vector<std::string> gather(const std::string& what, const std::string& own) {
    set(what + "/" + std::to_string(endpoint_.channel().rank()), own);
    std::vector<std::string> all(others_.size() + 1);
    for (size_t rank = 0; rank < all.size(); ++rank)
      get(what + "/" + std::to_string(rank), all[rank]);
    return all;
  }

 private:
  using Value = std::array<char, 256>;
  Endpoint& endpoint_;
  const Deadline deadline_;
  std::vector<int> others_;
  std::map<std::string, std::string> values_;
  std::string address_;
  int sets_ = 0;
};

// Where this rank listens: the loopback when all ranks are on this host, else the address by which
// the first other host sees it.
std::string address_for(ExchangedStore& store) {
  std::array<char, 128> name{};
  gethostname(name.data(), name.size() - 1);
  const std::string id = std::to_string(ProcessAddress::own().host);
  const std::vector<std::string> ids = store.gather("id", id),
                                 names = store.gather("name", name.data());
  for (size_t rank = 0; rank < ids.size(); ++rank) {
    if (ids[rank] != id) return tcp::host_towards(names[rank]);
  }
  return tcp::loopback();
}

// Fails where the channel knows that a rank has ended, or has given up. Whom it had reached before
// would otherwise wait for those that it had not.
void check_channel(Endpoint& endpoint) {
  Channel& channel = endpoint.channel();
  const std::lock_guard lock(endpoint.mutex);
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    if (rank == channel.rank()) continue;
    const PeerState state = channel.peer_state(rank);
    if (state.gone || state.left)
      throw CommError(
          {.rank = channel.rank(),
           .peer = rank,
           .operation = "connect",
           .detail = fmt::format("heartbeats cannot begin; rank {}: {}", rank, state.text)});
  }
}

}  // namespace

std::unique_ptr<Detector> meet_detectors(const LaunchEnvironment& launch, Endpoint& endpoint,
                                         std::string& why_not) {
  const uint64_t meeting = tcp::next_meeting(launch.wire_epoch(), kMeetingOfDetectors);
  const Deadline deadline =
      std::chrono::steady_clock::now() +
      std::min<std::chrono::nanoseconds>(kMeetingTime, endpoint.options().timeout);
  ExchangedStore store(endpoint, endpoint.channel().now() + endpoint.options().timeout);
  std::vector<tcp::Peer> peers;
  std::string problem;
  try {
    store.set_local_address(address_for(store));
  } catch (const UserError& error) {
    problem = error.what();
  }
  store.reach(kSetsToFindAddress);
  const auto all_can = [&] {
    const std::vector<std::string> problems = store.gather("problem", problem.substr(0, 250));
    for (size_t rank = 0; rank < problems.size(); ++rank) {
      if (problems[rank].empty()) continue;
      why_not = fmt::format("rank {}: {}", rank, problems[rank]);
      return false;
    }
    return true;
  };
  if (!all_can()) return nullptr;
  const int end_of_meeting = store.sets() + kSetsOfMeeting;
  try {
    const Secret secret = job_secret(launch.meeting.job);
    peers = tcp::form_mesh(launch, secret, store, meeting,
                           {.far_streams = 1,
                            .share_memory = false,
                            .check_peers = [&endpoint] { check_channel(endpoint); }},
                           deadline);
  } catch (const Error& error) {
    problem = error.what();
  }
  store.reach(end_of_meeting);
  if (!all_can()) return nullptr;
  return std::make_unique<MeshDetector>(
      endpoint.channel().rank(), std::move(peers),
      [&endpoint](std::span<const uint64_t> places) { return endpoint.look(places); },
      endpoint.shared_recorder());
}

}  // namespace tinyshard
