#include "tests/simulator/channel.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"

namespace simulator {
namespace {

using namespace tinyshard;
using namespace std::chrono_literals;

constexpr size_t kEagerBytes = 64;  // longer messages count as sent when they have been taken

// A rank's side of the wires to all others of its formation.
class Wires {
 public:
  Wires(World& world, const LaunchEnvironment& launch, int kind)
      : world_(world), launch_(launch), kind_(kind) {}
  Wire& to(int rank) { return wire(launch_.rank, rank); }
  Wire& from(int rank) { return wire(rank, launch_.rank); }
  World& world() { return world_; }
  int process() const { return launch_.launched_as(launch_.rank); }
  const LaunchEnvironment& launch() const { return launch_; }

 private:
  Wire& wire(int from, int to) {
    return world_.wire(launch_.formation, kind_, launch_.launched_as(from),
                       launch_.launched_as(to));
  }
  World& world_;
  const LaunchEnvironment launch_;
  const int kind_;
};

class SimulatedChannel final : public Channel {
 public:
  SimulatedChannel(World& world, const LaunchEnvironment& launch)
      : Channel(launch.rank, launch.size),
        wires_(world, launch, World::kData),
        links_(size_t(launch.size)) {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank())
        world.take(wires_.from(peer), [this, peer](const Packet& packet) { take(peer, packet); });
    }
  }

