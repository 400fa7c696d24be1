// From a Graph to a Plan: stores are grouped into nests, each nest becomes a tree of scopes, the cost
// model gives it lanes and tiles, neighbouring ranges are merged where that is cheaper, and long
// loops are cut into work items. For y[i, j] = x[i, j] / sum_k x[i, k]:
//
//   root - i - [group: k] - j     one nest; i is cut into items, k and j become lanes
#include "core/codegen/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <ranges>

#include "core/base/error.h"
#include "core/codegen/cost.h"

namespace tinyshard::codegen {
namespace {

// --- which stores share a nest -------------------------------------------------------------------

// The nodes that `roots` need, themselves among them.
std::vector<char> needed_by(const Graph& graph, std::span<const int> roots) {
  std::vector<char> seen(graph.size());
  std::vector<int> stack(roots.begin(), roots.end());
  while (!stack.empty()) {
    int node = stack.back();
    stack.pop_back();
    if (seen[node]) continue;
    seen[node] = 1;
    for (int source : graph.sources(node)) stack.push_back(source);
  }
  return seen;
}

// Stores that must run in one nest, since nests run in any order: those that read memory which
// another replaces, with that one. Each group holds places in `stores`, and all of its members
// have loops that contain each other.
//
//   a = x;  b = y;  x = x + y;  y = 2 * y     is one group: a comes before x, b before y, and x and y
//                                             read each other's memory
//
// although a and b have nothing in common.
std::vector<std::vector<int>> tied_stores(const Graph& graph, std::span<const int> stores,
                                          const std::vector<std::vector<char>>& needs) {
  auto memory = [&](int access) {
    int slot = graph.slot(access), alias = graph.param(slot).alias;
    return alias >= 0 ? alias : slot;
  };
  std::vector<int> group(stores.size());
  std::iota(group.begin(), group.end(), 0);
  auto join = [&](int a, int b) {
    const auto [first, second] = std::minmax(group[a], group[b]);
    std::ranges::replace(group, second, first);
  };
  std::vector<std::vector<int>> writers(graph.params());
  for (size_t s = 0; s < stores.size(); ++s) writers[memory(stores[s])].push_back(int(s));
  for (size_t s = 0; s < stores.size(); ++s) {
    for (int node = 0; node < graph.size(); ++node) {
      if (!needs[s][node] || graph[node].op != Op::Load) continue;
      for (int writer : writers[memory(node)]) join(int(s), writer);
    }
  }
  std::vector<std::vector<int>> groups;
  for (size_t s = 0; s < stores.size(); ++s) {
    groups.emplace_back();
    for (size_t t = s; t < stores.size(); ++t) {
      if (group[t] == int(s)) groups.back().push_back(int(t));
    }
    if (groups.back().empty()) groups.pop_back();
  }
  return groups;
}

// Stores whose loops contain each other and which share a Fold or a Load run in one nest. So do
// those that are tied.
std::vector<std::vector<int>> split_stores(const Graph& graph) {
  std::vector<int> order(graph.stores().begin(), graph.stores().end());
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return std::popcount(graph[a].varies) > std::popcount(graph[b].varies);
  });
  std::vector<std::vector<char>> needs;
  for (int store : order) needs.push_back(needed_by(graph, {&store, 1}));
  auto chain = [&](int a, int b) {
    RangeSet x = graph[a].varies, y = graph[b].varies;
    return (x & y) == x || (x & y) == y;
  };
  std::vector<std::vector<int>> nests;
  std::vector<std::vector<char>> reached;
  for (const std::vector<int>& group : tied_stores(graph, order, needs)) {
    std::vector<int> stores;
    for (int place : group) stores.push_back(order[place]);
    const std::vector<char> mine = needed_by(graph, stores);
    auto all_chain = [&](const std::vector<int>& others) {
      return std::ranges::all_of(stores, [&](int a) {
        return std::ranges::all_of(others, [&](int b) { return chain(a, b); });
      });
    };
    check_internal(all_chain(stores),
                   "stores that replace what others read have loops of their own");
    size_t chosen = 0;
    for (; chosen < nests.size(); ++chosen) {
      bool shares = false;
      for (int a : stores) {
        for (int b : nests[chosen])
          shares |= graph[a].varies != 0 && graph[a].varies == graph[b].varies;
      }
      for (int node = 0; node < graph.size() && !shares; ++node) {
        shares = mine[node] && reached[chosen][node] &&
                 (graph[node].op == Op::Fold || graph[node].op == Op::Load);
      }
      if (shares && all_chain(nests[chosen])) break;
    }
    if (chosen == nests.size()) {
      nests.emplace_back();
      reached.emplace_back(graph.size());
    }
    nests[chosen].insert(nests[chosen].end(), stores.begin(), stores.end());
    for (int node = 0; node < graph.size(); ++node) reached[chosen][node] |= mine[node];
  }
  for (auto& nest : nests) std::sort(nest.begin(), nest.end());
  return nests;
}

