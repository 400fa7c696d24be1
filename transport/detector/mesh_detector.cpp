// Example: rank 2 of 4 is killed. The kernel closes its connections; the threads of ranks 0, 1 and 3
// read their ends within a millisecond, note it in their rings, and a wait of any of them in a group
// with rank 2 sees it at its next inspection, even where it waits for another rank that computes.
// Had rank 2 been stopped, its connections would be there, and after a second without a heartbeat
// it would count as silent, which matters at the deadline of a call. A thread that was itself
// stopped measures silence by the time of its own last look, and so blames nobody for its pause.
#include "transport/detector/mesh_detector.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <span>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/process.h"
#include "transport/detector/sights.h"
#include "transport/recorder/recorder.h"
#include "transport/tcp/socket.h"

namespace tinyshard {
namespace {

using namespace detector;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

}  // namespace

struct MeshDetector::State {
  State(int own_rank, size_t ranks)
      : period(period_of(ranks)), sights(own_rank, ranks, Clock::now()) {}

  struct Peer {
    tcp::Socket socket;
    std::array<std::byte, sizeof(Beat)> incoming = {};
    size_t came = 0;
    std::vector<std::byte> outgoing;  // what did not go yet
  };

  Look look;
  std::shared_ptr<Recorder> recorder;
  const milliseconds period;
  tcp::Socket stop;
  std::thread thread;
  const int forks = times_forked();

  mutable std::mutex mutex;  // of all below
  std::vector<Peer> peers;   // by rank
  Sights sights;
  bool farewell = false;

  void run() {
    std::vector<pollfd> waits;
    Clock::time_point next_beat = Clock::now();
    read_all();  // what has come with the handshakes
    while (true) {
      const auto now = Clock::now();
      if (now >= next_beat) {
        std::vector<uint64_t> asked;
        {
          const std::lock_guard lock(mutex);
          asked = sights.places();
        }
        const Standing own = look(asked);
        if (recorder) recorder->beat(now);
        const std::lock_guard lock(mutex);
        if (farewell) return;
        sights.look(own, now);
        for (size_t p = 0; p < peers.size(); ++p) send(peers[p], sights.beat_for(int(p)));
        next_beat = now + period;
      }
      waits.assign(1, {.fd = stop.fd(), .events = POLLIN, .revents = 0});
      {
        const std::lock_guard lock(mutex);
        for (const Peer& peer : peers)
          waits.push_back({.fd = peer.socket.fd(), .events = POLLIN, .revents = 0});
      }
      const auto left = std::chrono::ceil<milliseconds>(next_beat - Clock::now()).count();
      if (poll(waits.data(), waits.size(), int(std::max<int64_t>(left, 0))) <= 0) continue;
      if (waits[0].revents != 0) return;
      const std::lock_guard lock(mutex);
      if (farewell) return;
      for (size_t p = 0; p < peers.size(); ++p) {
        if (waits[p + 1].revents != 0) read(int(p));
      }
    }
  }

  void read_all() {
    const std::lock_guard lock(mutex);
    for (size_t p = 0; p < peers.size() && !farewell; ++p) read(int(p));
  }

  // A peer that reads nothing gets no more heartbeats until it does.
  static void send(Peer& peer, const Beat& beat) {
    const auto bytes = std::as_bytes(std::span(&beat, 1));
    if (!peer.socket) return;
    if (peer.outgoing.empty() || beat.kind == BeatKind::Farewell)
      peer.outgoing.insert(peer.outgoing.end(), bytes.begin(), bytes.end());
    const ssize_t n = tcp::send_now(peer.socket, peer.outgoing);
    if (n > 0) peer.outgoing.erase(peer.outgoing.begin(), peer.outgoing.begin() + n);
  }

  void read(int from) {
    Peer& peer = peers[size_t(from)];
    while (peer.socket) {
      const ssize_t n = tcp::receive_now(peer.socket, std::span(peer.incoming).subspan(peer.came));
      if (n == tcp::Pipe::kBlocked) return;
      if (n == tcp::kReset) return lose(from, "its connection was reset", true);
      if (n < 0 && peer.socket.session() && !peer.socket.session()->problem().empty())
        return lose(from, "over its connection came what it did not send", true);
      if (n < 0) return lose(from, "its connection was closed");
      peer.came += size_t(n);
      if (peer.came < peer.incoming.size()) continue;
      peer.came = 0;
      Beat beat;
      std::memcpy(&beat, peer.incoming.data(), sizeof(beat));
      if (!sights.hear(from, beat, Clock::now())) return lose(from, "it sent what is no heartbeat");
    }
  }

  void lose(int from, const char* how, bool reset = false) {
    peers[size_t(from)].socket.reset();
    if (sights.lose(from, reset) && recorder)
      recorder->fail(
          from, FailureCause::Gone,
          fmt::format("{} {}: {}", sights.who(from), reset ? "is gone" : "has ended", how));
  }

  void say_farewell() {
    const std::lock_guard lock(mutex);
    if (std::exchange(farewell, true) || forks != times_forked()) return;
    Beat beat;
    beat.kind = BeatKind::Farewell;
    for (Peer& peer : peers) send(peer, beat);
  }
};

namespace {

// Detectors of this process that have not said farewell; an exit handler does it for them.
struct Living {
  std::mutex mutex;
  std::vector<MeshDetector*> detectors;
};
Living& living() {
  static auto& instance = *new Living;  // used while the process exits
  return instance;
}

void say_farewells(int status, void*) {
  if (status != 0) return;
  Living& l = living();
  const std::lock_guard lock(l.mutex);
  for (MeshDetector* detector : l.detectors) detector->say_farewell();
}

}  // namespace

MeshDetector::MeshDetector(int rank, std::vector<tcp::Peer> peers, Look look,
                           std::shared_ptr<Recorder> recorder)
    : state_(std::make_unique<State>(rank, peers.size())) {
  static const bool leaves = on_exit(say_farewells, nullptr) == 0;
  static_cast<void>(leaves);
  State& state = *state_;
  state.look = std::move(look);
  state.recorder = std::move(recorder);
  state.stop = tcp::Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  for (tcp::Peer& peer : peers) {
    State::Peer& to = state.peers.emplace_back();
    if (!peer.streams.empty()) to.socket = std::move(peer.streams[0]);
    state.sights.name(int(state.peers.size()) - 1,
                      fmt::format("process {} on {}", peer.process.pid, peer.host));
  }
  state.thread = std::thread([&state] {
    pthread_setname_np(pthread_self(), "ts-detector");
    state.run();
  });
  const std::lock_guard lock(living().mutex);
  living().detectors.push_back(this);
}

MeshDetector::~MeshDetector() {
  {
    const std::lock_guard lock(living().mutex);
    std::erase(living().detectors, this);
  }
  if (state_->forks != times_forked()) {
    state_->thread.detach();
    return;
  }
  // Where an exception ends this world, its silence says what there is to say.
  if (std::uncaught_exceptions() == 0) say_farewell();
  const uint64_t one = 1;
  if (write(state_->stop.fd(), &one, sizeof(one)) < 0) say_farewell();  // ends the thread, too
  state_->thread.join();
}

void MeshDetector::say_farewell() { state_->say_farewell(); }

Detector::Sight MeshDetector::sight(int rank) const {
  const std::lock_guard lock(state_->mutex);
  return state_->sights.sight(rank);
}

std::optional<Circle> MeshDetector::circle() {
  const std::lock_guard lock(state_->mutex);
  return state_->sights.circle(Clock::now());
}

}  // namespace tinyshard
