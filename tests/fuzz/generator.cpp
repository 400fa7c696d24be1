// Random programs: a profile, some leaves, steps of the kinds that the profile likes, and at the
// end what is read and differentiated.
#include "tests/fuzz/generator.h"

#include <numeric>
#include <set>

#include "tests/fuzz/draft.h"
#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

using Draw = bool (*)(Draft&, Step&);
constexpr Draw kDraws[kKinds] = {draw_unary,    draw_binary,        draw_comparison, draw_types,
                                 draw_making,   draw_movement,      draw_joining,    draw_reduction,
                                 draw_identity, draw_norm,          draw_scan,       draw_ordering,
                                 draw_product,  draw_indexing,      draw_selection,  draw_pooling,
                                 draw_layer,    draw_decomposition, draw_statement};

void add_step(Draft& d) {
  Step step;
  if (d.profile().meets_sums && d.a_sum() < 0) {
    if (d.chance(75) ? draw_reduction(d, step) : draw_product(d, step)) d.keep(step);
    return;
  }
  const auto& weights = d.profile().weights;
  int at = d.pick(0, std::accumulate(std::begin(weights), std::end(weights), 0) - 1), kind = 0;
  while (at >= weights[kind]) at -= weights[kind++];
  if (kDraws[kind](d, step)) d.keep(step);
}

// Sums of many pieces of one value, no two of which are as long: more loops than one kernel may have.
void add_many_sizes(Draft& d) {
  const int pieces = d.pick(60, 80);
  const int x = d.add_leaf({pieces + 2}, d.main_type(), Style::Uniform);
  int sum = -1;
  for (int i = 0; i < pieces; ++i) {
    Step piece, reduced, added;
    piece.op = "shrink", piece.in = {x}, piece.n = {0, i + 2};
    const int cut = d.keep(piece);
    if (cut < 0) return;
    reduced.op = d.chance(80) ? "sum" : "max", reduced.in = {cut}, reduced.n = {0};
    const int made = d.keep(reduced);
    if (made < 0) return;
    if (sum < 0) {
      sum = made;
      continue;
    }
    added.op = "add", added.in = {sum, made};
    if (d.type(sum) != d.type(made) || (sum = d.keep(added)) < 0) return;
  }
}

// Chooses values that nothing uses, and some of the rest.
void choose_roots(Draft& d) {
  std::set<int> used;
  for (int v = 0; v < d.values(); ++v) {
    if (!d.is_leaf(v)) used.insert(d.step(v).in.begin(), d.step(v).in.end());
  }
  auto fits = [&](int v) { return d.usable(v) && (!d.gradient() || is_float(d.type(v))); };
  std::vector<int> ends;
  for (int v = 0; v < d.values(); ++v) {
    if (!d.is_leaf(v) && fits(v) && !used.contains(v)) ends.push_back(v);
  }
  d.shuffle(ends);
  if (ends.size() > 6) ends.resize(6);
  for (int i = d.pick(0, 2); i > 0; --i) {
    int v = d.gradient() ? d.any_float() : d.any();
    if (v >= 0 && std::ranges::find(ends, v) == ends.end()) ends.push_back(v);
  }
  for (int v = d.values() - 1; v >= 0 && ends.empty(); --v) {
    if (fits(v)) ends.push_back(v);
  }
  if (ends.empty()) ends.push_back(d.add_leaf({3}, Type::F32, Style::Uniform));
  d.roots = ends;
}

// Floats that the roots are made of: leaves, and results of any op but of shard(), which where
// nothing is placed is no value of its own.
void choose_targets(Draft& d) {
  std::vector<bool> leads(size_t(d.values()), false);
  for (int root : d.roots) leads[size_t(root)] = true;
  for (int v = d.values() - 1; v >= 0; --v) {
    if (d.is_leaf(v) || !leads[size_t(v)] || d.step(v).op == "detach" || !is_float(d.type(v)))
      continue;
    for (int in : d.step(v).in) {
      leads[size_t(in)] = leads[size_t(in)] || is_float(d.type(in));
      if (is_placement(d.step(v))) break;  // the other one only says where
    }
  }
  std::vector<int> targets;
  for (int v = 0; v < d.values(); ++v) {
    if (!leads[size_t(v)] || !is_float(d.type(v)) || d.at(v).at.empty()) continue;
    if (d.is_leaf(v) ? d.leaf(v).style == Style::Uniform : !is_placement(d.step(v)) && d.chance(15))
      targets.push_back(v);
  }
  d.shuffle(targets);
  if (targets.size() > 4) targets.resize(4);
  d.targets = targets;
  for (int v : targets) {
    if (d.is_leaf(v) && d.leaf(v).role == Role::Constant && d.chance(50)) d.make_parameter(v);
  }
}

}  // namespace

Program generate(uint64_t seed) {
  Draft d(seed);
  for (int i = d.pick(1, 4); i > 0; --i) d.add_leaf(d.any_shape(), d.main_type());
  if (!d.gradient() && d.profile().mesh.empty() && d.chance(1)) add_many_sizes(d);
  int wanted = d.profile().length;
  for (int tries = 0; d.steps() < wanted && tries < 20 * wanted; ++tries) add_step(d);
  choose_roots(d);
  if (d.gradient()) choose_targets(d);
  d.choose_feedback();
  return d.finished();
}

}  // namespace fuzz
