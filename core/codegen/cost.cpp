// Estimates the cycles of a nest and takes the cheapest lanes and tile. With registers of 8 floats,
// y[i] = sum_k x[i, k] for k < 16 takes k whole (16 lanes) and tries tiles of 2 to 8 rows.
#include "core/codegen/cost.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/dtype/half.h"

namespace tinyshard::codegen {
namespace {

constexpr double kCyclesPerNs = 3.0;
constexpr int64_t kMostNodes = 256;  // of all copies of a tile

// Bytes of one lane while it is computed (narrow floats are f32 in registers).
int lane_bytes(DType dtype) {
  return is_narrow(dtype) || dtype == DType::Index ? 4 : static_cast<int>(itemsize(dtype));
}

// Throughput of one register full of lanes, in cycles.
double register_cycles(const KernelNode& node) {
  const OpCost& cost = info(node.op).element.cost;
  const float special = node.dtype == DType::F64     ? cost.f64_cycles
                        : node.dtype == DType::Index ? cost.index_cycles
                                                     : 0;
  return special > 0 ? special : cost.cycles;
}

bool heavy(Op op) { return info(op).element.cost.long_sequence; }

}  // namespace

void CostModel::find_sites(const Nest& nest) {
  sites_.clear();
  std::vector<std::vector<char>> seen(nest.scopes.size(), std::vector<char>(graph_.size()));
  std::vector<Site> stack;
  auto mark = [&](int root, int scope) {
    stack.push_back({root, scope});
    while (!stack.empty()) {
      auto [node, from] = stack.back();
      stack.pop_back();
      int place = nest.place(graph_, node, from);
      if (seen[place][node]) continue;
      seen[place][node] = 1;
      sites_.push_back({node, place});
      if (graph_[node].op == Op::Fold) continue;  // its body has scopes of its own
      if (graph_[node].dtype == DType::Index) {
        const auto& terms = graph_.form(node).terms;
        if (terms.size() != 1 || terms[0].node != node) {
          for (auto [term, coefficient] : terms) stack.push_back({term, place});
          continue;
        }
      }
      for (int source : graph_.sources(node)) stack.push_back({source, place});
    }
  };
  for (size_t scope = 0; scope < nest.scopes.size(); ++scope) {
    for (int store : nest.scopes[scope].stores) mark(store, static_cast<int>(scope));
  }
  for (const FoldGroup& group : nest.groups) {
    for (int fold : group.folds) {
      mark(graph_.source(fold, 0), group.last);
      mark(fold, group.scope);
    }
  }
}

double CostModel::access_cycles(const Nest& nest, int access, int scope, int lanes,
                                int vector_scope) const {
  bool store = graph_[access].op == Op::Store;
  int bytes = static_cast<int>(itemsize(graph_.param(graph_.slot(access)).dtype));
  if (lanes == 1) return 1;
  (void)scope;
  auto pattern =
      graph_.lane_pattern(graph_.source(access, 1), nest.scopes[vector_scope].range, lanes, lanes);
  double registers = std::max(1.0, double(lanes) * bytes / register_bytes_);
  double apart = lanes * (store ? 2.5 : 2.0);
  if (!pattern) return apart;
  auto [low, high] = std::minmax_element(pattern->begin(), pattern->end());
  if (*low == *high) return store ? apart : 1;
  double length = double(*high - *low + 1) / lanes;
  return length > 4                          ? apart
         : length == 1 && (*pattern)[1] == 1 ? registers
                                             : 2 * registers * length;
}

double CostModel::site_cycles(const Nest& nest, const Site& site) const {
  const KernelNode& node = graph_[site.node];
  int vector_scope = nest.vector_scope(graph_, site.node, site.scope);
  int lanes = vector_scope < 0 ? 1 : nest.scopes[vector_scope].lanes;
  if (node.op == Op::Load || node.op == Op::Store)
    return access_cycles(nest, site.node, site.scope, lanes, vector_scope);
  if (node.op == Op::Fold) return 0;
  double registers = std::max(1.0, double(lanes) * lane_bytes(node.dtype) / register_bytes_);
  if (node.dtype == DType::Index) {
    // Parts of an affine index are folded into addresses; a division is dear where lanes differ.
    const auto& terms = graph_.form(site.node).terms;
    if (terms.size() != 1 || terms[0].node != site.node) return 0.1;
    bool division = node.op == Op::IDiv || node.op == Op::Mod;
    if (division && lanes == 1) return 3;
    if (division && graph_.lane_pattern(site.node, nest.scopes[vector_scope].range, lanes, lanes))
      return 3;
    if (division) return 20 * registers;
  }
  return registers * register_cycles(node);
}

// Returns how many copies of a value the tiles make.
int CostModel::copies(const Nest& nest, int node, int scope) const {
  int count = 1;
  for (; scope > 0; scope = nest.scopes[scope].parent) {
    if (graph_[node].varies & bit(nest.scopes[scope].range)) count *= nest.scopes[scope].tile;
  }
  return count;
}

double CostModel::cycles(const Nest& nest) const {
  // How often each scope runs. Copies share a loop's overhead, but that is no reason to make them.
  std::vector<double> trips(nest.scopes.size(), 1.0), tiles(nest.scopes.size(), 1.0);
  double total = 0;
  for (size_t s = 1; s < nest.scopes.size(); ++s) {
    const Scope& scope = nest.scopes[s];
    const double size = scope.extent.one_value() ? 1 : double(graph_.range(scope.range).size);
    double steps = std::ceil(size / (scope.lanes * scope.tile));
    trips[s] = trips[scope.parent] * steps;
    tiles[s] = tiles[scope.parent] * scope.tile;
    total += trips[s] * tiles[s] * 1.5;
  }
  std::vector<double> body(nest.scopes.size(), 0.0);  // of one run of the scope
  for (const Site& site : sites_) {
    body[site.scope] += copies(nest, site.node, site.scope) * site_cycles(nest, site);
  }
  for (const FoldGroup& group : nest.groups) {
    double accumulate = 0;
    for (int fold : group.folds) {
      int vector_scope = nest.vector_scope(graph_, graph_.source(fold, 0), group.last);
      int lanes = vector_scope < 0 ? 1 : nest.scopes[vector_scope].lanes;
      double registers =
          std::max(1.0, double(lanes) * lane_bytes(graph_[fold].dtype) / register_bytes_);
      accumulate += registers * copies(nest, fold, group.scope);
    }
    // Accumulators wait for themselves: an iteration takes at least as long as an addition.
    body[group.last] = std::max(body[group.last] + accumulate, 4.0);
    if (group.last == group.scope) continue;
    // A row waits for its own results: about half of that is not covered by work on the next row.
    double wait = 40 + 8 * std::log2(nest.scopes[group.last].lanes);
    for (const Site& site : sites_) {
      if (site.scope == group.last && heavy(graph_[site.node].op)) wait += 60;
    }
    body[group.scope] += wait / 2;
  }
  for (size_t s = 0; s < nest.scopes.size(); ++s) total += trips[s] * body[s];
  return total;
}

std::vector<int> CostModel::nodes_in_scope(const Nest& nest) const {
  std::vector<int> count(nest.scopes.size());
  for (const Site& site : sites_) count[site.scope] += graph_[site.node].dtype != DType::Index;
  return count;
}

bool CostModel::body_has_vector(const Nest& nest, const FoldGroup& group) const {
  return std::ranges::any_of(group.folds, [&](int fold) {
    return nest.vector_scope(graph_, graph_.source(fold, 0), group.last) >= 0;
  });
}

// Bytes of the widest lane among the values that vary with the scope's range.
int CostModel::widest_item(const Nest& nest, int scope) const {
  int widest = 1;
  for (const Site& site : sites_) {
    const KernelNode& node = graph_[site.node];
    if (node.op == Op::Store || node.dtype == DType::Index || node.op == Op::Range) continue;
    if (!(node.varies & bit(nest.scopes[scope].range))) continue;
    widest = std::max(widest, lane_bytes(node.dtype));
  }
  return widest;
}

int CostModel::best_lanes(const Nest& nest, int scope) const {
  int64_t size = graph_.range(nest.scopes[scope].range).size;
  int base = std::max(2, register_bytes_ / widest_item(nest, scope));
  // Several registers per value hide latency and loop overhead as long as the live values fit.
  int accesses = 0, accumulators = 0, heavy_ops = 0, gathers = 0;
  Nest trial = nest;
  trial.scopes[scope].lanes = base;
  for (const Site& site : sites_) {
    const KernelNode& node = graph_[site.node];
    if (trial.vector_scope(graph_, site.node, site.scope) != scope) continue;
    if (node.op == Op::Load || node.op == Op::Store) {
      ++accesses;
      auto stride = graph_.lane_stride(graph_.source(site.node, 1), nest.scopes[scope].range, base);
      gathers += !stride || std::abs(*stride) > 4;
    }
    heavy_ops += heavy(node.op);
  }
  for (const FoldGroup& group : nest.groups) {
    for (int fold : group.folds) {
      accumulators += trial.vector_scope(graph_, graph_.source(fold, 0), group.last) == scope;
    }
  }
  int registers = 4;
  if (gathers > 0 || heavy_ops > 1 || accesses + accumulators > 12) {
    registers = 1;
  } else if (heavy_ops > 0 || accesses + accumulators > 5) {
    registers = 2;
  }
  int64_t most = int64_t{base} * registers;
  if (size <= most)
    return std::max(2, static_cast<int>(std::bit_ceil(static_cast<uint64_t>(size))));
  // A last vector that is nearly empty wastes more than wide vectors gain.
  for (int64_t lanes = most; lanes > base; lanes /= 2) {
    int64_t blocks = (size + lanes - 1) / lanes;
    if (size % lanes == 0 || size * 6 >= blocks * lanes * 5) return static_cast<int>(lanes);
  }
  return base;
}

// Tells whether the values that must stay in registers while folds run fit into them.
bool CostModel::fits_registers(const Nest& nest) const {
  double available = register_bytes_ == 64 ? 24 : 12;
  auto registers = [&](int node, int scope) {
    int vector_scope = nest.vector_scope(graph_, node, scope);
    int lanes = vector_scope < 0 ? 1 : nest.scopes[vector_scope].lanes;
    double each = std::max(1.0, double(lanes) * lane_bytes(graph_[node].dtype) / register_bytes_);
    return each * copies(nest, node, scope);
  };
  for (const FoldGroup& group : nest.groups) {
    double held = 0;
    for (int fold : group.folds) held += registers(graph_.source(fold, 0), group.last);
    if (held > available) return false;
  }
  for (const Site& site : sites_) {
    if (heavy(graph_[site.node].op) && registers(site.node, site.scope) > available / 3)
      return false;
  }
  return true;
}

// Several rows at once: short folds of one row would wait for themselves, and rows share loads.
void CostModel::choose_tile(Nest& nest) {
  if (nest.groups.empty()) return;
  Nest best = nest;
  double best_cycles = 0.85 * cycles(nest);
  for (int scope : nest.loops) {
    if (nest.scopes[scope].lanes > 1) continue;
    int64_t size = graph_.range(nest.scopes[scope].range).size;
    for (int tile : {2, 3, 4, 6, 8}) {
      if (tile > size || static_cast<int64_t>(sites_.size()) * tile > kMostNodes) break;
      Nest trial = nest;
      trial.scopes[scope].tile = tile;
      // Tiles take the place of several registers per value.
      for (bool shrunk = true; shrunk && !fits_registers(trial);) {
        shrunk = false;
        for (Scope& s : trial.scopes) {
          if (s.lanes * widest_ <= register_bytes_) continue;
          // Lanes that take a fold's range whole are the order of its sum, which another kernel of the
          // same fold must find again.
          if (s.group >= 0 && s.lanes >= graph_.range(s.range).size) continue;
          s.lanes /= 2;
          shrunk = true;
        }
      }
      if (!fits_registers(trial)) break;
      double rest = size % tile ? 1.05 : 1.0;
      double total = cycles(trial) * rest;
      if (total < best_cycles) best = trial, best_cycles = total;
    }
  }
  nest = std::move(best);
}

// Rows of two loops at once, where a fold takes its range in one step and holds no sums between
// steps. Of attention scores, out[g, h, p] = sum_d query[g, h, d] * key[g, p, d], three heads and two
// positions widen a key of bf16 once for all heads, and load a query once for both positions. The
// lanes stay as they are, since they are the order of a sum.
void CostModel::choose_tile_of_two(Nest& nest) {
  if (nest.groups.size() != 1 || nest.loops.size() < 2) return;
  const FoldGroup& group = nest.groups[0];
  const Scope& row = nest.scopes[group.last];
  if (group.first != group.last || row.lanes < graph_.range(row.range).size) return;
  const bool tiled =
      std::ranges::any_of(nest.loops, [&](int l) { return nest.scopes[l].tile > 1; });
  if (!tiled) return;
  Nest best = nest;
  double best_cycles = 0.95 * cycles(nest);
  const auto rest = [&](int scope, int tile) {
    return graph_.range(nest.scopes[scope].range).size % tile ? 1.05 : 1.0;
  };
  auto each_tile = [&](int scope, auto&& f) {
    if (nest.scopes[scope].lanes > 1) return;
    for (int tile : {2, 3, 4, 6, 8}) {
      if (tile <= graph_.range(nest.scopes[scope].range).size) f(tile);
    }
  };
  for (size_t inner = 1; inner < nest.loops.size(); ++inner) {
    const int a = nest.loops[inner - 1], b = nest.loops[inner];
    each_tile(a, [&](int first) {
      each_tile(b, [&](int second) {
        if (static_cast<int64_t>(sites_.size()) * first * second > kMostNodes) return;
        Nest trial = nest;
        for (int loop : nest.loops) trial.scopes[loop].tile = 1;
        trial.scopes[a].tile = first;
        trial.scopes[b].tile = second;
        if (!fits_registers(trial)) return;
        const double total = cycles(trial) * rest(a, first) * rest(b, second);
        if (total < best_cycles) best = std::move(trial), best_cycles = total;
      });
    });
  }
  nest = std::move(best);
}

// Tells whether the loop reads long rows of a large buffer, one after another, each of them once.
// Memory gives such a walk its full rate. Rows side by side are walks that jump at the end of each
// row, and processors fetch less of them in advance: four rows of 1536 bytes come at 4/5 of the
// rate. Rows that several folds read wait for each other's results, which rows side by side hide.
bool CostModel::streams_rows(const Nest& nest, int loop) const {
  constexpr int64_t kLarge = 256 << 10, kLong = 8, kOften = 4;
  auto streams = [&](const Site& site) {
    const KernelNode& node = graph_[site.node];
    const Scope& row = nest.scopes[site.scope];
    if (node.op != Op::Load || row.group < 0 || row.lanes == 1) return false;
    if (!(node.varies & bit(nest.scopes[loop].range))) return false;
    const ParamInfo& param = graph_.param(graph_.slot(site.node));
    if (param.numel * static_cast<int64_t>(itemsize(param.dtype)) < kLarge) return false;
    if (graph_.range(row.range).size < kLong * row.lanes) return false;
    if (graph_.lane_stride(graph_.source(site.node, 1), row.range, row.lanes) != 1) return false;
    int64_t reads = 1;
    for (int s = site.scope; s > 0; s = nest.scopes[s].parent)
      reads *= nest.scopes[s].extent.one_value() ? 1 : graph_.range(nest.scopes[s].range).size;
    return reads <= kOften * param.numel;
  };
  return nest.groups.size() == 1 && std::ranges::any_of(sites_, streams);
}

// Chooses the order by quads for folds along bf16 on x86: there one instruction widens half of a
// register, and it takes two in the order of memory. f32 that is read along the same fold takes one
// to come into that order:
//
//   sum_k x[k] * w[i, k]                      x, w bf16          two are saved
//   sum_k x[k] * v[i, k], x[k] * w[i, k]      x f32, v, w bf16   two are saved, one is added
//   sum_k x[k] * w[i, k]                      x f32, w bf16      as many: nothing is gained
//
// Loops in which lanes differ by more than what they read, as by a mask, keep the order of memory.
void CostModel::choose_lane_order(Nest& nest) const {
  if (!target_.triple.starts_with("x86_64")) return;
  for (const FoldGroup& group : nest.groups) {
    Scope& scope = nest.scopes[group.last];
    if (scope.group < 0 || scope.lanes <= 8 || !scope.groups.empty()) continue;
    int saved = 0, added = 0;
    const bool alike = std::ranges::all_of(sites_, [&](const Site& site) {
      const KernelNode& node = graph_[site.node];
      if (node.dtype == DType::Index) return true;
      if (nest.vector_scope(graph_, site.node, site.scope) != group.last) return true;
      const std::span<const int> sources = graph_.sources(site.node);
      if (node.op != Op::Load) {
        return std::ranges::none_of(sources, [&](int source) {
          return graph_[source].dtype == DType::Index && graph_[source].varies & bit(scope.range);
        });
      }
      const ParamInfo& param = graph_.param(graph_.slot(site.node));
      const bool halves = param.dtype == DType::BF16;
      const bool masked = sources.size() > 2 && graph_[sources[2]].varies & bit(scope.range);
      if (masked || (!halves && param.dtype != DType::F32)) return false;
      if (graph_.lane_stride(sources[1], scope.range, scope.lanes) != 1) return false;
      (halves ? saved : added) += copies(nest, site.node, site.scope);
      return true;
    });
    scope.by_quads = alike && saved > added;
  }
}

// Numbers of lanes worth a look: a register full, or the whole range when it is a few registers
// long (every index is then a known pattern).
std::vector<int> CostModel::lane_options(const Nest& nest, int scope) const {
  int64_t size = graph_.range(nest.scopes[scope].range).size;
  int base = std::max(2, register_bytes_ / widest_item(nest, scope));
  int whole =
      static_cast<int>(std::bit_ceil(static_cast<uint64_t>(std::min<int64_t>(size, 4 * base))));
  // A fold's lanes are the order of its sum, which no estimate of its kernel's time may choose.
  const bool fold = nest.scopes[scope].group >= 0;
  if (size <= base || (fold && size <= 4 * base)) return {whole};
  if (size <= 4 * base) return {base, whole};
  return {base};
}

// Changes tiles and lanes of outer loops. For y[i] = sum_k x[i, k] in tiles of 4 rows and 16 lanes
// of k, the tile becomes 8 or 1; the lanes are the order of the sum and stay.
void CostModel::lean(Nest& nest, const Leaning& leaning) const {
  if (leaning.tile != 0 && !nest.groups.empty()) {
    int tiled = -1;  // the innermost loop that has a tile, or could have one
    for (int loop : nest.loops) {
      const Scope& s = nest.scopes[loop];
      if (s.tile > 1 || (s.lanes == 1 && (tiled < 0 || nest.scopes[tiled].tile == 1))) tiled = loop;
    }
    if (tiled >= 0) {
      const int64_t most = std::min<int64_t>(graph_.range(nest.scopes[tiled].range).size,
                                             kMostNodes / static_cast<int64_t>(sites_.size()));
      int& tile = nest.scopes[tiled].tile;
      if (leaning.tile < 0) {
        for (int loop : nest.loops) nest.scopes[loop].tile = 1;
      } else if (int64_t{tile} << leaning.tile <= most) {
        tile <<= leaning.tile;
      }
    }
  }
  for (int loop : nest.loops) {
    Scope& s = nest.scopes[loop];
    const int64_t size = graph_.range(s.range).size;
    if (s.lanes == 1) continue;
    if (leaning.lanes > 0 && int64_t{s.lanes} << leaning.lanes <= size) s.lanes <<= leaning.lanes;
    if (leaning.lanes < 0) s.lanes = std::max(2, s.lanes >> -leaning.lanes);
  }
}

void CostModel::choose_vectors(Nest& nest) {
  find_sites(nest);
  // Each choice of a loop (or none), with each fold group's innermost range where it is free.
  Nest best = nest;
  double best_cycles = INFINITY;
  auto complete = [&](Nest trial) {
    for (const FoldGroup& group : trial.groups) {
      if (group.last == group.scope || body_has_vector(trial, group)) continue;
      double least = cycles(trial);
      int chosen = 1;
      for (int lanes : lane_options(trial, group.last)) {
        trial.scopes[group.last].lanes = lanes;
        if (double now = cycles(trial); now < least) least = now, chosen = lanes;
      }
      trial.scopes[group.last].lanes = chosen;
    }
    double total = cycles(trial);
    if (total < best_cycles) best = std::move(trial), best_cycles = total;
  };
  for (auto loop = nest.loops.rbegin(); loop != nest.loops.rend(); ++loop) {
    for (int lanes : lane_options(nest, *loop)) {
      Nest trial = nest;
      trial.scopes[*loop].lanes = lanes;
      complete(std::move(trial));
    }
  }
  complete(nest);
  nest = std::move(best);
  for (size_t scope = 1; scope < nest.scopes.size(); ++scope) {
    Scope& s = nest.scopes[scope];
    if (s.lanes > 1 && s.lanes < graph_.range(s.range).size) {
      s.lanes = best_lanes(nest, static_cast<int>(scope));
    }
  }
  widest_ = 1;
  for (size_t scope = 1; scope < nest.scopes.size(); ++scope) {
    widest_ = std::max(widest_, widest_item(nest, static_cast<int>(scope)));
  }
  choose_tile(nest);
  choose_tile_of_two(nest);
  nest.cost_ns = cycles(nest) / kCyclesPerNs;
  // The lanes that the tile chose stay: they are the order of a sum.
  for (int loop : nest.loops) {
    if (nest.scopes[loop].tile > 1 && streams_rows(nest, loop)) nest.scopes[loop].tile = 1;
  }
}

}  // namespace tinyshard::codegen