// --- the tree of scopes --------------------------------------------------------------------------

class NestBuilder {
 public:
  NestBuilder(const Graph& graph, std::vector<int> stores)
      : graph_(graph), stores_(std::move(stores)), placed_(graph.size()) {}

  Nest build() {
    // Loops that more stores vary with come first, so that each store's loops are outermost.
    RangeSet used = 0;
    for (int store : stores_) used |= graph_[store].varies;
    std::vector<int> loops;
    for (int r : graph_.loops()) {
      if (used & bit(r)) loops.push_back(r);
    }
    std::stable_sort(loops.begin(), loops.end(), [&](int a, int b) { return users(a) > users(b); });
    nest_.scopes.emplace_back();
    std::vector<int> chain{0};
    for (int r : loops) {
      int scope = open(chain.back(), r, -1);
      nest_.loops.push_back(scope);
      chain.push_back(scope);
    }
    for (int store : stores_) {
      int scope = 0;
      for (int s : chain) {
        if (graph_[store].varies & ~nest_.scopes[scope].open) scope = s;
      }
      nest_.scopes[scope].stores.push_back(store);
    }
    for (int scope : chain) place_folds(scope, stores_);
    return std::move(nest_);
  }

 private:
  int users(int range) const {
    return static_cast<int>(std::ranges::count_if(
        stores_, [&](int s) { return (graph_[s].varies & bit(range)) != 0; }));
  }

  int open(int parent, int range, int group) {
    int scope = static_cast<int>(nest_.scopes.size());
    Scope s;
    s.parent = parent;
    s.range = range;
    s.group = group;
    s.open = nest_.scopes[parent].open | bit(range);
    nest_.scopes.push_back(s);
    // A fold group hangs in its parent's list of groups, not in its chain.
    if (group < 0 || nest_.scopes[parent].group == group) nest_.scopes[parent].next = scope;
    return scope;
  }

  // Folds below `roots` that can be computed in `scope` and were not placed further out.
  void place_folds(int scope, std::span<const int> roots) {
    RangeSet opened = nest_.scopes[scope].open;
    std::vector<char> seen(graph_.size());
    std::vector<int> found, stack(roots.begin(), roots.end());
    while (!stack.empty()) {
      int node = stack.back();
      stack.pop_back();
      if (seen[node] || placed_[node]) continue;
      seen[node] = 1;
      if (graph_[node].op == Op::Fold && !(graph_[node].varies & ~opened)) found.push_back(node);
      for (int source : graph_.sources(node)) stack.push_back(source);
    }
    if (found.empty()) return;
    std::sort(found.begin(), found.end());  // sources first

    // level: how many of the found folds must be finished before.
    std::vector<int> level(graph_.size());
    std::vector<char> is_found(graph_.size());
    for (int fold : found) is_found[fold] = 1;
    for (int node = 0; node <= found.back(); ++node) {
      if (!seen[node]) continue;
      for (int source : graph_.sources(node)) {
        level[node] = std::max(level[node], level[source] + is_found[source]);
      }
    }
    std::stable_sort(found.begin(), found.end(), [&](int a, int b) { return level[a] < level[b]; });

    struct Pending {
      int level;
      RangeSet ranges;
      std::vector<int> order, folds;
    };
    std::vector<Pending> pending;
    for (int fold : found) {
      place(fold);
      Graph::FoldRanges ranges = graph_.fold_ranges(fold);
      RangeSet set = 0;
      for (int r : ranges.ranges) set |= bit(r);
      if (ranges.empty || ranges.ranges.empty()) set = 0;
      auto group = std::ranges::find_if(pending, [&](const Pending& p) {
        return p.level == level[fold] && p.ranges == set && set;
      });
      if (group == pending.end()) {
        if (!set) ranges.ranges.clear();
        pending.push_back({level[fold], set, std::move(ranges.ranges), {}});
        group = pending.end() - 1;
      }
      group->folds.push_back(fold);
    }
    for (Pending& p : pending) {
      std::vector<int> values;
      for (int fold : p.folds) values.push_back(graph_.source(fold, 0));
      int number = static_cast<int>(nest_.groups.size());
      nest_.groups.emplace_back();
      nest_.scopes[scope].groups.push_back(number);
      move_best_inwards(values, p.order);
      std::vector<int> chain;
      for (int r : p.order) chain.push_back(open(chain.empty() ? scope : chain.back(), r, number));
      FoldGroup& group = nest_.groups[number];
      group.scope = scope;
      group.folds = p.folds;
      group.first = chain.empty() ? scope : chain.front();
      group.last = chain.empty() ? scope : chain.back();
      // Values that these loops compute are gone after them: another group computes them again.
      size_t before = placements_.size();
      for (int s : chain) place_folds(s, values);
      while (placements_.size() > before) {
        placed_[placements_.back()] = 0;
        placements_.pop_back();
      }
    }
  }

