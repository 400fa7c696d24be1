#include "core/exec/explain.h"

#include <set>

#include <fmt/format.h>

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
  return text;
}

}  // namespace tinyshard
