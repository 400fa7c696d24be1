// The world that a simulated job lives in: a clock that jumps from event to event, processes that
// can be killed, stopped and slowed, wires between them that can be cut, and the launcher's store.
// Everything happens on one thread, in an order that depends on the seed alone.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "tests/simulator/fiber.h"
#include "tests/simulator/random.h"
#include "transport/channel.h"
#include "transport/detector/beat.h"
#include "transport/rendezvous/stored_values.h"

namespace simulator {

// Unwinds the fiber of a process that was killed. No std::exception: nothing may take it for an
// error that it can handle.
struct Killed {};

struct Packet {
  enum Kind : uint8_t { Hello, Message, Taken, News, Leave, Beat, Close } kind = Hello;
  uint32_t tag = 0, handle = 0;  // Taken: of the sender's transfer
  uint64_t generation = 0;
  std::vector<std::byte> content = {};
  tinyshard::Notice notice = {};
  tinyshard::detector::Beat beat = {};
};

// A connection's one direction. Packets come in the order in which they were sent, none is lost
// unless the connection is.
struct Wire {
  int kind = 0, from = 0, to = 0;
  bool closed = false;                               // nothing more goes in
  std::function<void(const Packet&)> taker = {};     // null: packets wait for it
  Time last{};                                       // when the last one sent arrives
  std::deque<std::pair<Time, Packet>> packets = {};  // with the times of their arrivals
};

class World;

struct Process {
  std::unique_ptr<Fiber> fiber;
  bool alive = true, stopped = false;
  bool closing = false;  // destructors run: they are not interrupted
  Time slow{};           // it gets a core so much later, at most
  Time offset{};         // of its clock
  Time at_death{};       // its clock goes on by itself when nobody resumes it any more
  bool asleep = false, woken_while_stopped = false;
  uint64_t sleeps = 0;
  std::vector<std::function<void()>> on_continue = {};
};

class World {
 public:
  static constexpr int kStoreHost = -1;  // in the place of a process: where the launcher runs

  World(int processes, uint64_t seed);
  ~World();

  Random random;
  int size() const { return static_cast<int>(processes.size()); }
  Process& process(int p) { return processes[static_cast<size_t>(p)]; }
  std::vector<Process> processes;

  Time now() const { return now_; }
  void after(Time delay, std::function<void()> event);
  // Runs events until all processes have ended, or this time has come: false.
  bool run_until(Time end);

  // For the code of a process, which runs in its fiber.
  tinyshard::Deadline clock(int p);
  void sleep(int p, Time time);  // ends early when the process is woken
  void wake(int p);

  // Events that may happen to processes and wires.
  void start(int p, std::function<void()> body);
  void kill(int p);
  void stop(int p);
  void go_on(int p);
  void cut(int from, int to, bool is_cut);  // one direction; packets wait until it is mended
  bool is_cut(int from, int to) const { return cuts_[index(from)][index(to)]; }
  // Delays packets that are sent from now on; heartbeats have connections of their own.
  void delay(int from, int to, Time longer, bool heartbeats_too = true);
  void reset(int a, int b);  // closes the connections between them that there are

  // Wires of one job's formation.
  static constexpr int kData = 0, kBeats = 1;  // kinds: of channels, and of heartbeats
  Wire& wire(uint32_t formation, int kind, int from, int to);
  void send(Wire& wire, Packet packet);
  void take(Wire& wire, std::function<void(const Packet&)> taker);
  void close(Wire& wire);

  // The launcher's store, as process p sees it.
  std::unique_ptr<tinyshard::Store> store_of(int p);
  tinyshard::StoredValues stored;
  void run_at_store(int p, const std::shared_ptr<std::function<void()>>& request);
  Time store_latency();  // of a packet from or to the store
  Time store_takes{};    // so much longer, at most
  Time shortest_nap() const { return shortest_nap_; }

 private:
  Time latency();
  struct Event {
    Time at;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {  // the heap's top is the next one
      return std::tie(other.at, other.order) < std::tie(at, order);
    }
  };
  Time arrival(const Wire& wire);  // of what is sent now
  static size_t index(int p) { return static_cast<size_t>(p) + 1; }
  void resume(int p);
  void pump(Wire& wire);
  void pump_all();

  Time now_{};
  uint64_t order_ = 0;
  int running_ = 0;  // processes that have not ended
  std::vector<Event> events_;
  Time slowest_{};       // of this world's packets
  Time shortest_nap_{};  // of a process to which nothing comes: it does not get a core at once
  std::vector<std::vector<bool>> cuts_;
  std::array<std::vector<std::vector<Time>>, 2> delays_;  // by kind
  std::map<std::tuple<uint32_t, int, int, int>, Wire> wires_;
};

}  // namespace simulator
