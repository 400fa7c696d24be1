// Figures of a plan are sums over its items: bytes that they read, write and send, by kind and by
// mesh axis, and memory, told for each device by the meshes that it is on. What takes most memory
// is found by looking at the temporaries that are alive together, as the arena has placed them.
#include "core/exec/explain.h"

#include <algorithm>
#include <climits>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include <fmt/format.h>

#include "core/codegen/operations.h"
#include "core/codegen/traffic.h"
#include "core/exec/workspaces.h"
#include "core/schedule/memory.h"
#include "core/uop/args.h"
#include "multi/estimate.h"
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
    for (const Item& item : schedule.items) {  // an exchange between meshes has one of all devices
      if (seen.insert(item.mesh.id()).second) meshes.push_back(item.mesh);
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
  for (const DeviceRef& d : devices.refs()) memory.push_back({.device = d.to_string()});
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
  for (const auto& [mesh, bytes] : workspaces_of(schedule)) {
    for (int d : devices.of(mesh)) memory[size_t(d)].workspace_bytes += bytes;
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
  // A bucket of gradients says once that they are gradients.
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
ItemWork work_of_kernel(const Schedule& schedule, const Item& kernel) {
  const std::vector<ParamTraffic> traffic = traffic_of(kernel.kernel);
  std::map<int, ParamTraffic> of_buffers;
  for (size_t slot = 0; slot < traffic.size(); ++slot) {
    ParamTraffic& sum = of_buffers[kernel.buffers[slot]];
    sum.bytes_read += traffic[slot].bytes_read;
    sum.bytes_written += traffic[slot].bytes_written;
  }
  ItemWork work{.operations = operations_of(kernel.kernel)};
  for (const auto& [buffer, sum] : of_buffers) {
    const int64_t whole = schedule.buffers[size_t(buffer)].bytes();
    work.bytes_read += std::min(sum.bytes_read, whole);
    work.bytes_written += std::min(sum.bytes_written, whole);
  }
  return work;
}

double operations_of_call(const LibraryCall& call) {
  const UOp& x = call.node;
  return x.op() == Op::ScatterAdd ? double(x.src(0)->numel()) : operations_of(x);
}

// Tells whether a call changes what a storage holds where that lies: a scatter leaves all rows alone that
// its index does not name.
bool scatters_in_place(const Schedule& schedule, const Item& item) {
  if (item.call.node.op() != Op::ScatterAdd || item.buffers.size() < 4) return false;
  return earliest_version(schedule.buffers, item.buffers[2]) ==
         earliest_version(schedule.buffers, item.buffers.back());
}

// Each entry has a row of its own, at most.
ItemWork work_of_scatter_in_place(const Schedule& schedule, const Item& item) {
  auto bytes = [&](size_t i) { return schedule.buffers[size_t(item.buffers[i])].bytes(); };
  const int64_t rows = std::min(bytes(1), bytes(2));
  const bool reads = !scatter_arg(*item.call.node).writes;
  return {.bytes_read = bytes(0) + bytes(1) + (reads ? rows : 0),
          .bytes_written = rows,
          .operations = operations_of_call(item.call)};
}

std::string readable_operations(double operations) {
  static constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  int unit = 0;
  for (; operations >= 1000 && unit < 5; ++unit) operations /= 1000;
  return unit == 0 ? fmt::format("{:.0f}", operations)
                   : fmt::format("{:.1f} {}", operations, kUnits[unit]);
}

// The bytes that each device reads, writes and sends, and its arithmetic. All devices of a mesh do the same there, but
// for exchanges and copies. A device that is on several meshes does the work of all of them; stages
// of a pipeline have devices and meshes of their own, so their bytes do not add up.
class TrafficOfDevices {
 public:
  TrafficOfDevices(const Schedule& schedule, const DevicesOfPlan& devices)
      : schedule_(schedule), devices_(devices), of_devices_(devices.refs().size()) {}

  void add_item(const Item& item) {
    auto& there = of_meshes_.try_emplace(item.mesh.id(), item.mesh, Traffic()).first->second.second;
    const ItemWork work = work_of(schedule_, item);
    there.read += work.bytes_read;
    there.written += work.bytes_written;
    there.operations += work.operations;
    if (item.kind == Item::Kind::Copy) add_copy(item);
  }
  void add_collective(const Item& item, const std::string& kind, int64_t bytes) {
    if (item.transfers.empty()) {
      of_meshes_.try_emplace(item.mesh.id(), item.mesh, Traffic())
          .first->second.second.sent[kind] += bytes;
      return;
    }
    auto key = std::tuple(item.mesh.id(), item.mesh_axis, kind);
    add_sent(exchanged_.try_emplace(key, item.mesh, SentByPlace()).first->second.second, item);
  }

  // Tells each figure as that of the device which has most.
  void tell(PlanSummary& s) {
    for (const auto& [id, there] : of_meshes_) {
      for (int d : devices_.of(there.first)) of_devices_[size_t(d)] += there.second;
    }
    for (const auto& [key, there] : exchanged_) {
      const auto& [id, axis, kind] = key;
      const auto& [mesh, by_place] = there;
      const std::vector<int>& on = devices_.of(mesh);
      for (size_t i = 0; i < on.size(); ++i) {
        if (int64_t(i) >= mesh.size()) break;
        const auto sent = by_place.find(int(mesh.coordinates(int64_t(i))[size_t(axis)]));
        of_devices_[size_t(on[i])].sent[kind] += sent == by_place.end() ? 0 : sent->second;
      }
    }
    for (const Traffic& t : of_devices_) {
      s.bytes_read = std::max(s.bytes_read, t.read);
      s.bytes_written = std::max(s.bytes_written, t.written);
      s.operations = std::max(s.operations, t.operations);
      int64_t all = 0;
      for (const auto& [kind, bytes] : t.sent) {
        all += bytes;
        int64_t& most = s.collective_kinds[kind];
        most = std::max(most, bytes);
      }
      s.collective_bytes = std::max(s.collective_bytes, all);
    }
  }

 private:
  struct Traffic {
    int64_t read = 0, written = 0;
    double operations = 0;
    std::map<std::string, int64_t> sent;  // by kind
    void operator+=(const Traffic& other) {
      read += other.read;
      written += other.written;
      operations += other.operations;
      for (const auto& [kind, bytes] : other.sent) sent[kind] += bytes;
    }
  };

  // Counts a copy that each device gets from the device at its place on another mesh, as from a
  // stage of a pipeline to the next. Copies of a value of one device to the devices of a mesh are
  // no communication of the mesh.
  void add_copy(const Item& item) {
    const Mesh& source = schedule_.buffers[size_t(item.buffers.front())].mesh;
    const int64_t bytes = schedule_.buffers[size_t(item.buffers.back())].bytes();
    const std::vector<int>&from = devices_.of(source), &to = devices_.of(item.mesh);
    if (from.size() != to.size()) return;
    for (size_t i = 0; i < from.size(); ++i) {
      if (from[i] != to[i]) of_devices_[size_t(from[i])].sent["copy between meshes"] += bytes;
    }
  }

  const Schedule& schedule_;
  const DevicesOfPlan& devices_;
  std::map<int64_t, std::pair<Mesh, Traffic>> of_meshes_;
  std::map<std::tuple<int64_t, int, std::string>, std::pair<Mesh, SentByPlace>> exchanged_;
  std::vector<Traffic> of_devices_;
};

}  // namespace

ItemWork work_of(const Schedule& schedule, const Item& item) {
  if (item.kind == Item::Kind::Kernel) return work_of_kernel(schedule, item);
  if (item.kind == Item::Kind::Library && scatters_in_place(schedule, item))
    return work_of_scatter_in_place(schedule, item);
  ItemWork work;
  for (int b : item.reads) work.bytes_read += schedule.buffers[size_t(b)].bytes();
  for (int b : item.writes) work.bytes_written += schedule.buffers[size_t(b)].bytes();
  if (item.kind == Item::Kind::Library) {
    work.operations = operations_of_call(item.call);
    for (const UOp& also : item.call.also) {
      if (also.op() == Op::AttentionBackward) work.operations += operations_of(also);
    }
  }
  return work;
}

std::string told(const ItemWork& work) {
  std::string bytes = readable(work.bytes_read + work.bytes_written);
  if (work.operations == 0) return bytes;
  return fmt::format("{}, {} operations", bytes, readable_operations(work.operations));
}

std::string told(const ItemWork& work, double seconds) {
  const auto bytes = work.bytes_read + work.bytes_written;
  const double per_ns = 1e-9 / std::max(seconds, 1e-9);
  std::string text = fmt::format("{}, {:.1f} GB/s", readable(bytes), double(bytes) * per_ns);
  if (work.operations > 0) text += fmt::format(", {:.1f} GFLOPS", work.operations * per_ns);
  return text;
}

PlanSummary summarize(const Schedule& schedule) {
  PlanSummary s;
  LinkModel links;
  std::set<int> touched;
  const DevicesOfPlan devices(schedule);
  TrafficOfDevices traffic(schedule, devices);
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
          bytes = sent(item.collective, axis.size);
        } else {
          SentByPlace alone;
          add_sent(alone, item);
          bytes = most(alone);
        }
        ++s.collectives;
        traffic.add_collective(item, fmt::format("{} over {}", name(item.collective.op), axis.name),
                               bytes);
        ItemOrigin origin = origin_of_item(schedule, item);
        const double seconds =
            links.seconds_of(item.transfers.empty() ? item.collective.op : CollectiveOp::AllToAll,
                             double(bytes), item.mesh, item.mesh_axis);
        s.collective_items.push_back({std::string(name(item.collective.op)), axis.name, bytes,
                                      origin.purpose, origin.source, seconds});
        continue;
      }
    }
    traffic.add_item(item);
  }
  traffic.tell(s);
  s.memory = memory_of_devices(schedule, touched, devices);
  const auto fullest = std::ranges::max_element(s.memory, {}, &DeviceMemory::peak_bytes);
  if (fullest == s.memory.end()) return s;
  s.held_bytes = fullest->held_bytes;
  s.arena_bytes = fullest->arena_bytes;
  s.workspace_bytes = fullest->workspace_bytes;
  return s;
}

