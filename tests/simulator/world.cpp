#include "tests/simulator/world.h"

#include <algorithm>
#include <utility>

#include "transport/rendezvous/store.h"

namespace simulator {

using namespace tinyshard;
using namespace std::chrono_literals;

World::World(int processes_of_job, uint64_t seed)
    : random(seed), processes(static_cast<size_t>(processes_of_job)) {
  slowest_ = std::array<Time, 3>{200us, 2ms, 12ms}[static_cast<size_t>(random.below(3))];
  shortest_nap_ = std::array<Time, 3>{4ms, 8ms, 15ms}[static_cast<size_t>(random.below(3))];
  cuts_.assign(processes.size() + 1, std::vector<bool>(processes.size() + 1));
  for (auto& delays : delays_)
    delays.assign(processes.size() + 1, std::vector<Time>(processes.size() + 1));
  for (Process& process : processes) process.offset = random.up_to(1000h);
}

// Whoever is left is ended, so that its memory is given back.
World::~World() {
  for (int p = 0; p < size(); ++p) {
    Process& own = process(p);
    own.alive = false;
    own.at_death = now_;
    while (own.fiber && !own.fiber->ended()) own.fiber->resume();
  }
}

void World::after(Time delay, std::function<void()> event) {
  events_.push_back({now_ + delay, ++order_, std::move(event)});
  std::push_heap(events_.begin(), events_.end());
}

bool World::run_until(Time end) {
  while (running_ > 0 && !events_.empty() && events_.front().at <= end) {
    std::pop_heap(events_.begin(), events_.end());
    Event event = std::move(events_.back());
    events_.pop_back();
    now_ = event.at;
    event.run();
  }
  return running_ == 0;
}

Time World::latency() {
  // Some packets have bad luck.
  return 20us + random.up_to(random.chance(3) ? 4 * slowest_ : slowest_);
}

Time World::store_latency() {
  return store_takes > 0ns ? latency() + random.up_to(store_takes) : latency();
}

// ------------------------------------------------------------------------------------------------
// Processes.

Deadline World::clock(int p) {
  Process& own = process(p);
  // A killed process that still unwinds may wait for a time: it comes at once.
  if (!own.alive) own.at_death += 1s;
  return Deadline(own.offset + (own.alive ? now_ : own.at_death));
}

void World::sleep(int p, Time time) {
  Process& own = process(p);
  if (!own.alive) {
    if (!own.closing) throw Killed();
    return;
  }
  const uint64_t serial = ++own.sleeps;
  own.asleep = true;
  const Time late = own.slow > 0ns ? random.up_to(own.slow) : 0ns;
  after(time + late, [this, p, serial] {
    if (process(p).asleep && process(p).sleeps == serial) resume(p);
  });
  own.fiber->pause();
  if (!own.alive && !own.closing) throw Killed();
}

void World::wake(int p) {
  Process& own = process(p);
  if (!own.asleep || own.slow > 0ns) return;
  const uint64_t serial = own.sleeps;
  after(random.up_to(20us), [this, p, serial] {
    if (process(p).asleep && process(p).sleeps == serial) resume(p);
  });
}

void World::resume(int p) {
  Process& own = process(p);
  if (own.fiber->ended()) return;
  if (own.stopped && own.alive) {
    own.woken_while_stopped = true;
    return;
  }
  own.asleep = false;
  own.fiber->resume();
  if (own.fiber->ended()) --running_;
}

void World::start(int p, std::function<void()> body) {
  ++running_;
  process(p).fiber = std::make_unique<Fiber>([body = std::move(body)] {
    try {
      body();
    } catch (const Killed&) {  // NOLINT(bugprone-empty-catch)
      // Its end.
    }
  });
  after(random.up_to(5ms), [this, p] { resume(p); });
}

// The kernel closes its connections; of what it had sent last, some may not have left it.
void World::kill(int p) {
  Process& own = process(p);
  if (!own.alive || own.fiber->ended()) return;
  own.alive = false;
  own.at_death = now_;
  for (auto& [key, wire] : wires_) {
    if (wire.from != p) continue;
    if (random.chance(50)) {
      const int kept = random.below(static_cast<int>(wire.packets.size()) + 1);
      wire.packets.resize(static_cast<size_t>(kept));
    }
    close(wire);
  }
  resume(p);
  after(random.up_to(50ms),
        [this, p] { stored.give_up(p, "rank " + std::to_string(p) + " was killed"); });
}

void World::stop(int p) { process(p).stopped = true; }

void World::go_on(int p) {
  Process& own = process(p);
  if (!std::exchange(own.stopped, false)) return;
  if (std::exchange(own.woken_while_stopped, false)) {
    const uint64_t serial = own.sleeps;
    after(random.up_to(1ms), [this, p, serial] {
      if (process(p).asleep && process(p).sleeps == serial) resume(p);
    });
  }
  for (auto& event : std::exchange(own.on_continue, {})) after(random.up_to(1ms), std::move(event));
  after(random.up_to(1ms), [this] { pump_all(); });
}

// ------------------------------------------------------------------------------------------------
// Wires.

void World::cut(int from, int to, bool is_cut) {
  cuts_[index(from)][index(to)] = is_cut;
  if (!is_cut) pump_all();
}

void World::delay(int from, int to, Time longer, bool heartbeats_too) {
  delays_[kData][index(from)][index(to)] = longer;
  if (heartbeats_too) delays_[kBeats][index(from)][index(to)] = longer;
}

void World::reset(int a, int b) {
  for (auto& [key, wire] : wires_) {
    if (!((wire.from == a && wire.to == b) || (wire.from == b && wire.to == a))) continue;
    wire.packets.clear();
    close(wire);
  }
}

Wire& World::wire(uint32_t formation, int kind, int from, int to) {
  Wire& wire = wires_[{formation, kind, from, to}];
  wire.kind = kind;
  wire.from = from;
  wire.to = to;
  return wire;
}

Time World::arrival(const Wire& wire) {
  const Time longer = delays_[size_t(wire.kind)][index(wire.from)][index(wire.to)];
  return std::max(wire.last, now_ + latency() + longer);
}

void World::send(Wire& wire, Packet packet) {
  if (wire.closed || !process(wire.from).alive) return;
  wire.last = arrival(wire);
  wire.packets.emplace_back(wire.last, std::move(packet));
  after(wire.last - now_, [this, &wire] { pump(wire); });
}

void World::close(Wire& wire) {
  if (std::exchange(wire.closed, true)) return;
  wire.last = arrival(wire);
  Packet packet;
  packet.kind = Packet::Close;
  wire.packets.emplace_back(wire.last, std::move(packet));
  after(wire.last - now_, [this, &wire] { pump(wire); });
}

void World::take(Wire& wire, std::function<void(const Packet&)> taker) {
  wire.taker = std::move(taker);
  if (wire.taker) pump(wire);
}

// A stopped process takes nothing: its packets wait in its kernel.
void World::pump(Wire& wire) {
  while (!wire.packets.empty() && wire.packets.front().first <= now_ && wire.taker &&
         !is_cut(wire.from, wire.to) && !process(wire.to).stopped && process(wire.to).alive) {
    const Packet packet = std::move(wire.packets.front().second);
    wire.packets.pop_front();
    wire.taker(packet);
    wake(wire.to);
  }
}

void World::pump_all() {
  for (auto& [key, wire] : wires_) pump(wire);
}

// ------------------------------------------------------------------------------------------------
// The store.

void World::run_at_store(int p, const std::shared_ptr<std::function<void()>>& request) {
  if (is_cut(p, kStoreHost) || is_cut(kStoreHost, p)) {
    after(20ms, [this, p, request] { run_at_store(p, request); });
  } else {
    (*request)();
  }
}

namespace {

class SimulatedStore final : public Store {
 public:
  SimulatedStore(World& world, int process) : world_(world), process_(process) {}

