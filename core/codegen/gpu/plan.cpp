#include "core/codegen/gpu/plan.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <numeric>
#include <optional>

namespace tinyshard::codegen::gpu {
namespace {

constexpr int kWarp = 32, kMostThreads = 1024, kBlock = 256;
constexpr int kThreadsOfMultiprocessor = 1024;  // enough to hide the latency of memory
constexpr int64_t kAccessBytes = 16;            // of one thread at a time
constexpr int kValues = 32;     // of one load that a thread keeps in registers, at most
constexpr int kAllValues = 64;  // of all loads
constexpr int kLoopValues = 16, kLoopAccesses = 4;  // of one load in one round of a loop
constexpr int64_t kShortMap = 4096;
constexpr int64_t kCacheBytes = 20 << 20;  // rows under way that are found in the cache again
constexpr int kMostCluster = 8;            // what every GPU with clusters can launch
constexpr int kClusterBlock = 512;         // two blocks a multiprocessor: one loads while one waits

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t power_up(int64_t x) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, x))));
}

class Planner {
 public:
  // `clusters`: several blocks may share a team.
  Planner(const Graph& graph, const Target& target, Nest nest, bool clusters)
      : graph_(graph), target_(target), clusters_(clusters) {
    work_.nest = std::move(nest);
  }

  std::vector<Work> plan() {
    collect_accesses();
    size_t depth = items_depth();
    make_sections(depth);
    number({});
    if (has_sections()) {
      share_by_team();
    } else if (!tile()) {
      map();
    }
    std::vector<Work> works{std::move(work_)};
    if (rest_) works.push_back(std::move(*rest_));
    return works;
  }

 private:
  // --- what the kernel touches ---

  void collect_accesses() {
    std::vector<char> seen(static_cast<size_t>(graph_.size()));
    std::vector<int> stack;
    for (const Scope& scope : work_.nest.scopes)
      stack.insert(stack.end(), scope.stores.begin(), scope.stores.end());
    while (!stack.empty()) {
      int node = stack.back();
      stack.pop_back();
      if (seen[static_cast<size_t>(node)]) continue;
      seen[static_cast<size_t>(node)] = 1;
      if (graph_[node].op == Op::Load || graph_[node].op == Op::Store) accesses_.push_back(node);
      for (int source : graph_.sources(node)) stack.push_back(source);
    }
    std::sort(accesses_.begin(), accesses_.end());
  }

  int64_t bytes(int access) const {
    return static_cast<int64_t>(itemsize(graph_.param(graph_.slot(access)).dtype));
  }
  bool contiguous(int access, int range) const {
    return graph_.lane_stride(graph_.source(access, 1), range, 2) == 1;
  }

  // Bytes of the whole kernel accessed contiguously along `range`; stores count double.
  double contiguity(int range) const {
    double score = 0;
    for (int access : accesses_) {
      if (!contiguous(access, range)) continue;
      double moved = static_cast<double>(bytes(access)) * (graph_[access].op == Op::Store ? 2 : 1);
      for (int r = 0; r < graph_.ranges(); ++r) {
        if (graph_[access].varies & bit(r)) moved *= static_cast<double>(graph_.range(r).size);
      }
      score += moved;
    }
    return score;
  }

  // Whether `lanes` neighbours along `range` are one aligned piece of memory, all there or not.
  bool whole_vector(int access, int range, int lanes) const {
    int index = graph_.source(access, 1);
    if (graph_.lane_stride(index, range, lanes) != 1) return false;
    if (graph_.alignment(index, range, lanes) % lanes != 0) return false;
    bool masked = graph_[access].op == Op::Load && graph_[access].source_count > 2 &&
                  (graph_[graph_.source(access, 2)].varies & bit(range)) != 0;
    bool checked = graph_[index].has_load && graph_.param(graph_.slot(access)).numel % lanes != 0;
    return !masked && !checked;
  }

