// Each device has an arena of its own, and a buffer has one offset in the arenas of all devices of
// its mesh. So buffers get in each other's way where their meshes have a device in common:
//
//   on CPU:0 and CPU:1     a [0, 64)   b [64, 128)
//   on CPU:2 and CPU:3     c [0, 64)               beside a and b, in the same bytes of other arenas
#include "core/schedule/memory.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>

namespace tinyshard {
namespace {

constexpr int64_t kArenaAlignment = 64;

int64_t aligned(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

}  // namespace

// Paths are halved as they are walked, so thousands of versions of one storage are no long way.
int earliest_version(const std::vector<VirtualBuffer>& buffers, int buffer) {
  auto earlier = [&](int b) {
    const VirtualBuffer& v = buffers[size_t(b)];
    return v.earlier >= 0 ? v.earlier : v.previous;
  };
  for (int next = earlier(buffer); next >= 0; next = earlier(buffer)) {
    if (int beyond = earlier(next); beyond >= 0) buffers[size_t(buffer)].earlier = next = beyond;
    buffer = next;
  }
  return buffer;
}

int memory_holder(const std::vector<VirtualBuffer>& buffers, int buffer) {
  for (;;) {
    buffer = earliest_version(buffers, buffer);
    if (buffers[size_t(buffer)].container < 0) return buffer;
    buffer = buffers[size_t(buffer)].container;
  }
}

std::vector<Life> arena_lives(const Schedule& schedule) {
  std::vector<Life> lives(schedule.buffers.size());
  for (int b = 0; b < int(lives.size()); ++b)
    lives[b] = {b, aligned(schedule.buffers[b].bytes()), -1, -1};
  auto touch = [&](int b, int item) {
    Life& life = lives[memory_holder(schedule.buffers, b)];
    if (life.first < 0) life.first = item;
    life.last = std::max(life.last, item);
  };
  auto touch_all = [&](const Item& item, int at) {
    for (int b : item.reads) touch(b, at);
    for (int b : item.writes) touch(b, at);
  };
  // A collective works on its buffers until somebody waits for it, which may be the end of the run.
  std::vector<bool> awaited(schedule.items.size());
  for (int i = 0; i < int(schedule.items.size()); ++i) {
    const Item& item = schedule.items[i];
    touch_all(item, i);
    for (int w : item.waits) {
      touch_all(schedule.items[w], i);
      awaited[w] = true;
    }
  }
  for (int i = 0; i < int(schedule.items.size()); ++i) {
    if (schedule.items[i].kind != Item::Kind::Collective || awaited[i]) continue;
    touch_all(schedule.items[i], int(schedule.items.size()));
  }
  std::erase_if(lives, [&](const Life& life) {
    const VirtualBuffer& b = schedule.buffers[life.buffer];
    bool inside = b.previous >= 0 || b.container >= 0;
    return life.first < 0 || b.storage || b.output || inside || life.bytes == 0;
  });
  return lives;
}

namespace {

// A device of "this process" is taken for that of each rank: plans are the same on all of them.
bool may_be_same(const DeviceRef& a, const DeviceRef& b) {
  return a.kind == b.kind && a.index == b.index &&
         (a.rank == b.rank || a.rank == DeviceRef::kHere || b.rank == DeviceRef::kHere);
}

bool is_on(const Mesh& mesh, const DeviceRef& device) {
  return std::ranges::any_of(mesh.devices(),
                             [&](const DeviceRef& d) { return may_be_same(d, device); });
}

// Which meshes have a device in common, by numbers of meshes, as many pairs of buffers are asked
// about.
class Neighbors {
 public:
  int number_of(const Mesh& mesh) {
    auto [known, is_new] = numbers_.try_emplace(mesh.id(), int(meshes_.size()));
    if (!is_new) return known->second;
    meshes_.push_back(mesh);
    meet_.emplace_back();
    for (size_t other = 0; other < meshes_.size(); ++other) {
      const bool meets =
          meshes_[other] == mesh || std::ranges::any_of(mesh.devices(), [&](const DeviceRef& d) {
            return is_on(meshes_[other], d);
          });
      meet_.back().push_back(meets);
      if (other + 1 < meshes_.size()) meet_[other].push_back(meets);
    }
    return known->second;
  }
  // Returns for each numbered mesh whether it has a device of this one.
  const std::vector<uint8_t>& of(int mesh) const { return meet_[size_t(mesh)]; }

