// Runs add to counters of the process and of their devices, without a lock; who looks reads them one
// by one. What an item does is found by a walk of its kernel, so that it is asked for only where somebody
// counts.
#include "core/exec/counters.h"

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/exec/context.h"
#include "core/exec/tally.h"

namespace tinyshard {
namespace {

std::atomic<bool> counting = false;

struct Tallies {
  std::mutex mutex;  // of the map; what is in it stays where it is
  std::map<std::pair<std::string, int>, DeviceCounters> by_device;

  static Tallies& get() {
    static auto& tallies = *new Tallies;  // outlives every static tensor
    return tallies;
  }
};

template <class Visit>
void for_each_count(DeviceCounters& counts, const Visit& visit) {
  visit(counts.kernels), visit(counts.library_calls), visit(counts.collectives);
  visit(counts.copies), visit(counts.bytes), visit(counts.operations);
}
template <class Visit>
void for_each_count(Counters& counts, const Visit& visit) {
  visit(counts.kernels), visit(counts.library_calls), visit(counts.collectives);
  visit(counts.copies), visit(counts.runs), visit(counts.nanoseconds);
}

template <class Counts>
Counts read_now(Counts& counts) {
  Counts now;
  if constexpr (std::is_same_v<Counts, DeviceCounters>) now.device = counts.device;
  std::vector<double> values;
  for_each_count(counts, [&](auto& n) {
    values.push_back(double(std::atomic_ref(n).load(std::memory_order_relaxed)));
  });
  auto value = values.begin();
  for_each_count(now,
                 [&](auto& n) { n = static_cast<std::remove_cvref_t<decltype(n)>>(*value++); });
  return now;
}

template <class Counts>
void set_to_zero(Counts& counts) {
  for_each_count(counts, [](auto& n) { std::atomic_ref(n).store(0, std::memory_order_relaxed); });
}

}  // namespace

Counters& counters() {
  static Counters c;
  return c;
}

bool work_is_counted() { return counting.load(std::memory_order_relaxed); }

DeviceCounters& tally_of(const DeviceRef& device) {
  Tallies& tallies = Tallies::get();
  const std::lock_guard lock(tallies.mutex);
  DeviceCounters& counts = tallies.by_device[{device.kind, device.index}];
  counts.device = {device.kind, DeviceRef::kHere, device.index};
  return counts;
}

void add(DeviceCounters& so_far, const DeviceCounters& more) {
  auto add_to = [](auto& sum, auto n) {
    if (n != 0) std::atomic_ref(sum).fetch_add(n, std::memory_order_relaxed);
  };
  add_to(so_far.kernels, more.kernels);
  add_to(so_far.library_calls, more.library_calls);
  add_to(so_far.collectives, more.collectives);
  add_to(so_far.copies, more.copies);
  add_to(so_far.bytes, more.bytes);
  add_to(so_far.operations, more.operations);
}

Uncounted::Uncounted() : before_(counters()) {
  Tallies& tallies = Tallies::get();
  const std::lock_guard lock(tallies.mutex);
  for (auto& [name, counts] : tallies.by_device) devices_before_.push_back(counts);
}

Uncounted::~Uncounted() {
  counters() = before_;
  Tallies& tallies = Tallies::get();
  const std::lock_guard lock(tallies.mutex);
  for (auto& [name, counts] : tallies.by_device) set_to_zero(counts);
  for (const DeviceCounters& before : devices_before_)
    add(tallies.by_device[{before.device.kind, before.device.index}], before);
}

GlobalCounters GlobalCounters::now() {
  const Context::Use use;
  Context& context = Context::get();
  for (const DeviceRef& device : context.devices()) tally_of(device);
  const Counters all = work_is_counted() ? read_now(counters()) : Counters();
  GlobalCounters now;
  now.kernels = all.kernels;
  now.library_calls = all.library_calls;
  now.collectives = all.collectives;
  now.copies = all.copies;
  now.runs = all.runs;
  now.seconds = 1e-9 * double(all.nanoseconds);
  Tallies& tallies = Tallies::get();
  const std::lock_guard lock(tallies.mutex);
  for (auto& [name, counts] : tallies.by_device) {
    DeviceCounters& device = now.devices.emplace_back(read_now(counts));
    const MemoryStats memory = context.device(device.device).memory();
    device.memory = memory.used;
    device.peak_memory = memory.peak;
    now.operations += device.operations;
    now.bytes += device.bytes;
    now.memory += device.memory;
  }
  return now;
}

void GlobalCounters::reset() {
  counting.store(true, std::memory_order_relaxed);
  set_to_zero(counters());
  Tallies& tallies = Tallies::get();
  const std::lock_guard lock(tallies.mutex);
  for (auto& [name, counts] : tallies.by_device) set_to_zero(counts);
}

}  // namespace tinyshard
