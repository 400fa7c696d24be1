// Shares the sections of a work, folds and the loops behind the items, among the threads of a team.
//
// Neighbouring threads go along the dim in which memory is contiguous. Rows, where that is the
// sections', are given as many threads as hold their part of the row in registers, so that a row
// that is read by several sections is loaded once; where a row is too long for a block, a cluster
// of blocks holds it. Columns, where it is the items', have a team's threads far apart and
// neighbouring teams side by side:
//
//   softmax of x[8192, 1024] along 1    rows     max, sum and quotient read one row: `kept`
//   sum of x[1024, 8192] along 0        columns  lanes along 1, the members of a team along 0
//
// A GPU with too few items is filled by larger teams, then by clusters.
#include <numeric>

#include "core/codegen/gpu/planner.h"

namespace tinyshard::codegen::gpu {
namespace {

constexpr int kValues = 32;     // of one load that a thread keeps in registers, at most
constexpr int kAllValues = 64;  // of all loads
constexpr int kLoopValues = 16, kLoopAccesses = 4;  // of one load in one round of a loop
constexpr int64_t kShortFold = 64;                  // terms that one thread adds up by itself
constexpr int64_t kNearItems = 4;   // elements between those that neighbouring threads read
constexpr int kMostCluster = 8;     // what every GPU with clusters can launch
constexpr int kClusterBlock = 256;  // four blocks a multiprocessor: some load, some wait

class Teams {
 public:
  Teams(const PlanContext& context, Work& work) : c_(context), work_(work) {}

  void plan() {
    std::vector<Section*> sections = shared_sections(work_);
    RangeSet ranges = 0;
    double along_sections = 0, along_items = 0;
    for (Section* s : sections) {
      for (int r : s->space.ranges) ranges |= bit(r);
      along_sections += c_.accesses.contiguity(s->space.ranges.back());
    }
    if (!work_.items.space.ranges.empty())
      along_items = c_.accesses.contiguity(work_.items.space.ranges.back()) *
                    static_cast<double>(sections.size());
    work_.items_fastest = along_items > along_sections || are_windows(sections);
    bool one = alike(sections);
    if (one) number(sections);
    // Registers keep a share of each load of a row.
    int loads = std::max(1, loads_along(ranges));
    int most = std::clamp(kAllValues / loads, 4, kValues);
    if (work_.items_fastest) {
      share_columns(sections, one, most, loads);
    } else {
      share_rows(sections, one, most, loads);
    }
    if (!work_.kept) number({});
    // Loops inside of a section run in each thread alone.
    work_.blocks = work_.items.space.rounds(work_.teams);
  }

 private:
  // Short folds over what lies close to each other for neighbouring items, such as the windows of a pool: a
  // thread for each item reads as much memory as a team would, and has nothing to combine.
  //
  //   maximum of x[16608, 55, 55] over windows of 3 x 3     a thread for each of 13 million windows; 16
  //                                                         threads each would do 9 loads and 4 exchanges
  //
  // A short row that wide loads take at once, as of x[1000000, 4], is none.
  bool are_windows(std::span<Section* const> sections) const {
    const Space& items = work_.items.space;
    const int64_t wanted = int64_t{c_.target.multiprocessors} * kThreadsOfMultiprocessor;
    return !items.ranges.empty() && items.steps >= wanted && work_.inner.empty() &&
           c_.accesses.near(items.ranges.back(), kNearItems) &&
           std::ranges::all_of(sections, [&](const Section* s) {
             const bool is_row =
                 s->space.ranges.size() == 1 && c_.accesses.lanes_along(s->space.ranges[0]) > 1;
             return c_.extent(s->space.ranges) <= kShortFold && !is_row;
           });
  }

  void number(std::span<Section* const> one) {
    std::vector<int> classes(static_cast<size_t>(c_.graph.ranges()));
    std::iota(classes.begin(), classes.end(), 0);
    for (Section* section : one) {
      for (size_t k = 0; k < section->space.ranges.size(); ++k)
        classes[static_cast<size_t>(section->space.ranges[k])] = one.front()->space.ranges[k];
    }
    work_.same = number_values(c_.graph, classes);
  }

