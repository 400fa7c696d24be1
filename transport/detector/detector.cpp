// Example: rank 2 of 4 is killed. The kernel closes its connections; the threads of ranks 0, 1 and 3
// read their ends within a millisecond, note it in their rings, and a wait of any of them in a group
// with rank 2 sees it at its next inspection, even where it waits for another rank that computes.
// Had rank 2 been stopped, its connections would be there, and after a second without a heartbeat
// it would count as silent, which matters at the deadline of a call. A thread that was itself
// stopped measures silence by the time of its own last look, and so blames nobody for its pause.
#include "transport/detector/detector.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <poll.h>
#include <pthread.h>
#include <span>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/process.h"
#include "transport/recorder/recorder.h"

namespace tinyshard {
namespace {

using namespace detector;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPeriod{100};
constexpr int kSilentBeats = 10;
constexpr int kRanksPerPeriod = 64;  // more ranks: fewer heartbeats of each

}  // namespace

struct Detector::State {
  struct Peer {
    tcp::Socket socket;
    Sight sight;
    Clock::time_point heard;
    std::array<std::byte, sizeof(Beat)> incoming = {};
    size_t came = 0;
    std::vector<std::byte> outgoing;  // what did not go yet
  };

  int rank = 0;
  std::function<Doing()> look;
  std::shared_ptr<Recorder> recorder;
  milliseconds period = kPeriod;
  tcp::Socket stop;
  std::thread thread;
  const int forks = times_forked();

  mutable std::mutex mutex;  // of all below
  std::vector<Peer> peers;   // by rank
  Clock::time_point looked;
  uint64_t number = 0;
  bool farewell = false;

  void run() {
    std::vector<pollfd> waits;
    Clock::time_point next_beat = Clock::now();
    while (true) {
      const auto now = Clock::now();
      if (now >= next_beat) {
        const Doing doing = look();
        if (recorder) recorder->beat(now);
        const std::lock_guard lock(mutex);
        if (farewell) return;
        // Whoever was held up itself does not count that against the others.
        if (now - looked > 3 * period) {
          for (Peer& peer : peers) peer.heard = now;
        }
        looked = now;
        send_all({.number = ++number, .doing = doing});
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
      for (size_t p = 0; p < peers.size(); ++p) {
        if (waits[p + 1].revents != 0) read(int(p));
      }
    }
  }

  // A peer that reads nothing gets no more heartbeats until it does.
  void send_all(const Beat& beat) {
    const auto bytes = std::as_bytes(std::span(&beat, 1));
    for (Peer& peer : peers) {
      if (!peer.socket) continue;
      if (peer.outgoing.empty() || beat.kind == BeatKind::Farewell)
        peer.outgoing.insert(peer.outgoing.end(), bytes.begin(), bytes.end());
      const ssize_t n = ::send(peer.socket.fd(), peer.outgoing.data(), peer.outgoing.size(),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) peer.outgoing.erase(peer.outgoing.begin(), peer.outgoing.begin() + n);
    }
  }

  void read(int from) {
    Peer& peer = peers[size_t(from)];
    while (peer.socket) {
      const ssize_t n = recv(peer.socket.fd(), peer.incoming.data() + peer.came,
                             peer.incoming.size() - peer.came, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n <= 0) return lose(from, "its connection was closed");
      peer.came += size_t(n);
      if (peer.came < peer.incoming.size()) continue;
      peer.came = 0;
      Beat beat;
      std::memcpy(&beat, peer.incoming.data(), sizeof(beat));
      if (beat.magic != Beat().magic) return lose(from, "it sent what is no heartbeat");
      if (beat.kind == BeatKind::Farewell) peer.sight.left = true;
      beat.doing.group_name.back() = beat.doing.source.back() = '\0';
      peer.sight.doing = beat.doing;
      peer.heard = Clock::now();
    }
  }

  void lose(int from, const char* how) {
    Peer& peer = peers[size_t(from)];
    peer.socket.reset();
    if (peer.sight.left) return;
    peer.sight.gone = true;
    if (recorder)
      recorder->fail(from, FailureCause::Gone,
                     fmt::format("{} has ended: {}", peer.sight.who, how));
  }

  void say_farewell() {
    const std::lock_guard lock(mutex);
    if (std::exchange(farewell, true) || forks != times_forked()) return;
    send_all({.kind = BeatKind::Farewell, .number = ++number, .doing = {}});
  }
};

namespace {

// Detectors of this process that have not said farewell; an exit handler does it for them.
struct Living {
  std::mutex mutex;
  std::vector<Detector*> detectors;
};
Living& living() {
  static auto& instance = *new Living;  // used while the process exits
  return instance;
}

void say_farewells(int status, void*) {
  if (status != 0) return;
  Living& l = living();
  const std::lock_guard lock(l.mutex);
  for (Detector* detector : l.detectors) detector->say_farewell();
}

}  // namespace

Detector::Detector(int rank, std::vector<tcp::Peer> peers, std::function<Doing()> look,
                   std::shared_ptr<Recorder> recorder)
    : state_(std::make_unique<State>()) {
  static const bool leaves = on_exit(say_farewells, nullptr) == 0;
  static_cast<void>(leaves);
  State& state = *state_;
  state.rank = rank;
  state.look = std::move(look);
  state.recorder = std::move(recorder);
  state.period = kPeriod * (1 + int(peers.size()) / kRanksPerPeriod);
  state.stop = tcp::Socket(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  state.looked = Clock::now();
  for (tcp::Peer& peer : peers) {
    State::Peer& to = state.peers.emplace_back();
    if (!peer.streams.empty()) to.socket = std::move(peer.streams[0]);
    to.sight.who = fmt::format("process {} on {}", peer.process.pid, peer.host);
    to.heard = state.looked;
  }
  state.thread = std::thread([&state] {
    pthread_setname_np(pthread_self(), "ts-detector");
    state.run();
  });
  const std::lock_guard lock(living().mutex);
  living().detectors.push_back(this);
}

Detector::~Detector() {
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

void Detector::say_farewell() { state_->say_farewell(); }

Detector::Sight Detector::sight(int rank) const {
  const std::lock_guard lock(state_->mutex);
  const State::Peer& peer = state_->peers[size_t(rank)];
  Sight sight = peer.sight;
  if (rank == state_->rank) return sight;
  sight.silent_s = std::chrono::duration<double>(state_->looked - peer.heard).count();
  sight.silent = state_->looked - peer.heard > kSilentBeats * state_->period;
  return sight;
}

}  // namespace tinyshard
