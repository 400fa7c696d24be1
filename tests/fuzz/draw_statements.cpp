// Steps that make no value of their own, or leave it as it is: writes, placements, realize.
#include "tests/fuzz/draw.h"

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

bool write(Draft& d, Step& s, int target, int kind) {
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
    } catch (const Invalid&) {
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
