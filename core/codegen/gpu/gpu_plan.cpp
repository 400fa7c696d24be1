// The plan of a GPU kernel: ranges that are walked alike are merged, the loops become nests, and of
// each nest some outer loops become the items that teams of threads share out; plan_teams.cpp and
// plan_maps.cpp then choose how many threads, lanes and chunks.
//
// How many loops are items is a matter of estimated time: work / threads, where a fold outside of
// the innermost item is computed again for each item. For a norm of x[64, 1000]:
//
//   items ()         one team for 64 rows of 1000     at most 1024 threads
//   items (i)        64 teams over [sum: f], j        64 * 1000 threads are busy
//   items (i, j)     each of 64000 teams sums its row again: 1000 times the work
//
// What is stored in place is computed by one team, whatever that costs: another one would read what
// the first has replaced.
#include "core/codegen/gpu/gpu_plan.h"

#include <numeric>

#include "core/codegen/gpu/planner.h"

namespace tinyshard::codegen::gpu {
namespace {

// Items and sections of a nest.
class Sections {
 public:
  Sections(const PlanContext& context, Nest nest) : c_(context) { work_.nest = std::move(nest); }

  Work make() {
    make_sections(items_depth());
    std::vector<int> classes(static_cast<size_t>(c_.graph.ranges()));
    std::iota(classes.begin(), classes.end(), 0);
    work_.same = number_values(c_.graph, classes);
    return std::move(work_);
  }

 private:
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

  // Tells whether its folds load a parameter that the kernel also writes.
  bool reads_replaced(const FoldGroup& group) const {
    std::vector<char> seen(static_cast<size_t>(c_.graph.size()));
    std::vector<int> stack = group.folds;
    while (!stack.empty()) {
      int node = stack.back();
      stack.pop_back();
      if (seen[static_cast<size_t>(node)]) continue;
      seen[static_cast<size_t>(node)] = 1;
      if (c_.graph[node].op == Op::Load) {
        int slot = c_.graph.slot(node);
        if (c_.graph.param(slot).written || c_.graph.aliased(slot)) return true;
      }
      for (int source : c_.graph.sources(node)) stack.push_back(source);
    }
    return false;
  }