  // Sections of the same shape, whose ranges nothing else opens, can be one. A range that two of
  // them share stands at one place in both: (r, c) and (c, r) are two walks of a square.
  bool alike(std::span<Section* const> sections) const {
    RangeSet kept = 0, others = 0;
    std::vector<int> places(static_cast<size_t>(c_.graph.ranges()), -1);
    for (Section* s : sections) {
      if (s->space.ranges.size() != sections.front()->space.ranges.size()) return false;
      for (size_t k = 0; k < s->space.ranges.size(); ++k) {
        kept |= bit(s->space.ranges[k]);
        int& at = places[static_cast<size_t>(s->space.ranges[k])];
        if (at >= 0 && at != static_cast<int>(k)) return false;
        at = static_cast<int>(k);
        if (c_.graph.range(s->space.ranges[k]).size !=
            c_.graph.range(sections.front()->space.ranges[k]).size)
          return false;
      }
    }
    auto other = [&](const Section& s) {
      if (std::ranges::find(sections, &s) != sections.end()) return;
      for (int r : s.space.ranges) others |= bit(r);
    };
    for (const Section& s : work_.inner) other(s);
    for (const auto& levels : work_.folds) {
      if (levels.size() > 1 && std::ranges::find(sections, &levels.front()) != sections.end())
        return false;
      for (const Section& s : levels) other(s);
    }
    return (kept & others) == 0;
  }

  // Different values that folds load along the sections.
  int loads_along(RangeSet ranges) const {
    std::vector<char> seen(static_cast<size_t>(c_.graph.size()));
    std::vector<int> stack, distinct;
    for (const FoldGroup& group : work_.nest.groups) {
      for (int fold : group.folds) stack.push_back(c_.graph.source(fold, 0));
    }
    while (!stack.empty()) {
      int node = work_.same[static_cast<size_t>(stack.back())];
      stack.pop_back();
      if (seen[static_cast<size_t>(node)]) continue;
      seen[static_cast<size_t>(node)] = 1;
      if (c_.graph[node].op == Op::Load && (c_.graph[node].varies & ranges) != 0)
        distinct.push_back(node);
      for (int source : c_.graph.sources(node)) stack.push_back(source);
    }
    return static_cast<int>(distinct.size());
  }

  int64_t longest(std::span<Section* const> sections) const {
    int64_t steps = 1;
    for (Section* s : sections) steps = std::max(steps, s->space.steps);
    return steps;
  }

  // Few items: several blocks for each.
  void choose_cluster(std::span<Section* const> sections) {
    if (!c_.clusters) return;
    int64_t blocks = divide_up(work_.items.space.steps, work_.teams);
    int64_t steps = longest(sections) / work_.team;
    while (work_.cluster < kMostCluster &&
           blocks * work_.cluster * 2 <= 2 * c_.target.multiprocessors &&
           steps >= 4 * work_.cluster)
      work_.cluster *= 2;
  }

  // Steps of each thread where the team has `threads`.
  int64_t share(std::span<Section* const> sections, int64_t threads) const {
    return divide_up(longest(sections), threads);
  }

  void choose_chunks(std::span<Section* const> sections, bool kept, int loads) {
    work_.kept = kept;
    for (Section* s : sections) {
      int lanes = work_.items_fastest ? work_.items.space.lanes : s->space.lanes;
      int64_t part = divide_up(s->space.steps, work_.team * work_.cluster);
      int64_t most = kLoopValues / lanes;
      bool twice = lanes > 4 && sections.size() == 1;  // of half the size; again: from the cache
      int accesses = twice ? 2 * kLoopAccesses : kLoopAccesses;
      if (lanes > 1) most = std::max<int64_t>(most, accesses / loads);
      most = c_.leaning.lean(most, c_.leaning.chunks);
      s->space.chunks = static_cast<int>(kept ? part : std::clamp<int64_t>(part, 1, most));
    }
  }

  bool deep(std::span<Section* const> sections) const {
    return work_.inner.size() > 1 ||
           std::ranges::any_of(sections, [](const Section* s) { return !s->groups.empty(); });
  }

  // Returns the bytes that are loaded along the sections for one step of the items.
  int64_t row_bytes(std::span<Section* const> sections) const {
    RangeSet ranges = 0;
    for (Section* s : sections) ranges |= bit(s->space.ranges.back());
    int64_t widest = 0;
    for (int access : c_.accesses.all()) {
      if (c_.graph[access].op == Op::Load && (c_.graph[access].varies & ranges) != 0)
        widest = std::max(widest, c_.accesses.bytes(access));
    }
    return widest * c_.extent(sections.front()->space.ranges);
  }

