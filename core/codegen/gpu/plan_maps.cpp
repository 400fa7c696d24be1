// Elementwise kernels: a nest without shared sections comes in, its items leave with lanes, chunks and
// blocks, or as tiles. Example: x + y over 1,000,003 f32 becomes two works, 250,000 vectors of four and
// the three elements that are left.
#include <cstdlib>
#include <limits>
#include <optional>

#include "core/codegen/gpu/planner.h"

namespace tinyshard::codegen::gpu {
namespace {

constexpr int64_t kShortMap = 4096;  // elements that are not worth a vector and a rest

class Maps {
 public:
  Maps(const PlanContext& context, Work work) : c_(context), work_(std::move(work)) {}

  std::vector<Work> plan() {
    if (!tile()) map();
    std::vector<Work> works{std::move(work_)};
    if (rest_) works.push_back(std::move(*rest_));
    return works;
  }

 private:
  void map() {
    Space& items = work_.items.space;
    if (items.ranges.empty()) {
      spread();
      return;
    }
    int range = items.ranges.back();
    items.lanes = c_.accesses.lanes_along(range);
    // A single long loop of odd length becomes whole vectors, and what is left on its own.
    int64_t size = c_.graph.range(range).size;
    int wide =
        items.ranges.size() == 1 && size > kShortMap ? c_.accesses.lanes_along(range, false) : 1;
    if (wide > items.lanes) {
      rest_ = work_;
      Space& rest = rest_->items.space;
      rest.lanes = 1;
      rest.steps = size % wide;
      rest.begin = size - rest.steps;
      rest_->teams = c_.warp;
      items.lanes = wide;
    }
    c_.count(items);
    spread();
  }

  // Enough bytes in flight for each thread, enough threads for all multiprocessors.
  void spread() {
    Space& items = work_.items.space;
    int64_t loads = 0;
    for (int access : c_.accesses.all()) loads += c_.graph[access].op == Op::Load;
    int64_t wanted = int64_t{c_.target.multiprocessors} * 2 * kThreadsOfMultiprocessor;
    int64_t most = std::clamp<int64_t>(4 / std::max<int64_t>(1, loads), 1, 4);
    if (items.lanes == 1) most *= 2;
    items.chunks = static_cast<int>(std::clamp<int64_t>(items.steps / wanted, 1, most));
    items.chunks = static_cast<int>(
        std::min<int64_t>(c_.leaning.lean(items.chunks, c_.leaning.chunks), items.steps));
    work_.teams = static_cast<int>(c_.leaning.lean(kBlock, c_.leaning.threads));
    while (work_.teams > c_.warp &&
           items.steps <= int64_t{work_.teams} * c_.target.multiprocessors / 2)
      work_.teams /= 2;
  }

  // Loads or stores that are contiguous along another loop than the rest.
  bool tile() {
    Space& items = work_.items.space;
    Tile t;
    if (items.ranges.size() < 2) return false;
    t.along = items.ranges.back();
    if (c_.accesses.contiguity(t.along) == 0) return false;
    RangeSet all = 0;
    for (int r : items.ranges) all |= bit(r);
    for (const FixedLoop& loop : work_.fixed) all |= bit(loop.range);
    int64_t widest = 1;
    std::vector<int> direct;
    for (int access : c_.accesses.all()) {
      const bool store = c_.graph[access].op == Op::Store;
      if (store && c_.graph[access].varies != all) return false;
      direct.push_back(access);
      int index = c_.graph.source(access, 1);
      auto stride = c_.graph.lane_stride(index, t.along, 2);
      if (c_.graph[index].has_load || !stride || std::abs(*stride) < 2) continue;
      for (int r : items.ranges) {
        if (r == t.along || !c_.accesses.contiguous(access, r) || (t.across >= 0 && t.across != r))
          continue;
        const RangeSet both = bit(t.along) | bit(r);
        if (store && (c_.graph[c_.graph.source(access, 2)].varies & both) != both) continue;
        t.across = r;
        t.staged.push_back(access);
        direct.pop_back();
        widest = std::max(widest, c_.accesses.bytes(access));
        break;
      }
    }
    if (t.staged.empty()) return false;
    int64_t along = c_.graph.range(t.along).size, across = c_.graph.range(t.across).size;
    if (along < 16 || across < 16) return false;
    constexpr int64_t kMostPlaces = std::numeric_limits<int32_t>::max() - 64;  // of 32 bits each
    if (along > kMostPlaces || across > kMostPlaces) return false;
    int64_t room = c_.target.shared_bytes / (static_cast<int64_t>(t.staged.size()) * widest);
    for (t.edge = 64; t.edge > 32 && int64_t{t.edge} * (t.edge + 2) > room;) t.edge /= 2;
    if (int64_t{t.edge} * (t.edge + 2) > room) return false;
    while (t.edge > 32 && (along < t.edge || across < t.edge)) t.edge /= 2;
    int most = t.edge * t.edge / kBlock;  // elements of a thread
    auto lanes = [&](std::span<const int> accesses, int range) {
      return std::min({c_.accesses.lanes_along(accesses, range), most, t.edge / 4});
    };
    t.lanes_along = lanes(direct, t.along);
    t.lanes_across = lanes(t.staged, t.across);
    std::erase(items.ranges, t.along);
    std::erase(items.ranges, t.across);
    c_.count(items);
    work_.teams = kBlock;
    work_.blocks = items.steps * divide_up(along, t.edge) * divide_up(across, t.edge);
    work_.tile = std::move(t);
    return true;
  }

  const PlanContext& c_;
  Work work_;
  std::optional<Work> rest_;
};

}  // namespace

std::vector<Work> plan_maps(const PlanContext& context, Work work) {
  return Maps(context, std::move(work)).plan();
}

}  // namespace tinyshard::codegen::gpu