  // `whole`: the range is made of whole vectors.
  int lanes_along(int range, bool whole = true) const {
    int64_t size = graph_.range(range).size;
    for (int lanes = static_cast<int>(kAccessBytes); lanes > 1; lanes /= 2) {
      if (whole && size % lanes != 0) continue;
      int64_t good = 0, bad = 0, narrowest = kAccessBytes;
      for (int access : accesses_) {
        if (!(graph_[graph_.source(access, 1)].varies & bit(range))) continue;
        if (whole_vector(access, range, lanes)) {
          good += bytes(access);
          narrowest = std::min(narrowest, bytes(access));
        } else {
          bad += bytes(access);
        }
      }
      if (good > 0 && good >= bad && lanes * narrowest <= kAccessBytes) return lanes;
    }
    return 1;
  }

  // --- items and sections ---

  int64_t extent(std::span<const int> ranges) const {
    int64_t product = 1;
    for (int r : ranges) product *= graph_.range(r).size;
    return product;
  }
  std::vector<int> group_ranges(int group) const {
    const FoldGroup& g = work_.nest.groups[static_cast<size_t>(group)];
    std::vector<int> ranges;
    if (g.first == g.scope) return ranges;
    for (int s = g.first;; s = work_.nest.scopes[static_cast<size_t>(s)].next) {
      ranges.push_back(work_.nest.scopes[static_cast<size_t>(s)].range);
      if (s == g.last) return ranges;
    }
  }
  // The scope of the first `depth` loops.
  int scope_at(size_t depth) const { return depth == 0 ? 0 : work_.nest.loops[depth - 1]; }

  // How many of the loops are items: the number with which the estimated time is least. Folds of
  // fewer loops than that are computed again by every team.
  size_t items_depth() const {
    size_t all = work_.nest.loops.size(), most = all;
    // A parameter that is updated in place by a store of fewer loops is read by all the others
    // before: they must be one team's.
    for (size_t depth = 0; depth < all; ++depth) {
      for (int store : work_.nest.scopes[static_cast<size_t>(scope_at(depth))].stores) {
        bool in_place = std::ranges::any_of(accesses_, [&](int access) {
          return graph_[access].op == Op::Load &&
                 (graph_.slot(access) == graph_.slot(store) || graph_.aliased(graph_.slot(store)));
        });
        if (in_place) most = std::min(most, depth);
      }
    }
    double full = static_cast<double>(target_.multiprocessors) * kThreadsOfMultiprocessor;
    size_t best = most;
    double best_time = -1;
    for (size_t depth = 0; depth <= most; ++depth) {
      bool has_group = !work_.nest.scopes[static_cast<size_t>(scope_at(depth))].groups.empty();
      if (!has_group && depth != most) continue;
      double items = 1, iterations = 1, work = 0, widest = 1;
      for (size_t at = 0; at <= all; ++at) {
        if (at > 0) {
          double size = static_cast<double>(
              graph_.range(work_.nest.scopes[static_cast<size_t>(scope_at(at))].range).size);
          iterations *= size;
          if (at <= depth) items = iterations;
        }
        for (int group : work_.nest.scopes[static_cast<size_t>(scope_at(at))].groups) {
          double cells = static_cast<double>(extent(group_ranges(group)));
          if (at <= depth) widest = std::max(widest, cells);
          // Counted below for the outer ones, when the number of items is known.
          if (at > depth) work += iterations * cells;
        }
      }
      for (size_t at = 0; at <= depth; ++at) {
        for (int group : work_.nest.scopes[static_cast<size_t>(scope_at(at))].groups)
          work += items * static_cast<double>(extent(group_ranges(group)));
      }
      work += iterations;
      widest = std::max(widest, iterations / items);
      double threads = std::min(full, items * std::min<double>(widest, kMostThreads));
      double time = work / threads;
      if (best_time < 0 || time < 0.99 * best_time) best = depth, best_time = time;
    }
    return best;
  }

  // The range along which most is contiguous goes innermost.
  std::vector<int> ordered(std::vector<int> ranges) const {
    if (ranges.size() < 2) return ranges;
    int best = ranges.back();
    double score = contiguity(best);
    for (int r : ranges) {
      if (contiguity(r) > score) best = r, score = contiguity(r);
    }
    std::erase(ranges, best);
    ranges.push_back(best);
    return ranges;
  }

