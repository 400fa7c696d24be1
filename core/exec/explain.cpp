// Figures of a plan are sums over its items: bytes that they read, write and send, by kind and by mesh
// axis. Memory is told for each device by the meshes that it is on, and what takes most of it by
// looking at the temporaries that are alive together, as the arena has placed them.
#include "core/exec/explain.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "core/codegen/traffic.h"
#include "core/schedule/memory.h"
#include "multi/link_model.h"

namespace tinyshard {
namespace {

std::string readable(int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// Bytes that each of n devices sends when a collective runs as a ring.
int64_t sent(const Collective& call, int64_t n) {
  double part = double(call.count) * double(itemsize(call.dtype)), others = double(n - 1);
  switch (call.op) {
    case CollectiveOp::AllReduce:
      return int64_t(2 * part * others / double(n));
    case CollectiveOp::AllGather:
    case CollectiveOp::ReduceScatter:
    case CollectiveOp::AllToAll:
      return int64_t(part * others);
    default:
      return int64_t(part);
  }
}

// Bytes that devices send to others in exchanges, by their place along a mesh axis.
using SentByPlace = std::map<int, int64_t>;

void add_sent(SentByPlace& sent, const Item& item) {
  for (const Item::Transfer& t : item.transfers) {
    if (t.from != t.to) sent[t.from] += t.count * int64_t(itemsize(item.collective.dtype));
  }
}

int64_t most(const SentByPlace& sent) {
  int64_t most = 0;
  for (const auto& [place, bytes] : sent) most = std::max(most, bytes);
  return most;
}

// The devices that a plan names, in that order. One of "this process" is any that has its kind and
// number, whatever its rank: plans tell the same on all of them.
class DevicesOfPlan {
 public:
  explicit DevicesOfPlan(const Schedule& schedule) {
    std::vector<Mesh> meshes;
    std::set<int64_t> seen;
    for (const VirtualBuffer& b : schedule.buffers) {
      if (seen.insert(b.mesh.id()).second) meshes.push_back(b.mesh);
    }
    auto has_rank = [](const Mesh& m) { return m.devices()[0].rank != DeviceRef::kHere; };
    std::ranges::stable_partition(meshes, has_rank);
    for (const Mesh& mesh : meshes) {
      for (const DeviceRef& d : mesh.devices()) add(d, of_[mesh.id()]);
    }
  }

  const std::vector<DeviceRef>& refs() const { return refs_; }
  // Their numbers.
  const std::vector<int>& of(const Mesh& mesh) const { return of_.at(mesh.id()); }

 private:
  using Key = std::tuple<std::string, int, int>;

  void add(const DeviceRef& d, std::vector<int>& numbers) {
    if (d.rank == DeviceRef::kHere) {
      const size_t before = numbers.size();
      for (auto same = numbers_.lower_bound(Key(d.kind, d.index, INT_MIN));
           same != numbers_.end() && same->first < Key(d.kind, d.index, INT_MAX); ++same)
        numbers.push_back(same->second);
      if (numbers.size() > before) return;
    }
    auto [number, is_new] = numbers_.emplace(Key(d.kind, d.index, d.rank), int(refs_.size()));
    if (is_new) refs_.push_back(d);
    numbers.push_back(number->second);
  }

  std::vector<DeviceRef> refs_;
  std::map<Key, int> numbers_;
  std::map<int64_t, std::vector<int>> of_;  // by mesh
};

std::vector<DeviceMemory> memory_of_devices(const Schedule& schedule, const std::set<int>& touched,
                                            const DevicesOfPlan& devices) {
  std::vector<DeviceMemory> memory;
  for (const DeviceRef& d : devices.refs()) memory.push_back({d.to_string(), 0, 0});
  std::map<int64_t, std::pair<Mesh, int64_t>> held;  // by mesh
  for (int b : touched) {
    const VirtualBuffer& buffer = schedule.buffers[size_t(b)];
    if (buffer.previous >= 0 || buffer.container >= 0 || !(buffer.storage || buffer.output))
      continue;
    auto there = held.try_emplace(buffer.mesh.id(), buffer.mesh, 0).first;
    there->second.second += buffer.bytes();
  }
  for (const auto& [id, there] : held) {
    for (int d : devices.of(there.first)) memory[size_t(d)].held_bytes += there.second;
  }
  for (const auto& [mesh, end] : arena_ends(schedule)) {
    for (int d : devices.of(mesh))
      memory[size_t(d)].arena_bytes = std::max(memory[size_t(d)].arena_bytes, end);
  }
  return memory;
}

// The temporaries of the device that needs most which are alive together where they take most, equal
// ones counted, largest first.
std::string alive_at_peak(const Schedule& schedule, size_t shown) {
  std::vector<Life> lives = arena_lives(schedule);
  const DevicesOfPlan devices(schedule);
  const std::vector<DeviceMemory> memory = memory_of_devices(schedule, {}, devices);
  const auto largest = std::ranges::max_element(memory, {}, &DeviceMemory::arena_bytes);
  std::erase_if(lives, [&](const Life& life) {
    const std::vector<int>& on = devices.of(schedule.buffers[size_t(life.buffer)].mesh);
    return std::ranges::find(on, int(largest - memory.begin())) == on.end();
  });
  std::vector<int64_t> change(schedule.items.size() + 2);
  for (const Life& life : lives) {
    change[size_t(life.first)] += life.bytes;
    change[size_t(life.last) + 1] -= life.bytes;
  }
  int64_t most = 0, now = 0;
  int peak = 0;
  for (int i = 0; i < int(schedule.items.size()); ++i) {
    now += change[size_t(i)];
    if (now > most) most = now, peak = i;
  }
  struct Group {
    int64_t count = 0, bytes = 0;
  };
  std::map<std::string, Group> groups;
  for (const Life& life : lives) {
    if (life.first > peak || life.last < peak) continue;
    const VirtualBuffer& b = schedule.buffers[size_t(life.buffer)];
    Group& group = groups[fmt::format("{}{} of {}", name(b.dtype), to_string(b.shape),
                                      schedule.items[size_t(life.first)].describe())];
    ++group.count;
    group.bytes += life.bytes;
  }
  std::vector<std::pair<std::string, Group>> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(sorted, {}, [](const auto& g) { return -g.second.bytes; });
  std::string text;
  if (!sorted.empty()) {
    text = fmt::format("alive at item {}, {}\n", peak, schedule.items[size_t(peak)].describe());
  }
  for (size_t i = 0; i < std::min(sorted.size(), shown); ++i) {
    const auto& [what, group] = sorted[i];
    text += fmt::format("  {:>10} {:>4} x {}\n", readable(group.bytes), group.count, what);
  }
  return text;
}

std::string readable_time(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", seconds * 1e6)
         : seconds < 1  ? fmt::format("{:.1f} ms", seconds * 1e3)
                        : fmt::format("{:.1f} s", seconds);
}

// The first of these and how many more there are; each once.
std::string abridged(const std::vector<std::string>& texts, size_t shown) {
  std::vector<std::string> known;
  for (const std::string& t : texts) {
    if (!t.empty() && std::ranges::find(known, t) == known.end()) known.push_back(t);
  }
  std::string text;
  for (size_t i = 0; i < std::min(known.size(), shown); ++i) text += (i ? ", " : "") + known[i];
  if (known.size() > shown) text += fmt::format(" and {} more", known.size() - shown);
  return text;
}

// A line for each collective: bytes, estimated time, op, axis, what for, source line. Equal ones are counted.
std::string movements(const PlanSummary& s) {
  std::vector<std::pair<std::string, int64_t>> lines;
  for (const CollectiveItem& c : s.collective_items) {
    std::string line =
        fmt::format("  {:>10} {:>9}  {} over {}{}{}", readable(c.bytes), readable_time(c.seconds),
                    c.op, c.axis, c.purpose.empty() ? "" : ": " + c.purpose,
                    c.source.empty() ? "" : fmt::format("  ({})", c.source));
    auto same = std::ranges::find(lines, line, &std::pair<std::string, int64_t>::first);
    if (same == lines.end())
      lines.emplace_back(std::move(line), 1);
    else
      ++same->second;
  }
  std::string text;
  for (const auto& [line, count] : lines)
    text += line + (count > 1 ? fmt::format("  x {}\n", count) : "\n");
  return text;
}

}  // namespace

ItemOrigin origin_of_item(const Schedule& schedule, const Item& item) {
  std::vector<std::string> abouts, sources;
  for (int b : item.writes) {
    const Origin& origin = origin_of(schedule.buffers[size_t(b)].origin);
    abouts.push_back(origin.about);
    sources.push_back(origin.source());
  }
  // Of a bucket of gradients it is said once that they are.
  constexpr std::string_view kGradient = "gradient of ";
  const bool gradients =
      std::ranges::all_of(abouts, [&](const std::string& a) { return a.starts_with(kGradient); });
  if (gradients) {
    for (std::string& a : abouts) a.erase(0, kGradient.size());
  }
  ItemOrigin origin{abridged(abouts, 3), abridged(sources, 1)};
  if (gradients && !origin.purpose.empty()) origin.purpose.insert(0, kGradient);
  return origin;
}

namespace {

// A buffer may be several parameters of a kernel, and counts once.
void add_traffic(PlanSummary& s, const Schedule& schedule, const Item& kernel) {
  const std::vector<ParamTraffic> traffic = traffic_of(kernel.kernel);
  std::map<int, ParamTraffic> of_buffers;
  for (size_t slot = 0; slot < traffic.size(); ++slot) {
    ParamTraffic& sum = of_buffers[kernel.buffers[slot]];
    sum.bytes_read += traffic[slot].bytes_read;
    sum.bytes_written += traffic[slot].bytes_written;
  }
  for (const auto& [buffer, sum] : of_buffers) {
    const int64_t whole = schedule.buffers[size_t(buffer)].bytes();
    s.bytes_read += std::min(sum.bytes_read, whole);
    s.bytes_written += std::min(sum.bytes_written, whole);
  }
}

}  // namespace

PlanSummary summarize(const Schedule& schedule) {
  PlanSummary s;
  LinkModel links;
  std::set<int> touched;
  std::map<std::pair<int64_t, int>, SentByPlace> exchanged;  // by mesh and axis
  for (const Item& item : schedule.items) {
    for (int b : item.reads) touched.insert(b);
    for (int b : item.writes) touched.insert(b);
    s.devices = std::max(s.devices, item.mesh.size());
    switch (item.kind) {
      case Item::Kind::Kernel:
        ++s.kernels;
        break;
      case Item::Kind::Library:
        ++s.library_calls;
        break;
      case Item::Kind::Copy:
        ++s.copies;
        break;
      case Item::Kind::Collective: {
        const MeshAxis& axis = item.mesh.axes()[size_t(item.mesh_axis)];
        int64_t bytes = 0;
        if (item.transfers.empty()) {
          s.collective_bytes += bytes = sent(item.collective, axis.size);
        } else {
          SentByPlace alone;
          add_sent(alone, item);
          add_sent(exchanged[{item.mesh.id(), item.mesh_axis}], item);
          bytes = most(alone);
        }
        ++s.collectives;
        s.collective_kinds[fmt::format("{} over {}", name(item.collective.op), axis.name)] += bytes;
        ItemOrigin origin = origin_of_item(schedule, item);
        const double seconds =
            links.seconds_of(item.transfers.empty() ? item.collective.op : CollectiveOp::AllToAll,
                             double(bytes), item.mesh, item.mesh_axis);
        s.collective_items.push_back({std::string(name(item.collective.op)), axis.name, bytes,
                                      origin.purpose, origin.source, seconds});
        continue;
      }
    }
    if (item.kind == Item::Kind::Kernel) {
      add_traffic(s, schedule, item);
      continue;
    }
    for (int b : item.reads) s.bytes_read += schedule.buffers[size_t(b)].bytes();
    for (int b : item.writes) s.bytes_written += schedule.buffers[size_t(b)].bytes();
  }
  // One device may send most in one exchange, another one in the next.
  for (const auto& [axis, bytes] : exchanged) s.collective_bytes += most(bytes);
  s.memory = memory_of_devices(schedule, touched, DevicesOfPlan(schedule));
  const auto fullest = std::ranges::max_element(s.memory, {}, &DeviceMemory::peak_bytes);
  if (fullest == s.memory.end()) return s;
  s.held_bytes = fullest->held_bytes;
  s.arena_bytes = fullest->arena_bytes;
  return s;
}

std::string explain(const Schedule& schedule, bool items) {
  PlanSummary s = summarize(schedule);
  std::string text;
  if (items) {
    for (const std::string& line : schedule.lines()) text += line + "\n";
  }
  text += fmt::format("devices          {}\n", s.devices);
  text += fmt::format("items            {} kernels, {} library calls, {} collectives, {} copies\n",
                      s.kernels, s.library_calls, s.collectives, s.copies);
  text += fmt::format("memory traffic   {} read, {} written, per device\n", readable(s.bytes_read),
                      readable(s.bytes_written));
  text += fmt::format("communication    {} sent by each device\n", readable(s.collective_bytes));
  for (const auto& [kind, bytes] : s.collective_kinds)
    text += fmt::format("  {:<24} {}\n", kind, readable(bytes));
  text += items ? movements(s) : "";
  text += fmt::format("peak memory      {} per device: {} held, {} temporary\n",
                      readable(s.peak_bytes()), readable(s.held_bytes), readable(s.arena_bytes));
  if (items) text += alive_at_peak(schedule, 24);
  return text;
}

std::string largest_values(const Schedule& schedule) {
  constexpr size_t kShown = 8;
  std::vector<const VirtualBuffer*> storages;
  int64_t bytes = 0;
  for (const VirtualBuffer& b : schedule.buffers) {
    if (!b.storage || b.previous >= 0) continue;
    storages.push_back(&b);
    bytes += b.bytes();
  }
  std::ranges::stable_sort(storages, {}, [](const VirtualBuffer* b) { return -b->bytes(); });
  std::string text = fmt::format("{} storages hold {}\n", storages.size(), readable(bytes));
  for (size_t i = 0; i < std::min(storages.size(), kShown); ++i) {
    const VirtualBuffer& b = *storages[i];
    const std::string& label = static_cast<const Placed*>(b.storage.get())->label;
    text += fmt::format("  {:>10}  {}{}{}\n", readable(b.bytes()), name(b.dtype),
                        to_string(b.shape), label.empty() ? "" : " " + label);
  }
  text += fmt::format("temporaries take {}; ", readable(schedule.arena_bytes));
  return text + alive_at_peak(schedule, kShown);
}

}  // namespace tinyshard
