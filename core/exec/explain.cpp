#include "core/exec/explain.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "core/schedule/memory.h"

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

// The temporaries that are alive together where they take most, equal ones counted, largest first.
std::string alive_at_peak(const Schedule& schedule) {
  std::vector<Life> lives = arena_lives(schedule);
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
  constexpr size_t kShown = 24;
  std::string text;
  if (!sorted.empty()) {
    text = fmt::format("alive at item {}, {}\n", peak, schedule.items[size_t(peak)].describe());
  }
  for (size_t i = 0; i < std::min(sorted.size(), kShown); ++i) {
    const auto& [what, group] = sorted[i];
    text += fmt::format("  {:>10} {:>4} x {}\n", readable(group.bytes), group.count, what);
  }
  return text;
}

}  // namespace

PlanSummary summarize(const Schedule& schedule) {
  PlanSummary s;
  std::set<int> touched;
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
        int64_t bytes = sent(item.collective, axis.size);
        ++s.collectives;
        s.collective_bytes += bytes;
        s.collective_kinds[fmt::format("{} over {}", name(item.collective.op), axis.name)] += bytes;
        continue;
      }
    }
    for (int b : item.reads) s.bytes_read += schedule.buffers[size_t(b)].bytes();
    for (int b : item.writes) s.bytes_written += schedule.buffers[size_t(b)].bytes();
  }
  for (int b : touched) {
    const VirtualBuffer& buffer = schedule.buffers[size_t(b)];
    if (buffer.previous < 0 && buffer.container < 0 && (buffer.storage || buffer.output))
      s.held_bytes += buffer.bytes();
  }
  s.arena_bytes = schedule.arena_bytes;
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
  text += fmt::format("peak memory      {} per device: {} held, {} temporary\n",
                      readable(s.peak_bytes()), readable(s.held_bytes), readable(s.arena_bytes));
  if (items) text += alive_at_peak(schedule);
  return text;
}

}  // namespace tinyshard