  void count(Space& space) const { space.steps = extent(space.ranges) / space.lanes; }

  void make_sections(size_t depth) {
    const Nest& nest = work_.nest;
    auto take = [&](Section& section, int scope) {
      const Scope& s = nest.scopes[static_cast<size_t>(scope)];
      section.groups.insert(section.groups.end(), s.groups.begin(), s.groups.end());
      section.stores.insert(section.stores.end(), s.stores.begin(), s.stores.end());
    };
    take(work_.items, 0);
    for (size_t i = 0; i < depth; ++i) {
      work_.items.space.ranges.push_back(nest.scopes[static_cast<size_t>(nest.loops[i])].range);
      take(work_.items, nest.loops[i]);
    }
    work_.items.space.ranges = ordered(work_.items.space.ranges);
    // Loops with nothing between them are one section, and so are ranges of a fold group.
    auto add = [&](std::vector<Section>& sections, int scope) {
      if (sections.empty() || !sections.back().groups.empty() || !sections.back().stores.empty())
        sections.emplace_back();
      sections.back().space.ranges.push_back(nest.scopes[static_cast<size_t>(scope)].range);
      take(sections.back(), scope);
    };
    for (size_t i = depth; i < nest.loops.size(); ++i) add(work_.inner, nest.loops[i]);
    for (Section& s : work_.inner) s.space.ranges = ordered(s.space.ranges);
    work_.folds.resize(nest.groups.size());
    for (size_t g = 0; g < nest.groups.size(); ++g) {
      const FoldGroup& group = nest.groups[g];
      if (group.first == group.scope) continue;
      for (int s = group.first;; s = nest.scopes[static_cast<size_t>(s)].next) {
        add(work_.folds[g], s);
        if (s == group.last) break;
      }
    }
    count(work_.items.space);
    for (Section& s : work_.inner) count(s.space);
    for (auto& sections : work_.folds) {
      for (Section& s : sections) count(s.space);
    }
  }

  // The sections that a team shares.
  std::vector<Section*> shared_sections() {
    std::vector<Section*> sections;
    for (int group : work_.items.groups) {
      auto& own = work_.folds[static_cast<size_t>(group)];
      if (!own.empty()) sections.push_back(&own.front());
    }
    if (!work_.inner.empty()) sections.push_back(&work_.inner.front());
    return sections;
  }
  bool has_sections() { return !shared_sections().empty(); }

  void number(std::span<Section* const> one) {
    std::vector<int> classes(static_cast<size_t>(graph_.ranges()));
    std::iota(classes.begin(), classes.end(), 0);
    for (Section* section : one) {
      for (size_t k = 0; k < section->space.ranges.size(); ++k)
        classes[static_cast<size_t>(section->space.ranges[k])] = one.front()->space.ranges[k];
    }
    work_.same = number_values(graph_, classes);
  }