  // Neighbouring threads along the sections.
  void share_rows(std::span<Section* const> sections, bool one, int most, int loads) {
    bool narrow = deep(sections);  // folds inside: few values at a time
    int lanes = static_cast<int>(Accesses::kWidest);
    for (Section* s : sections) {
      s->space.lanes = narrow ? 1 : c_.accesses.lanes_along(s->space.ranges.back());
      lanes = std::min(lanes, s->space.lanes);
    }
    for (Section* s : sections) {
      if (one) s->space.lanes = lanes;
      c_.count(s->space);
    }
    if (narrow) most = 1;
    int64_t steps = longest(sections), items = work_.items.space.steps;
    int64_t team = std::max(power_up(divide_up(steps, std::max(1, most / lanes))),
                            std::min<int64_t>(c_.warp, power_up(steps)));
    int64_t wanted = int64_t{c_.target.multiprocessors} * kThreadsOfMultiprocessor;
    team = std::max(team, std::min(power_up(steps), power_up(wanted / items)));
    team = c_.leaning.lean(std::min<int64_t>(team, kMostThreads), c_.leaning.threads);
    work_.team = static_cast<int>(std::min<int64_t>(team, kMostThreads));
    int64_t teams = std::max<int64_t>(1, kBlock / work_.team);
    work_.teams = static_cast<int>(std::max<int64_t>(std::min(teams, power_up(items)),
                                                     c_.warp / std::min(c_.warp, work_.team)));
    choose_cluster(sections);
    // The largest blocks have fewer registers a thread.
    auto fits = [&](int64_t threads, bool largest) {
      int64_t values = share(sections, threads) * lanes;
      int64_t registers = values * loads * (lanes == 1 ? 2 : 1);  // single elements need addresses
      return values <= most && (!largest || registers <= kAllValues / 2);
    };
    bool kept = one && fits(int64_t{work_.team} * work_.cluster, work_.team == kMostThreads);
    // Rows that are used again and too long for one block are kept by several.
    bool again =
        c_.clusters && one && !kept && sections.size() > 1 && lanes > 1 && work_.cluster == 1;
    bool cached = row_bytes(sections) * c_.target.multiprocessors <= c_.target.cache_bytes;
    if (cached != c_.leaning.other_keeping) again = false;
    int64_t block = c_.leaning.lean(kClusterBlock, c_.leaning.threads);
    for (int cluster = 2; again && !kept && cluster <= kMostCluster; cluster *= 2) {
      if (!fits(block * cluster, true)) continue;
      work_.team = static_cast<int>(block);
      work_.cluster = cluster;
      choose_chunks(sections, true, loads);
      return;
    }
    if (c_.leaning.other_keeping) kept = false;
    choose_chunks(sections, kept, loads);
  }

  // Threads of a block that folds columns, when there are `blocks` of them before clusters. Many
  // lanes need many registers, and so does the end of a fold that a cluster shares: two blocks of
  // half the size then fill a multiprocessor, unless there are too few blocks for that.
  int64_t largest_block(int64_t blocks) const {
    int multiprocessors = c_.target.multiprocessors;
    bool shared = c_.clusters && blocks < multiprocessors;
    bool few = blocks * kMostCluster < multiprocessors;
    bool half = work_.items.space.lanes > 4 || (shared && !few);
    return half ? kMostThreads / 2 : kMostThreads;
  }

  // Neighbouring threads along the items.
  void share_columns(std::span<Section* const> sections, bool one, int most, int loads) {
    Space& items = work_.items.space;
    int64_t wanted = int64_t{c_.target.multiprocessors} * kThreadsOfMultiprocessor;
    int64_t steps = longest(sections);
    bool narrow = deep(sections);
    for (items.lanes = narrow ? 1 : c_.accesses.lanes_along(items.ranges.back());;
         items.lanes /= 2) {
      c_.count(items);
      // Threads along a line, for 128 bytes of it.
      int64_t least = std::clamp<int64_t>(c_.warp / items.lanes, 8, c_.warp), team = 1;
      int64_t most_threads = largest_block(divide_up(items.steps, least));
      while (items.steps * team < wanted && team * 4 <= steps && 2 * team * least <= most_threads)
        team *= 2;
      team = std::min(c_.leaning.lean(team, c_.leaning.threads), kMostThreads / least);
      work_.team = static_cast<int>(std::max<int64_t>(1, team));
      int64_t teams = std::max<int64_t>(least, kBlock / team);
      work_.teams = static_cast<int>(std::max<int64_t>(std::min(teams, power_up(items.steps)),
                                                       c_.warp / std::min<int64_t>(c_.warp, team)));
      int64_t blocks = divide_up(items.steps, work_.teams);
      bool few = blocks * work_.team * work_.teams < wanted && blocks < c_.target.multiprocessors;
      if (items.lanes == 1 || !few || c_.clusters) break;
    }
    if (narrow) most = 1;
    choose_cluster(sections);
    int64_t threads = int64_t{work_.team} * work_.cluster;
    choose_chunks(sections, one && share(sections, threads) * items.lanes <= most, loads);
  }

  const PlanContext& c_;
  Work& work_;
};

}  // namespace

std::vector<Section*> shared_sections(Work& work) {
  std::vector<Section*> sections;
  for (int group : work.items.groups) {
    auto& own = work.folds[static_cast<size_t>(group)];
    if (!own.empty()) sections.push_back(&own.front());
  }
  if (!work.inner.empty()) sections.push_back(&work.inner.front());
  return sections;
}

void plan_teams(const PlanContext& context, Work& work) { Teams(context, work).plan(); }

}  // namespace tinyshard::codegen::gpu
