// A schedule describes itself here; storages that are written over too early are copied.
#include "core/schedule/schedule.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/meshes.h"
#include "core/schedule/schedule_state.h"
#include "core/schedule/steps.h"

namespace tinyshard {
namespace {

// All values of storages that another one is written over.
std::vector<UOp> overwritten_values(const Graph& graph) {
  std::vector<UOp> values;
  for (const UOp& x : graph.order()) {
    if (x.op() == Op::Assign) values.push_back(x.src(0));
  }
  return values;
}

// The graph in which every read of these values sees a copy made before they are overwritten:
//   %1 = assign %0 a    %2 = assign %1 (%1 + 1)    %3 = %2 + %1 * 2
// becomes, for %1,
//   %1 = assign %0 a    %4 = contiguous %1    %2 = assign %1 (%4 + 1)    %3 = %2 + %4 * 2
std::vector<UOp> read_copies(const Graph& graph, const std::vector<UOp>& values) {
  NodeMap<bool> listed(values.size());
  for (const UOp& x : values) listed[x] = true;
  NodeMap<UOp> stored,
      read;  // what stands for a node where it is written over, and where it is read
  for (const UOp& x : graph.order()) {
    std::vector<UOp> src;
    for (size_t i = 0; i < x->src().size(); ++i) {
      bool target = x.op() == Op::Assign && i == 0;
      src.push_back((target ? stored : read).at(x.src(i)));
    }
    UOp same = x.with_src(src);
    stored[x] = same;
    read[x] = listed.contains(x) ? UOp::make(Op::Contiguous, x.dtype(), {same}) : same;
  }
  std::vector<UOp> result;
  for (const UOp& root : graph.roots()) result.push_back(stored.at(root));
  return result;
}

}  // namespace

Schedule make_schedule(const Graph& asked, std::span<const Sharding> shardings,
                       const ScheduleOptions& options) {
  Graph graph = asked;
  graph.become(one_mesh_each(graph, shardings));
  constexpr int kAttempts = 4;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // Copies of all leave no circle: a copy waits only for those who wrote what it reads.
    if (attempt + 1 == kAttempts) graph.become(read_copies(graph, overwritten_values(graph)));
    ScheduleState state(graph, shardings, options);
    run_schedule_steps(state);
    if (!state.is_stuck()) return std::move(state.schedule);
    graph.become(read_copies(graph, state.needed_later));
  }
  throw InternalError("copies of overwritten storages leave no circle");
}

std::string Item::describe() const {
  switch (kind) {
    case Kind::Kernel:
      return fmt::format("kernel {} ({} in, {} out)", kernel.name, reads.size(), writes.size());
    case Kind::Library:
      return fmt::format("library {}", tinyshard::describe(*call.node));
    case Kind::Collective:
      if (!transfers.empty()) {
        return fmt::format("#{} {} {} in {} transfers of at most {} on axis {}", sequence,
                           tinyshard::name(collective.op), tinyshard::name(collective.dtype),
                           transfers.size(),
                           std::ranges::max(transfers, {}, &Transfer::count).count, mesh_axis);
      }
      return fmt::format("#{} {}{} on axis {}", sequence, tinyshard::describe(collective),
                         pieces.empty() ? "" : fmt::format(" in {} pieces", pieces.size()),
                         mesh_axis);
    case Kind::Copy:
      return fmt::format("copy {}", tinyshard::describe(*call.node));
  }
  return {};
}

namespace {

template <class PlaceText>
std::vector<std::string> lines_of(const Schedule& schedule, const PlaceText& place_text) {
  std::vector<std::string> lines;
  for (const Item& item : schedule.items) {
    std::string line = item.describe() + " " + place_text(item.mesh);
    for (int b : item.buffers) {
      const VirtualBuffer& buffer = schedule.buffers[size_t(b)];
      line += fmt::format(" {}{}", name(buffer.dtype), to_string(buffer.shape));
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

// A place as all ranks name it. A device of a rank's own mesh bears the number of that rank, which
// nothing tells from a device of one mesh that all ranks share: so ranks are left out, as they are in
// the names of meshes of several devices.
std::string name_on_all_ranks(const Mesh& mesh) {
  if (!mesh.is_single()) return mesh.to_string();
  DeviceRef device = mesh.devices()[0];
  device.rank = DeviceRef::kHere;
  return device.to_string();
}

}  // namespace

std::vector<std::string> Schedule::lines() const {
  return lines_of(*this, [](const Mesh& mesh) { return mesh.to_string(); });
}

std::vector<std::string> Schedule::details() const {
  std::vector<std::string> texts = lines_of(*this, name_on_all_ranks);
  for (size_t i = 0; i < items.size(); ++i) {
    texts[i] += "\nbuffers";
    for (int b : items[i].buffers) texts[i] += fmt::format(" {}", b);
    for (const Item::Transfer& t : items[i].transfers)
      texts[i] += fmt::format("\n{} sends {} to {}", t.from, t.count, t.to);
    if (items[i].kind == Item::Kind::Kernel)
      texts[i] += "\n" + print(std::span(&items[i].kernel.sink, 1));
  }
  return texts;
}

uint64_t Schedule::hash() const {
  uint64_t h = items.size();
  for (const Item& item : items) {
    if (item.kind == Item::Kind::Kernel) {
      h = combine(h, structural_hash(std::span(&item.kernel.sink, 1)));
    }
    for (int b : item.buffers) h = combine(h, uint64_t(b));
    for (const Item::Transfer& t : item.transfers)
      h = combine(combine(combine(h, uint64_t(t.from)), uint64_t(t.to)), uint64_t(t.count));
  }
  for (const std::string& line : lines_of(*this, name_on_all_ranks)) h = hash_text(line, h);
  return h;
}

}  // namespace tinyshard