  void place(int fold) {
    placed_[fold] = 1;
    placements_.push_back(fold);
  }

  // The range along which most loads are contiguous becomes the innermost one.
  void move_best_inwards(std::span<const int> values, std::vector<int>& order) {
    if (order.size() < 2) return;
    const std::vector<char> below = needed_by(graph_, values);
    int best = order.back(), best_score = -1;
    for (int r : std::views::reverse(order)) {
      int score = 0;
      for (int node = 0; node < graph_.size(); ++node) {
        if (below[node] && graph_[node].op == Op::Load &&
            graph_.lane_stride(graph_.source(node, 1), r, 2) == 1)
          ++score;
      }
      if (score > best_score) best = r, best_score = score;
    }
    std::erase(order, best);
    order.push_back(best);
  }

  const Graph& graph_;
  std::vector<int> stores_;
  std::vector<char> placed_;     // folds that have a scope around the one at hand
  std::vector<int> placements_;  // the same in order
  Nest nest_;
};

// --- work items ----------------------------------------------------------------------------------

constexpr double kItemNs = 4000;  // smaller items are not worth their start
constexpr int64_t kItems = 256;   // more items bring no better balance

void choose_items(const Graph& graph, Nest& nest, double item_ns) {
  int64_t wanted = std::clamp<int64_t>(static_cast<int64_t>(nest.cost_ns / item_ns), 1, kItems);
  auto steps = [&](int scope) {
    int64_t step = int64_t{nest.scopes[scope].lanes} * nest.scopes[scope].tile;
    return (graph.range(nest.scopes[scope].range).size + step - 1) / step;
  };
  nest.items = 1;
  nest.item_loops = 0;
  nest.chunk = 0;
  int parent = 0;
  for (int scope : nest.loops) {
    // Entering a loop repeats what its parent computes; only a bare parent is free to repeat.
    if (!nest.scopes[parent].groups.empty() || !nest.scopes[parent].stores.empty()) return;
    if (nest.items >= wanted) return;
    int64_t n = steps(scope);
    if (nest.items * n > 2 * wanted) {
      int64_t per_item = std::max<int64_t>(1, n / ((wanted + nest.items - 1) / nest.items));
      nest.chunk = per_item * nest.scopes[scope].lanes * nest.scopes[scope].tile;
      nest.items *= (n + per_item - 1) / per_item;
      return;
    }
    nest.items *= n;
    ++nest.item_loops;
    parent = scope;
  }
}

// --- small loops ---------------------------------------------------------------------------------

// Loops of few iterations and little code become straight code, innermost first.
void choose_unrolling(const Graph& graph, Nest& nest, const std::vector<int>& nodes_in_scope) {
  constexpr int64_t kMostValues = 16, kMostNodes = 160;
  std::vector<int64_t> size(nodes_in_scope.begin(), nodes_in_scope.end());
  for (size_t s = nest.scopes.size(); s-- > 1;) {  // scopes inside come later in the list
    Scope& scope = nest.scopes[s];
    int64_t copies = graph.range(scope.range).size;
    bool inner_loops = scope.next >= 0 && !nest.scopes[static_cast<size_t>(scope.next)].unroll;
    for (int group : scope.groups) {
      int first = nest.groups[static_cast<size_t>(group)].first;
      inner_loops = inner_loops || (first != static_cast<int>(s) &&
                                    !nest.scopes[static_cast<size_t>(first)].unroll);
    }
    if (scope.lanes == 1 && scope.tile == 1 && !inner_loops && copies <= kMostValues &&
        copies * size[s] <= kMostNodes) {
      scope.unroll = true;
      size[s] *= copies;
    }
    size[static_cast<size_t>(scope.parent)] += size[s];
  }
  // Work items and their chunks are loops.
  for (int scope : nest.loops)
    nest.scopes[static_cast<size_t>(scope)].unroll &= nest.loops.front() != scope;
}

}  // namespace

int Nest::place(const Graph& graph, int node, int scope) const {
  RangeSet varies = graph[node].varies;
  while (scopes[scope].parent >= 0 && !(varies & ~scopes[scopes[scope].parent].open)) {
    scope = scopes[scope].parent;
  }
  return scope;
}