 private:
  std::map<int64_t, int> numbers_;  // by mesh
  std::vector<Mesh> meshes_;
  std::vector<std::vector<uint8_t>> meet_;
};

struct Layout {
  int64_t bytes = 0;                             // that all take
  std::vector<std::pair<int, int64_t>> offsets;  // of buffers
};

// Largest first, each at the lowest offset that is free during its life: simple, and within a few
// per cent of the best on training steps. Nothing as soon as they take more than `most` bytes.
std::optional<Layout> place(std::vector<Life> todo, const std::vector<VirtualBuffer>& buffers,
                            int64_t most = std::numeric_limits<int64_t>::max()) {
  Layout layout;
  Neighbors neighbors;
  std::ranges::sort(todo, {}, [](const Life& l) { return std::pair(-l.bytes, l.buffer); });
  // A placed life, with all that the loop below reads: it looks at every placed one for each new
  // life, so the list is kept small and contiguous.
  struct Place {
    int first, last;
    int64_t begin, end;
    int mesh;
  };
  std::vector<Place> places;  // by where they begin
  places.reserve(todo.size());
  for (const Life& life : todo) {
    const int mesh = neighbors.number_of(buffers[life.buffer].mesh);
    const std::vector<uint8_t>& meets = neighbors.of(mesh);
    int64_t offset = 0;
    for (const Place& other : places) {
      if (other.last < life.first || life.last < other.first || !meets[size_t(other.mesh)])
        continue;
      if (offset + life.bytes <= other.begin) break;
      offset = std::max(offset, other.end);
    }
    layout.offsets.emplace_back(life.buffer, offset);
    layout.bytes = std::max(layout.bytes, offset + life.bytes);
    if (layout.bytes > most) return std::nullopt;
    places.insert(std::ranges::upper_bound(places, offset, {}, &Place::begin),
                  {life.first, life.last, offset, offset + life.bytes, mesh});
  }
  return layout;
}

}  // namespace

std::vector<std::pair<Mesh, int64_t>> arena_ends(const Schedule& schedule) {
  std::vector<std::pair<Mesh, int64_t>> ends;
  for (const VirtualBuffer& b : schedule.buffers) {
    if (b.arena_offset < 0) continue;
    auto known = std::ranges::find(ends, b.mesh, &std::pair<Mesh, int64_t>::first);
    if (known == ends.end()) known = ends.insert(known, {b.mesh, 0});
    known->second = std::max(known->second, b.arena_offset + aligned(b.bytes()));
  }
  return ends;
}

int64_t arena_bytes_on(const Schedule& schedule, const DeviceRef& device) {
  int64_t bytes = 0;
  for (const auto& [mesh, end] : arena_ends(schedule)) {
    if (is_on(mesh, device)) bytes = std::max(bytes, end);
  }
  return bytes;
}

void plan_memory(Schedule& schedule, int64_t spare) {
  const std::vector<Life> lives = arena_lives(schedule);
  Layout best = *place(lives, schedule.buffers);
  const int64_t most = best.bytes + spare;
  for (int beside : {int(schedule.items.size()), kBeside}) {
    if (spare <= 0) break;
    std::vector<Life> longer = lives;
    for (Life& life : longer) life.last += beside;
    auto layout = place(std::move(longer), schedule.buffers, most);
    if (!layout) continue;
    best = std::move(*layout);
    break;
  }
  schedule.arena_bytes = best.bytes;
  for (const auto& [buffer, offset] : best.offsets)
    schedule.buffers[size_t(buffer)].arena_offset = offset;
}

}  // namespace tinyshard