  // How many of the loops are items: the number with which the estimated time is least. Folds of
  // fewer loops than that are computed again by every team.
  size_t items_depth() const {
    size_t all = work_.nest.loops.size(), most = all;
    // A parameter that is updated in place by a store of fewer loops is read by all the others
    // before: they must be one team's.
    for (size_t depth = 0; depth < all; ++depth) {
      for (int store : work_.nest.scopes[static_cast<size_t>(scope_at(depth))].stores) {
        bool in_place = std::ranges::any_of(c_.accesses.all(), [&](int access) {
          return c_.graph[access].op == Op::Load &&
                 (c_.graph.slot(access) == c_.graph.slot(store) ||
                  c_.graph.aliased(c_.graph.slot(store)));
        });
        if (in_place) most = std::min(most, depth);
      }
    }
    // A fold of what is replaced is not computed by several teams: one may have stored already.
    for (size_t depth = 0; depth < all; ++depth) {
      for (int group : work_.nest.scopes[static_cast<size_t>(scope_at(depth))].groups) {
        if (reads_replaced(work_.nest.groups[static_cast<size_t>(group)]))
          most = std::min(most, depth);
      }
    }
    double full = static_cast<double>(c_.target.multiprocessors) * kThreadsOfMultiprocessor;
    size_t best = most;
    double best_time = -1;
    for (size_t depth = 0; depth <= most; ++depth) {
      bool has_group = !work_.nest.scopes[static_cast<size_t>(scope_at(depth))].groups.empty();
      if (!has_group && depth != most) continue;
      double items = 1, iterations = 1, work = 0, widest = 1;
      for (size_t at = 0; at <= all; ++at) {
        if (at > 0) {
          const Scope& scope = work_.nest.scopes[static_cast<size_t>(scope_at(at))];
          double size =
              scope.extent.one_value() ? 1 : static_cast<double>(c_.graph.range(scope.range).size);
          iterations *= size;
          if (at <= depth) items = iterations;
        }
        for (int group : work_.nest.scopes[static_cast<size_t>(scope_at(at))].groups) {
          double cells = static_cast<double>(c_.extent(group_ranges(group)));
          if (at <= depth) widest = std::max(widest, cells);
          // Counted below for the outer ones, when the number of items is known.
          if (at > depth) work += iterations * cells;
        }
      }
      for (size_t at = 0; at <= depth; ++at) {
        for (int group : work_.nest.scopes[static_cast<size_t>(scope_at(at))].groups)
          work += items * static_cast<double>(c_.extent(group_ranges(group)));
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
    double score = c_.accesses.contiguity(best);
    for (int r : ranges) {
      if (c_.accesses.contiguity(r) > score) best = r, score = c_.accesses.contiguity(r);
    }
    std::erase(ranges, best);
    ranges.push_back(best);
    return ranges;
  }

  void make_sections(size_t depth) {
    const Nest& nest = work_.nest;
    auto take = [&](Section& section, int scope) {
      const Scope& s = nest.scopes[static_cast<size_t>(scope)];
      section.groups.insert(section.groups.end(), s.groups.begin(), s.groups.end());
      section.stores.insert(section.stores.end(), s.stores.begin(), s.stores.end());
    };
    auto is_fixed = [&](int loop) {
      const Scope& s = nest.scopes[static_cast<size_t>(loop)];
      const RangeBound* only = s.extent.only_value();
      if (only) work_.fixed.push_back({s.range, *only});
      return only != nullptr;
    };
    take(work_.items, 0);
    for (size_t i = 0; i < depth; ++i) {
      if (!is_fixed(nest.loops[i])) {
        work_.items.space.ranges.push_back(nest.scopes[static_cast<size_t>(nest.loops[i])].range);
      }
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
    for (size_t i = depth; i < nest.loops.size(); ++i) {
      if (is_fixed(nest.loops[i])) {
        take(work_.inner.empty() ? work_.items : work_.inner.back(), nest.loops[i]);
      } else {
        add(work_.inner, nest.loops[i]);
      }
    }
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
    c_.count(work_.items.space);
    for (Section& s : work_.inner) c_.count(s.space);
    for (auto& sections : work_.folds) {
      for (Section& s : sections) c_.count(s.space);
    }
  }

  const PlanContext& c_;
  Work work_;
};

std::vector<Work> plan_nest(const Graph& graph, const Target& target, Nest nest, bool clusters,
                            const Leaning& leaning) {
  Accesses accesses(graph, nest);
  PlanContext context{graph, target, accesses, clusters, warp_of(target), leaning};
  Work work = Sections(context, std::move(nest)).make();
  if (shared_sections(work).empty()) return plan_maps(context, std::move(work));
  plan_teams(context, work);
  return {std::move(work)};
}

}  // namespace

Leaning leaning_of(int choice) {
  constexpr Leaning kLeanings[kKernelChoices] = {
      {},           {true, 0, 0}, {false, 0, 1}, {false, -1, 0}, {false, 1, 0}, {false, 0, -1},
      {true, 1, 0}, {true, -1, 0}};
  return kLeanings[choice];
}

GpuPlan make_gpu_plan(Graph& graph, const Target& target, int choice) {
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
  bool clusters = nests.size() == 1 && has_clusters(target);
  for (Nest& nest : nests) {
    find_extents(graph, nest);
    for (Work& work : plan_nest(graph, target, std::move(nest), clusters, leaning_of(choice)))
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
  const double rate = target.multiprocessor_bytes_per_ns * std::max(1, target.multiprocessors);
  plan.cost_ns = target.launch_ns + static_cast<double>(plan.bytes_moved) / rate;
  return plan;
}

}  // namespace tinyshard::codegen::gpu