std::string explain(const Schedule& schedule, bool items) {
  PlanSummary s = summarize(schedule);
  std::string text;
  if (items) {
    const std::vector<std::string> lines = schedule.lines();
    for (size_t i = 0; i < lines.size(); ++i)
      text += fmt::format("{}  {}\n", lines[i], told(work_of(schedule, schedule.items[i])));
  }
  text += fmt::format("devices          {}\n", s.devices);
  text += fmt::format("items            {} kernels, {} library calls, {} collectives, {} copies\n",
                      s.kernels, s.library_calls, s.collectives, s.copies);
  text += fmt::format("memory traffic   {} read, {} written, per device\n", readable(s.bytes_read),
                      readable(s.bytes_written));
  text += fmt::format("arithmetic       {} operations, per device\n",
                      readable_operations(s.operations));
  text += fmt::format("communication    {} sent by each device\n", readable(s.collective_bytes));
  for (const auto& [kind, bytes] : s.collective_kinds)
    text += fmt::format("  {:<24} {}\n", kind, readable(bytes));
  text += items ? movements(s) : "";
  text += fmt::format("peak memory      {} per device: {} held, {} temporary{}\n",
                      readable(s.peak_bytes()), readable(s.held_bytes), readable(s.arena_bytes),
                      s.workspace_bytes == 0
                          ? ""
                          : ", " + readable(s.workspace_bytes) + " workspaces of library calls");
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