  ~SimulatedChannel() override {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == rank()) continue;
      // After a failure its silence says what there is to say, as over TCP.
      Packet packet;
      packet.kind = Packet::Leave;
      if (healthy_) wires_.world().send(wires_.to(peer), std::move(packet));
      wires_.world().close(wires_.to(peer));
      wires_.world().take(wires_.from(peer), {});
    }
  }

  void greet() {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank()) wires_.world().send(wires_.to(peer), Packet());
    }
  }
  // -1: all have.
  int has_not_greeted() const {
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer != rank() && !links_[size_t(peer)].greeted) return peer;
    }
    return -1;
  }

  std::string_view name() const override { return "simulated"; }

  Transfer send(int peer, uint32_t tag, const void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes);
    Slot& slot = slots_[transfer];
    Packet packet;
    packet.kind = Packet::Message;
    packet.tag = tag;
    packet.handle = transfer;
    packet.generation = slot.generation;
    const auto* begin = static_cast<const std::byte*>(data);
    packet.content.assign(begin, begin + bytes);
    if (peer == rank()) {
      slot.done = true;
      take(peer, packet);
    } else {
      slot.done = bytes <= kEagerBytes;
      wires_.world().send(wires_.to(peer), std::move(packet));
    }
    return transfer;
  }

  Transfer receive(int peer, uint32_t tag, void* data, size_t bytes) override {
    const Transfer transfer = acquire(peer, bytes);
    Slot& slot = slots_[transfer];
    slot.data = static_cast<std::byte*>(data);
    slot.tag = tag;
    Link& link = links_[size_t(peer)];
    const auto found = std::ranges::find(link.unexpected, tag, &Packet::tag);
    if (found == link.unexpected.end()) {
      link.posted.push_back(transfer);
    } else {
      deliver(peer, *found, slot);
      link.unexpected.erase(found);
    }
    return transfer;
  }

  bool abandon(Transfer transfer) override {
    healthy_ = false;
    std::erase(links_[size_t(slots_[transfer].peer)].posted, transfer);
    release(transfer);
    return true;
  }

  void send_notice(int peer, const Notice& notice) override {
    healthy_ = false;
    Packet packet;
    packet.kind = Packet::News;
    packet.notice = notice;
    wires_.world().send(wires_.to(peer), std::move(packet));
  }

  bool next_notice(Notice& notice) override {
    if (news_.empty()) return false;
    notice = news_.front();
    news_.pop_front();
    return true;
  }

  PeerState peer_state(int peer) override {
    const Link& link = links_[size_t(peer)];
    if (link.left) return {.left = true, .text = "its main returned, or it called exit(0)"};
    if (link.lost) return {.gone = true, .text = process_of(peer) + " has ended"};
    return {};
  }

  std::string process_of(int peer) override {
    return fmt::format("process {}", wires_.launch().launched_as(peer));
  }

  Deadline now() override { return wires_.world().clock(wires_.process()); }
  void idle(Duration nap) override {
    wires_.world().sleep(wires_.process(), std::max<Time>(nap, wires_.world().shortest_nap()));
  }

 private:
  struct Slot {
    bool done = false;
    int peer = -1;
    uint32_t tag = 0;
    std::byte* data = nullptr;
    size_t bytes = 0, sent = 0;  // of a receive: expected, and what the message had
    uint64_t generation = 0;
  };
  struct Link {
    bool greeted = false, left = false, lost = false;
    std::deque<Packet> unexpected = {};
    std::deque<Transfer> posted = {};
  };

  bool poll(Transfer transfer) override {
    const Slot& slot = slots_[transfer];
    if (!slot.done) return false;
    const int peer = slot.peer;
    const size_t bytes = slot.bytes, sent = slot.sent;
    release(transfer);
    if (bytes != sent)
      throw ChannelError(
          peer, fmt::format("rank {} sent {} bytes where {} were expected", peer, sent, bytes));
    return true;
  }

  void take(int peer, const Packet& packet) {
    Link& link = links_[size_t(peer)];
    switch (packet.kind) {
      case Packet::Hello:
        link.greeted = true;
        break;
      case Packet::Message: {
        const auto found = std::ranges::find_if(
            link.posted, [&](Transfer t) { return slots_[t].tag == packet.tag; });
        if (found == link.posted.end()) {
          link.unexpected.push_back(packet);
        } else {
          deliver(peer, packet, slots_[*found]);
          link.posted.erase(found);
        }
        break;
      }
      case Packet::Taken:
        if (slots_[packet.handle].generation == packet.generation)
          slots_[packet.handle].done = true;
        break;
      case Packet::News:
        news_.push_back(packet.notice);
        break;
      case Packet::Leave:
        link.left = true;
        break;
      case Packet::Close:
        link.lost = true;
        wires_.world().close(wires_.to(peer));
        break;
      case Packet::Beat:
        break;
    }
  }

  void deliver(int peer, const Packet& message, Slot& slot) {
    slot.sent = message.content.size();
    slot.done = true;
    if (slot.sent == slot.bytes && slot.bytes != 0)
      std::memcpy(slot.data, message.content.data(), slot.bytes);
    if (peer == rank() || slot.sent <= kEagerBytes) return;
    Packet taken;
    taken.kind = Packet::Taken;
    taken.handle = message.handle;
    taken.generation = message.generation;
    wires_.world().send(wires_.to(peer), std::move(taken));
  }

  Transfer acquire(int peer, size_t bytes) {
    if (free_.empty()) {
      free_.push_back(static_cast<Transfer>(slots_.size()));
      slots_.emplace_back();
    }
    const Transfer transfer = free_.back();
    free_.pop_back();
    Slot& slot = slots_[transfer];
    const uint64_t generation = slot.generation;
    slot = Slot();
    slot.peer = peer;
    slot.bytes = slot.sent = bytes;
    slot.generation = generation;
    return transfer;
  }

  void release(Transfer transfer) {
    ++slots_[transfer].generation;
    free_.push_back(transfer);
  }

  Wires wires_;
  std::vector<Link> links_;  // by rank
  std::deque<Slot> slots_;
  std::vector<Transfer> free_;
  std::deque<Notice> news_;
  bool healthy_ = true;
};

class SimulatedDetector final : public Detector {
 public:
  SimulatedDetector(World& world, const LaunchEnvironment& launch, detector::Look look)
      : state_(std::make_shared<State>(
            State{.wires = Wires(world, launch, World::kBeats),
                  .look = std::move(look),
                  .sights = detector::Sights(launch.rank, size_t(launch.size),
                                             world.clock(launch.launched_as(launch.rank)))})) {
    State& state = *state_;
    for (int peer = 0; peer < launch.size; ++peer) {
      state.sights.name(peer, fmt::format("process {}", launch.launched_as(peer)));
      if (peer == launch.rank) continue;
      world.take(state.wires.from(peer), [&state, peer](const Packet& packet) {
        World& of = state.wires.world();
        const int p = state.wires.process();
        if (packet.kind == Packet::Close) {
          state.sights.lose(peer);
          of.close(state.wires.to(peer));
        } else {
          state.sights.hear(peer, packet.beat, of.clock(p));
        }
      });
    }
    world.after(world.random.up_to(state.sights.period()), [s = state_] { State::beat(s); });
  }