int Nest::vector_scope(const Graph& graph, int node, int scope) const {
  RangeSet varies = graph[node].varies;
  for (; scope > 0; scope = scopes[scope].parent) {
    if (scopes[scope].lanes > 1 && varies & bit(scopes[scope].range)) return scope;
  }
  return -1;
}

std::vector<Nest> build_nests(const Graph& graph) {
  std::vector<Nest> nests;
  for (auto& stores : split_stores(graph)) {
    nests.push_back(NestBuilder(graph, std::move(stores)).build());
  }
  return nests;
}

// Finds which values of every loop matter. Stores below a loop that do not vary with it are made
// after it.
void find_extents(const Graph& graph, Nest& nest) {
  for (int loop : nest.loops) {
    Scope& scope = nest.scopes[static_cast<size_t>(loop)];
    std::vector<int> stores;
    for (int inner = loop; inner >= 0; inner = nest.scopes[static_cast<size_t>(inner)].next) {
      const std::vector<int>& own = nest.scopes[static_cast<size_t>(inner)].stores;
      stores.insert(stores.end(), own.begin(), own.end());
    }
    scope.extent = extent_of_stores(graph, stores, scope.range);
  }
  for (const FoldGroup& group : nest.groups) {
    for (int s = group.last; s != group.scope; s = nest.scopes[static_cast<size_t>(s)].parent) {
      Scope& scope = nest.scopes[static_cast<size_t>(s)];
      scope.extent = extent_of_folds(graph, group.folds, scope.range);
    }
  }
}

static Plan plan_as_is(const Graph& graph, const Target& target, const Leaning& leaning = {}) {
  Plan plan;
  plan.nests = build_nests(graph);
  CostModel model(graph, target);
  for (Nest& nest : plan.nests) {
    find_extents(graph, nest);
    model.choose_vectors(nest);
    model.lean(nest, leaning);
    model.choose_lane_order(nest);
    choose_unrolling(graph, nest, model.nodes_in_scope(nest));
    plan.cost_ns += nest.cost_ns;
  }
  return plan;
}

static Leaning leaning_of(int choice) {
  constexpr Leaning kLeanings[kKernelChoices] = {{},  {0, 1}, {0, -1},          {.item_size = 0.25},
                                                 {1}, {-1},   {.item_size = 4}, {0, 2}};
  return kLeanings[choice];
}

Plan make_plan(Graph& graph, const Target& target, int choice) {
  Plan plan = plan_as_is(graph, target);
  // A range that becomes the inner part of another one has no extent of its own any more.
  RangeSet limited = 0;
  for (const Nest& nest : plan.nests) {
    for (const Scope& scope : nest.scopes) {
      if (scope.extent.limited()) limited |= bit(scope.range);
    }
  }
  // Merging short ranges fills vectors, but makes other indices divide; whether it pays is a
  // question of cost. Smaller ranges are merged first, and the best stop on the way is taken:
  // folds, then loops.
  for (bool folds : {true, false}) {
    Graph trial = graph;
    while (true) {
      std::optional<std::pair<int, int>> smallest;
      auto merged_size = [&](const std::pair<int, int>& p) {
        return trial.range(p.first).size * trial.range(p.second).size;
      };
      for (const auto& pair : trial.mergeable()) {
        if (trial.range(pair.first).fold != folds || limited & bit(pair.second)) continue;
        if (!smallest || merged_size(pair) < merged_size(*smallest)) smallest = pair;
      }
      if (!smallest) break;
      trial.merge(smallest->first, smallest->second);
      Plan merged = plan_as_is(trial, target);
      if (merged.cost_ns > 0.97 * plan.cost_ns) continue;
      graph = trial;
      plan = std::move(merged);
    }
  }
  // The merged ranges are those of choice 0: they, too, are the order of a sum.
  const Leaning leaning = leaning_of(choice);
  if (choice > 0) plan = plan_as_is(graph, target, leaning);
  const double item_ns = kItemNs * leaning.item_size;
  for (Nest& nest : plan.nests) {
    choose_items(graph, nest, item_ns);
    plan.items += nest.items;
  }
  plan.min_items = plan.items == 0
                       ? 1
                       : std::clamp<int64_t>(
                             static_cast<int64_t>(std::ceil(item_ns / (plan.cost_ns / plan.items))),
                             1, plan.items);
  for (int slot = 0; slot < graph.params(); ++slot) {
    const ParamInfo& p = graph.param(slot);
    plan.bytes_moved += p.numel * static_cast<int64_t>(itemsize(p.dtype));
  }
  return plan;
}

}  // namespace tinyshard::codegen