  void set(const std::string& key, const std::string& value) override {
    std::string ignored;
    ask(key, ignored, [key, value](StoredValues& stored, Answer& answer) {
      answer.status = stored.set(key, value);
    });
  }
  bool get(const std::string& key, std::string& value) override {
    return ask(key, value, [key](StoredValues& stored, Answer& answer) {
      answer.status = stored.get(key, answer.value, answer.culprit);
    });
  }
  std::string local_address() const override { return "simulated"; }

 private:
  struct Answer {
    bool there = false;
    StoredValues::Status status{};
    std::string value;
    int32_t culprit = -1;
  };

  template <class Request>
  bool ask(const std::string& key, std::string& value, Request request) {
    constexpr Time kAnswerTime = 10s;  // as the client over TCP
    auto answer = std::make_shared<Answer>();
    World& world = world_;
    const int p = process_;
    const auto at_store = std::make_shared<std::function<void()>>([&world, p, answer, request] {
      request(world.stored, *answer);
      world.after(world.store_latency(), [&world, p, answer] {
        answer->there = true;
        world.wake(p);
      });
    });
    world.after(world.store_latency(), [&world, p, at_store] { world.run_at_store(p, at_store); });
    const Deadline end = world.clock(p) + kAnswerTime;
    while (!answer->there) {
      const Deadline now = world.clock(p);
      if (now >= end) throw StoreError("the job's store is gone: it does not answer");
      world.sleep(p, end - now);
    }
    value = answer->value;
    return StoredValues::understand(answer->status, key, answer->value, answer->culprit);
  }

  World& world_;
  int process_;
};

}  // namespace

std::unique_ptr<Store> World::store_of(int p) { return std::make_unique<SimulatedStore>(*this, p); }

}  // namespace simulator