  ~SimulatedDetector() override {
    State& state = *state_;
    state.ended = true;
    for (int peer = 0; peer < state.wires.launch().size; ++peer) {
      if (peer == state.wires.launch().rank) continue;
      // Where an exception ends this world, its silence says what there is to say.
      detector::Beat farewell;
      farewell.kind = detector::BeatKind::Farewell;
      if (std::uncaught_exceptions() == 0) state.send(peer, farewell);
      state.wires.world().close(state.wires.to(peer));
      state.wires.world().take(state.wires.from(peer), {});
    }
  }

  Sight sight(int rank) const override { return state_->sights.sight(rank); }
  std::optional<detector::Circle> circle() override {
    return state_->sights.circle(state_->wires.world().clock(state_->wires.process()));
  }

 private:
  struct State {
    Wires wires;
    detector::Look look;
    detector::Sights sights;
    bool ended = false;

    void send(int peer, const detector::Beat& beat) {
      Packet packet;
      packet.kind = Packet::Beat;
      packet.beat = beat;
      wires.world().send(wires.to(peer), std::move(packet));
    }

    static void beat(const std::shared_ptr<State>& state) {
      World& world = state->wires.world();
      const int p = state->wires.process();
      Process& process = world.process(p);
      if (state->ended || !process.alive) return;
      if (process.stopped) {
        process.on_continue.push_back([state] { beat(state); });
        return;
      }
      const std::vector<uint64_t> asked = state->sights.places();
      state->sights.look(state->look(asked), world.clock(p));
      for (int peer = 0; peer < state->wires.launch().size; ++peer) {
        if (peer != state->wires.launch().rank) state->send(peer, state->sights.beat_for(peer));
      }
      const Time late = process.slow > 0ns ? world.random.up_to(20ms) : 0ns;
      world.after(state->sights.period() + late, [state] { beat(state); });
    }
  };
  std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<Channel> meet(World& world, const LaunchEnvironment& launch,
                              std::chrono::nanoseconds timeout) {
  const int own = launch.launched_as(launch.rank);
  const auto store = world.store_of(own);
  const Deadline deadline = world.clock(own) + timeout;
  const auto late = [&](int rank) {
    return CommError({.rank = launch.rank,
                      .peer = rank,
                      .operation = "connect",
                      .detail = fmt::format("rank {} did not come in time", rank)});
  };
  const auto key = [&](int rank) {
    return fmt::format("{}/address/{}", launch.formation, launch.launched_as(rank));
  };
  auto channel = std::make_unique<SimulatedChannel>(world, launch);
  try {
    store->set(key(launch.rank), "simulated");
    for (int rank = 0; rank < launch.size; ++rank) {
      std::string ignored;
      while (!store->get(key(rank), ignored)) {
        if (world.clock(own) >= deadline) throw late(rank);
        world.sleep(own, 5ms);
      }
    }
  } catch (const StoreError& error) {
    throw CommError({.rank = launch.rank,
                     .peer = error.culprit < 0 ? -1 : launch.rank_now(error.culprit),
                     .operation = "connect",
                     .detail = error.what()});
  }
  channel->greet();
  for (int rank; (rank = channel->has_not_greeted()) >= 0;) {
    if (channel->peer_state(rank).gone || world.clock(own) >= deadline) throw late(rank);
    world.sleep(own, 5ms);
  }
  return channel;
}

std::unique_ptr<Detector> beat(World& world, const LaunchEnvironment& launch, detector::Look look) {
  return std::make_unique<SimulatedDetector>(world, launch, std::move(look));
}

}  // namespace simulator
