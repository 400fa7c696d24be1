// Steps that make no value of their own, or leave it as it is: writes, placements, realize.
#include <limits>

#include "tests/fuzz/draw.h"
#include "tests/fuzz/views.h"

namespace fuzz {
namespace {

bool placement(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  s.op = "shard", s.in = {x};
  for (size_t i = 0; i < d.profile().mesh.size(); ++i) s.n.push_back(d.chance(60) ? d.axis(x) : -1);
  int y = d.with_dims(1);
  if (d.chance(25) && y >= 0 && d.shape(y) == d.shape(x))
    s.op = "shard_like", s.in = {x, y}, s.n = {};
  return true;
}

// A link from a part that has elements to one that has some, too.
std::vector<int64_t> link(Draft& d, const Part& part, int64_t limit) {
  const int rank = int(part.shape.size());
  int kind = rank == 0 ? int(Link::Unsqueeze) : d.pick(0, kLinks - 1);
  if (kind == int(Link::Variable)) {
    const int dim = d.pick(0, rank - 1);
    if (part.shape[size_t(dim)] >= limit) return {kind, dim, 0, 0, 0};
    kind = int(Link::Flip);
  }
  const int axis = d.pick(0, kind == int(Link::Unsqueeze) ? rank : rank - 1);
  std::vector<int64_t> n{kind, axis, 0, 0, 0};
  if (kind == int(Link::Flatten)) n[1] = 0;
  if (kind == int(Link::Transpose)) n[2] = d.pick(0, rank - 1);
  if (kind != int(Link::Number) && kind != int(Link::Slice)) return n;
  const int size = int(part.shape[size_t(axis)]);
  if (kind == int(Link::Number)) {
    n[2] = d.pick(-size, size - 1);
  } else {
    n[2] = d.pick(0, size - 1);
    n[3] = d.pick(int(n[2]) + 1, size);
    n[4] = d.chance(60) ? 1 : d.pick(1, 3);
  }
  return n;
}

// The program's variable, one that is made for it where there is none yet, or -1.
int variable_of(Draft& d) {
  if (d.profile().calls == 1) return -1;
  for (int v = 0; v < d.values(); ++v) {
    if (d.is_leaf(v) && d.usable(v) && d.leaf(v).role == Role::Variable) return v;
  }
  return d.chance(30) ? d.add_variable(d.pick(1, 4)) : -1;
}

bool write_to_view(Draft& d, Step& s, int target) {
  if (count(d.shape(target)) == 0) return false;
  Part part = whole(d.shape(target));
  s.n.clear();
  const int variable = variable_of(d);
  const int64_t limit = variable < 0 ? std::numeric_limits<int64_t>::max() : d.leaf(variable).limit;
  bool varies = false;
  for (int links = d.pick(1, 4); links > 0; --links) {
    const std::vector<int64_t> n = link(d, part, limit);
    Step one;
    one.n = n;
    part = next(part, with_number(one, 0).n);
    varies = varies || n[0] == int64_t(Link::Variable);
    s.n.insert(s.n.end(), n.begin(), n.end());
  }
  Shape given = part.shape;
  if (!given.empty() && d.chance(30)) given.erase(given.begin());
  const int y = d.like(given, d.type(target));
  if (y < 0 || y == target) return false;
  static const std::vector<std::string> kWrites = {"view_assign", "view_add_assign",
                                                   "view_sub_assign", "view_mul_assign"};
  s.op = d.one_of(kWrites), s.in = {target, y};
  Operands operands{&d.at(target), &d.at(y)};
  if (varies) s.in.push_back(variable), operands.push_back(&d.at(variable));
  try {
    interpret(s, operands);
    return true;
  } catch (const Invalid&) {
    return false;
  }
}

// Rows of the target, written or added to where they lie.
bool write_rows(Draft& d, Step& s, int target) {
  Shape index = d.shape(target);
  if (count(index) == 0 || index.empty()) return false;
  const int64_t dim = d.axis(target), n = index[size_t(dim)];
  index[size_t(dim)] = d.pick(1, 8);
  const bool sums = is_float(d.type(target)) && d.chance(70);
  s.op = sums ? "scatter_reduce_assign" : "scatter_assign", s.n = {dim};
  if (sums) s.n = {dim, d.chance(60) ? 0 : d.pick(1, 4), d.chance(80)};
  const int places = draw_indices(d, index, n);
  if (places < 0) return false;
  const int src = d.like(index, d.type(target));
  s.in = {target, places, src};
  return src >= 0 && src != target && places != target;
}

bool write(Draft& d, Step& s, int target, int kind) {
  if ((kind == 4 || kind == 6) && d.chance(60)) return write_rows(d, s, target);
  if (kind == 5 || (kind < 5 && d.chance(40))) return write_to_view(d, s, target);
  for (int tries = 0; tries < 10; ++tries) {
    int y = d.any();
    if (y < 0 || y == target || d.type(y) != d.type(target)) continue;
    s.in = {target, y};
    if (kind == 7 && d.at(target).rank() > 0) {
      int64_t dim = d.axis(target), n = d.shape(target)[size_t(dim)];
      if (n == 0) continue;
      int low = d.pick(0, int(n) - 1);
      s.op = "setitem", s.n = {dim, low, d.pick(low + 1, int(n))};
    } else if (kind == 6 && d.at(target).rank() > 0) {
      int64_t n = d.shape(target)[0];
      if (n == 0) continue;
      s.op = "setitem_number", s.in = {target}, s.n = {1, d.pick(-int(n), int(n) - 1)};
      s.d = {double(d.pick(0, 3))};
    } else {
      static const std::vector<std::string> kWrites = {"assign",     "assign",     "add_assign",
                                                       "sub_assign", "mul_assign", "div_assign"};
      s.op = d.one_of(kWrites), s.n.clear();
    }
    try {
      Operands operands;
      for (int in : s.in) operands.push_back(&d.at(in));
      interpret(s, operands);
      return true;
    } catch (const Invalid&) {  // NOLINT(bugprone-empty-catch): another one is tried
    }
  }
  return false;
}

}  // namespace

bool draw_statement(Draft& d, Step& s) {
  const Profile& p = d.profile();
  int kind = d.pick(0, 9);
  if (!p.mesh.empty() && kind < 5) return placement(d, s);
  if (d.gradient()) return false;
  std::vector<int> targets, constants;
  int leaves = 0;
  for (int v = 0; v < d.values(); ++v) {
    if (!d.is_leaf(v)) continue;
    ++leaves;
    if (!d.usable(v)) continue;
    Role role = d.leaf(v).role;
    if (role == Role::Constant) constants.push_back(v);
    // Over several calls only a state may be written.
    if (p.calls == 1 ? role == Role::Constant : role == Role::State) targets.push_back(v);
  }
  if (kind == 9 && p.calls == 1 && leaves > 1 && !targets.empty()) {
    s.op = "free", s.in = {d.one_of(targets)};
    return true;
  }
  if (kind == 8) {
    if (constants.empty()) return false;
    s.op = "realize", s.in = {d.one_of(constants)};
    return true;
  }
  if ((!p.assigns && !p.stateful) || targets.empty()) return false;
  return write(d, s, d.one_of(targets), kind);
}

}  // namespace fuzz