  // Sections of the same shape, whose ranges nothing else opens, can be one.
  bool alike(std::span<Section* const> sections) const {
    RangeSet kept = 0, others = 0;
    for (Section* s : sections) {
      if (s->space.ranges.size() != sections.front()->space.ranges.size()) return false;
      for (size_t k = 0; k < s->space.ranges.size(); ++k) {
        kept |= bit(s->space.ranges[k]);
        if (graph_.range(s->space.ranges[k]).size !=
            graph_.range(sections.front()->space.ranges[k]).size)
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
    std::vector<char> seen(static_cast<size_t>(graph_.size()));
    std::vector<int> stack, distinct;
    for (const FoldGroup& group : work_.nest.groups) {
      for (int fold : group.folds) stack.push_back(graph_.source(fold, 0));
    }
    while (!stack.empty()) {
      int node = work_.same[static_cast<size_t>(stack.back())];
      stack.pop_back();
      if (seen[static_cast<size_t>(node)]) continue;
      seen[static_cast<size_t>(node)] = 1;
      if (graph_[node].op == Op::Load && (graph_[node].varies & ranges) != 0)
        distinct.push_back(node);
      for (int source : graph_.sources(node)) stack.push_back(source);
    }
    return static_cast<int>(distinct.size());
  }

  void share_by_team() {
    std::vector<Section*> sections = shared_sections();
    RangeSet ranges = 0;
    double along_sections = 0, along_items = 0;
    for (Section* s : sections) {
      for (int r : s->space.ranges) ranges |= bit(r);
      along_sections += contiguity(s->space.ranges.back());
    }
    if (!work_.items.space.ranges.empty())
      along_items =
          contiguity(work_.items.space.ranges.back()) * static_cast<double>(sections.size());
    work_.items_fastest = along_items > along_sections;
    bool one = alike(sections);
    if (one) number(sections);
    // What stays in registers: a share of each load of a row.
    int loads = std::max(1, loads_along(ranges));
    int most = std::clamp(kAllValues / loads, 4, kValues);
    if (work_.items_fastest) {
      share_columns(sections, one, most, loads);
    } else {
      share_rows(sections, one, most, loads);
    }
    if (!work_.kept) number({});
    // What is inside of a section runs in each thread alone.
    work_.blocks = work_.items.space.rounds(work_.teams);
  }

  int64_t longest(std::span<Section* const> sections) const {
    int64_t steps = 1;
    for (Section* s : sections) steps = std::max(steps, s->space.steps);
    return steps;
  }

  // Few items: several blocks for each.
  void choose_cluster(std::span<Section* const> sections) {
    if (!clusters_) return;
    int64_t blocks = divide_up(work_.items.space.steps, work_.teams);
    int64_t steps = longest(sections) / work_.team;
    while (work_.cluster < kMostCluster &&
           blocks * work_.cluster * 2 <= 2 * target_.multiprocessors && steps >= 4 * work_.cluster)
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
      int accesses = lanes > 4 && sections.size() == 1 ? 2 * kLoopAccesses : kLoopAccesses;
      if (lanes > 1) most = std::max<int64_t>(most, accesses / loads);
      s->space.chunks = static_cast<int>(kept ? part : std::clamp<int64_t>(part, 1, most));
    }
  }

  bool deep(std::span<Section* const> sections) const {
    return work_.inner.size() > 1 ||
           std::ranges::any_of(sections, [](const Section* s) { return !s->groups.empty(); });
  }

  // What is loaded along the sections for one step of the items.
  int64_t row_bytes(std::span<Section* const> sections) const {
    RangeSet ranges = 0;
    for (Section* s : sections) ranges |= bit(s->space.ranges.back());
    int64_t widest = 0;
    for (int access : accesses_) {
      if (graph_[access].op == Op::Load && (graph_[access].varies & ranges) != 0)
        widest = std::max(widest, bytes(access));
    }
    return widest * extent(sections.front()->space.ranges);
  }

  // Neighbouring threads along the sections.
  void share_rows(std::span<Section* const> sections, bool one, int most, int loads) {
    bool narrow = deep(sections);  // folds inside: few values at a time
    int lanes = static_cast<int>(kAccessBytes);
    for (Section* s : sections) {
      s->space.lanes = narrow ? 1 : lanes_along(s->space.ranges.back());
      lanes = std::min(lanes, s->space.lanes);
    }
    for (Section* s : sections) {
      if (one) s->space.lanes = lanes;
      count(s->space);
    }
    if (narrow) most = 1;
    int64_t steps = longest(sections), items = work_.items.space.steps;
    int64_t team = std::max(power_up(divide_up(steps, std::max(1, most / lanes))),
                            std::min<int64_t>(kWarp, power_up(steps)));
    int64_t wanted = int64_t{target_.multiprocessors} * kThreadsOfMultiprocessor;
    team = std::max(team, std::min(power_up(steps), power_up(wanted / items)));
    work_.team = static_cast<int>(std::min<int64_t>(team, kMostThreads));
    int64_t teams = std::max<int64_t>(1, kBlock / work_.team);
    work_.teams = static_cast<int>(
        std::max<int64_t>(std::min(teams, power_up(items)), kWarp / std::min(kWarp, work_.team)));
    choose_cluster(sections);
    // The largest blocks have fewer registers a thread.
    auto fits = [&](int64_t threads, bool largest) {
      int64_t values = share(sections, threads) * lanes;
      int64_t registers = values * loads * (lanes == 1 ? 2 : 1);  // single elements need addresses
      return values <= most && (!largest || registers <= kAllValues / 2);
    };
    bool kept = one && fits(int64_t{work_.team} * work_.cluster, work_.team == kMostThreads);
    // Rows that are used again and too long for one block are kept by several.
    bool again = clusters_ && one && !kept && sections.size() > 1 && lanes > 1 &&
                 work_.cluster == 1 && row_bytes(sections) * target_.multiprocessors > kCacheBytes;
    for (int cluster = 2; again && !kept && cluster <= kMostCluster; cluster *= 2) {
      if (!fits(int64_t{kClusterBlock} * cluster, true)) continue;
      work_.team = kClusterBlock;
      work_.cluster = cluster;
      kept = true;
    }
    choose_chunks(sections, kept, loads);
  }

  // Neighbouring threads along the items.
  void share_columns(std::span<Section* const> sections, bool one, int most, int loads) {
    Space& items = work_.items.space;
    int64_t wanted = int64_t{target_.multiprocessors} * kThreadsOfMultiprocessor;
    int64_t steps = longest(sections);
    bool narrow = deep(sections);
    for (items.lanes = narrow ? 1 : lanes_along(items.ranges.back());; items.lanes /= 2) {
      count(items);
      // Threads along a line, for 128 bytes of it. Many lanes need many registers.
      int64_t least = std::clamp<int64_t>(kWarp / items.lanes, 8, kWarp), team = 1;
      int64_t most_threads = items.lanes > 4 ? kMostThreads / 2 : kMostThreads;
      while (items.steps * team < wanted && team * 4 <= steps && 2 * team * least <= most_threads)
        team *= 2;
      work_.team = static_cast<int>(team);
      int64_t teams = std::max<int64_t>(least, kBlock / team);
      work_.teams = static_cast<int>(std::max<int64_t>(std::min(teams, power_up(items.steps)),
                                                       kWarp / std::min<int64_t>(kWarp, team)));
      int64_t blocks = divide_up(items.steps, work_.teams);
      bool few = blocks * work_.team * work_.teams < wanted && blocks < target_.multiprocessors;
      if (items.lanes == 1 || !few || clusters_) break;
    }
    if (narrow) most = 1;
    choose_cluster(sections);
    int64_t threads = int64_t{work_.team} * work_.cluster;
    choose_chunks(sections, one && share(sections, threads) * items.lanes <= most, loads);
  }

  // --- elementwise ---

  void map() {
    Space& items = work_.items.space;
    if (items.ranges.empty()) {
      spread();
      return;
    }
    int range = items.ranges.back();
    items.lanes = lanes_along(range);
    // One long loop of odd length: whole vectors, and what is left on its own.
    int64_t size = graph_.range(range).size;
    int wide = items.ranges.size() == 1 && size > kShortMap ? lanes_along(range, false) : 1;
    if (wide > items.lanes) {
      rest_ = work_;
      Space& rest = rest_->items.space;
      rest.lanes = 1;
      rest.steps = size % wide;
      rest.begin = size - rest.steps;
      rest_->teams = kWarp;
      items.lanes = wide;
    }
    count(items);
    spread();
  }

  // Enough bytes in flight for each thread, enough threads for all multiprocessors.
  void spread() {
    Space& items = work_.items.space;
    int64_t loads = 0;
    for (int access : accesses_) loads += graph_[access].op == Op::Load;
    int64_t wanted = int64_t{target_.multiprocessors} * 2 * kThreadsOfMultiprocessor;
    int64_t most = std::clamp<int64_t>(4 / std::max<int64_t>(1, loads), 1, 4);
    if (items.lanes == 1) most *= 2;
    items.chunks = static_cast<int>(std::clamp<int64_t>(items.steps / wanted, 1, most));
    work_.teams = kBlock;
    while (work_.teams > kWarp && items.steps <= int64_t{work_.teams} * target_.multiprocessors / 2)
      work_.teams /= 2;
  }

  // Loads that are contiguous along another loop than the stores.
  bool tile() {
    Space& items = work_.items.space;
    Tile t;
    if (items.ranges.size() < 2) return false;
    t.along = items.ranges.back();
    if (contiguity(t.along) == 0) return false;
    RangeSet all = 0;
    for (int r : items.ranges) all |= bit(r);
    int64_t widest = 1;
    for (int access : accesses_) {
      if (graph_[access].op != Op::Load) {
        if (graph_[access].varies != all) return false;
        continue;
      }
      int index = graph_.source(access, 1);
      auto stride = graph_.lane_stride(index, t.along, 2);
      if (graph_[index].has_load || !stride || std::abs(*stride) < 2) continue;
      for (int r : items.ranges) {
        if (r == t.along || !contiguous(access, r) || (t.across >= 0 && t.across != r)) continue;
        t.across = r;
        t.staged.push_back(access);
        widest = std::max(widest, bytes(access));
        break;
      }
    }
    if (t.staged.empty()) return false;
    int64_t along = graph_.range(t.along).size, across = graph_.range(t.across).size;
    if (along < 16 || across < 16) return false;
    int64_t room = target_.shared_bytes / (static_cast<int64_t>(t.staged.size()) * widest);
    for (t.edge = 64; t.edge > 32 && int64_t{t.edge} * (t.edge + 2) > room;) t.edge /= 2;
    if (int64_t{t.edge} * (t.edge + 2) > room) return false;
    while (t.edge > 32 && (along < t.edge || across < t.edge)) t.edge /= 2;
    int most = t.edge * t.edge / kBlock;  // elements of a thread
    auto lanes = [&](int range) { return std::min({lanes_along(range), most, t.edge / 4}); };
    t.lanes_along = lanes(t.along);
    t.lanes_across = lanes(t.across);
    std::erase(items.ranges, t.along);
    std::erase(items.ranges, t.across);
    count(items);
    work_.teams = kBlock;
    work_.blocks = items.steps * divide_up(along, t.edge) * divide_up(across, t.edge);
    work_.tile = std::move(t);
    return true;
  }

  const Graph& graph_;
  const Target& target_;
  bool clusters_;
  Work work_;
  std::optional<Work> rest_;
  std::vector<int> accesses_;
};

}  // namespace

GpuPlan make_gpu_plan(Graph& graph, const Target& target) {
  for (bool changed = true; changed;) {
    changed = false;
    for (auto [outer, inner] : graph.mergeable()) {
      if (!graph.merges_exactly(outer, inner)) continue;
      graph.merge(outer, inner);
      changed = true;
      break;
    }
  }
  GpuPlan plan;
  std::vector<Nest> nests = build_nests(graph);
  bool clusters = nests.size() == 1 && target.cpu.starts_with("sm_9");
  for (Nest& nest : nests) {
    for (Work& work : Planner(graph, target, std::move(nest), clusters).plan())
      plan.works.push_back(std::move(work));
  }
  for (const Work& work : plan.works) plan.block = std::max(plan.block, work.team * work.teams);
  for (Work& work : plan.works) {
    // All works of a kernel have blocks of one size.
    work.teams *= plan.block / (work.team * work.teams);
    if (work.tile.staged.empty()) {
      work.blocks = work.items.space.rounds(work.teams) * work.cluster;
    } else {
      Tile& t = work.tile;
      int most = t.edge * t.edge / plan.block;
      t.lanes_along = std::min(t.lanes_along, most);
      t.lanes_across = std::min(t.lanes_across, most);
    }
    plan.blocks += work.blocks;
    plan.cluster = std::max(plan.cluster, work.cluster);
  }
  for (int slot = 0; slot < graph.params(); ++slot) {
    const ParamInfo& p = graph.param(slot);
    plan.bytes_moved += p.numel * static_cast<int64_t>(itemsize(p.dtype));
  }
  // A launch, and memory at the rate of one multiprocessor times their number.
  plan.cost_ns =
      2000 + static_cast<double>(plan.bytes_moved) / (30.0 * std::max(1, target.multiprocessors));
  return plan;
}

}  // namespace tinyshard::codegen::gpu
