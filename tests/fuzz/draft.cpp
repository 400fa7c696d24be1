// The values of a program that is being made.
#include "tests/fuzz/draft.h"

#include <cmath>

namespace fuzz {
namespace {

constexpr int kMostLeaves = 8;

}  // namespace

Draft::Draft(uint64_t seed) : Choices(seed), profile_(choose_profile(*this)) {}

int Draft::any(bool (*fits)(Type)) {
  for (int tries = 0; tries < 12; ++tries) {
    if (profile_.meets_sums && chance(75)) {
      int value = a_sum();
      if (value >= 0 && (!fits || fits(type(value)))) return value;
    }
    int value = chance(55) ? pick(std::max(0, values() - 5), values() - 1) : pick(0, values() - 1);
    if (usable(value) && (!fits || fits(type(value)))) return value;
  }
  return -1;
}

int Draft::with_dims(int rank, bool (*fits)(Type)) {
  for (int tries = 0; tries < 12; ++tries) {
    int value = any(fits);
    if (value >= 0 && at(value).rank() >= rank && count(shape(value)) > 0) return value;
  }
  return -1;
}

int Draft::like(const Shape& wanted, Type type_wanted) {
  for (int tries = 0; tries < 6; ++tries) {
    int value = any();
    if (value >= 0 && shape(value) == wanted && type(value) == type_wanted) return value;
  }
  return leaves() < kMostLeaves ? add_leaf(wanted, type_wanted) : -1;
}

int Draft::partner(int x) {
  for (int tries = 0; tries < 6; ++tries) {
    int y = any();
    if (y < 0) continue;
    try {
      if (count(broadcast(shape(x), shape(y))) <= profile_.limit) return y;
    } catch (const Invalid&) {
    }
  }
  if (leaves() >= kMostLeaves) return x;
  Shape other = shape(x);
  for (int64_t& d : other) d = chance(25) ? 1 : d;
  if (!other.empty() && chance(20)) other.erase(other.begin());
  return add_leaf(other, main_type());
}

int Draft::result_of(const std::set<std::string>& ops, bool (*fits)(Type)) {
  std::vector<int> found;
  for (int v = 0; v < values(); ++v) {
    if (usable(v) && !is_leaf(v) && ops.contains(step(v).op) && (!fits || fits(type(v))))
      found.push_back(v);
  }
  return found.empty() ? -1 : one_of(found);
}

int Draft::a_sum() {
  static const std::set<std::string> kSums = {"sum", "mean", "max", "min", "prod", "matmul"};
  return result_of(kSums, nullptr);
}

int Draft::a_rounded_sum() {
  static const std::set<std::string> kSums = {
      "sum",         "mean",      "prod",      "var",    "std",    "logsumexp", "softmax",
      "log_softmax", "layernorm", "normalize", "matmul", "linear", "einsum",    "attention"};
  return result_of(kSums, is_float);
}

std::vector<int64_t> Draft::sharded_dims(int value) const {
  std::vector<int64_t> dims;
  if (!is_leaf(value)) return dims;
  for (int64_t dim : leaf(value).placement) {
    if (dim >= 0 && std::ranges::find(dims, dim) == dims.end()) dims.push_back(dim);
  }
  return dims;
}

int64_t Draft::any_size() {
  if (chance(1) && !profile_.gradient) return 0;
  if (profile_.sizes == Sizes::Small) return chance(12) ? 1 : pick(2, 9);
  return chance(10) ? 1 : one_of(kTails);
}

Shape Draft::any_shape() {
  if (!shapes_.empty() && chance(45)) return one_of(shapes_);
  Shape out;
  if (profile_.sizes == Sizes::Large) {
    static const std::vector<int64_t> kCounts = {32768, 40000, 65536, 66000, 100003};
    int64_t n = one_of(kCounts);
    int kind = pick(0, 2);
    if (kind == 0) out = {n};
    if (kind == 1) out = {n / 32, pick(31, 33)};
    if (kind == 2) out = {pick(3, 9), n / 8};
    return out;
  }
  for (int i = pick(0, 99) < 5 ? 0 : pick(1, 4); i > 0; --i) out.push_back(any_size());
  while (count(out) > profile_.limit / 2) out.pop_back();
  return out;
}

int Draft::insert(const Leaf& leaf) {
  values_.push_back({elements(leaf, 0), leaves()});
  leaves_.push_back(leaf);
  shapes_.push_back(leaf.shape);
  return values() - 1;
}

int Draft::add_leaf(const Shape& shape, Type type, Style style, int64_t limit) {
  Leaf leaf;
  leaf.type = type, leaf.shape = shape, leaf.style = style, leaf.limit = limit;
  leaf.seed = uint64_t(pick(1, 1000000));
  int arguments = 0;
  for (const Leaf& l : leaves_) arguments += l.role == Role::Argument;
  bool varies = style != Style::Same && style != Style::Range;
  if (profile_.calls > 1 && arguments < 3 && varies && chance(45))
    leaf.role = Role::Argument;
  else if (profile_.stateful && style != Style::Index && chance(60))
    leaf.role = Role::State;
  for (size_t i = 0; i < profile_.mesh.size(); ++i) {
    bool sharded = !shape.empty() && chance(profile_.meets_sums ? 85 : 60);
    leaf.placement.push_back(sharded ? pick(0, int(shape.size()) - 1) : -1);
  }
  return insert(leaf);
}

int Draft::add_leaf(const Shape& shape, Type type) {
  Style style = profile_.style;
  if (chance(10) && !profile_.gradient) style = chance(50) ? Style::Same : Style::Range;
  if (style == Style::Range && (type == Type::Bool || count(shape) > 120 || shape.empty()))
    style = Style::Uniform;
  return add_leaf(shape, type, style);
}

int Draft::add_variable(int64_t limit) {
  for (const Leaf& l : leaves_) {
    if (l.role == Role::Variable) return -1;
  }
  Leaf leaf;
  leaf.type = Type::I64, leaf.role = Role::Variable, leaf.style = Style::Index;
  leaf.limit = limit, leaf.seed = uint64_t(pick(1, 1000));
  return insert(leaf);
}

bool Draft::healthy(const Array& x) {
  size_t bad = 0;
  bool large = false;
  double top = is_half(x.type) ? 500 : x.type == Type::F32 ? 1e5 : 1e7;
  for (const Element& e : x.at) {
    bad += !e.known() || (is_float(x.type) && !std::isfinite(e.v));
    // A value that is not known to a hundredth says nothing any more.
    bad += is_float(x.type) && e.err > 0.01 * std::max(1.0, std::abs(e.v));
    large = large || std::abs(e.v) > top;
  }
  if (profile_.style != Style::Wild && 4 * bad > x.at.size() && !chance(3)) return false;
  if (profile_.gradient && bad > 0) return false;
  return !large || chance(5);
}

int Draft::keep(const Step& step) {
  for (int in : step.in) {
    if (in < 0 || !usable(in)) return -1;
  }
  auto add = [&](Array array) {
    values_.push_back({std::move(array), -1, steps()});
    steps_.push_back(step);
    return values() - 1;
  };
  try {
    Operands operands;
    for (int in : step.in) operands.push_back(&at(in));
    if (is_statement(step)) {
      int target = step.in[0];
      if (!is_leaf(target)) return -1;
      Array value = writes(step) ? interpret(step, operands) : at(target);
      if (writes(step) && !healthy(value)) return -1;
      if (writes(step)) values_[size_t(target)].array = value;
      int me = add(std::move(value));
      dead_.insert(me);
      if (step.op == "free") dead_.insert(target);
      return me;
    }
    Array value = interpret(step, operands);
    if (count(value.shape) > profile_.limit || !healthy(value)) return -1;
    return add(std::move(value));
  } catch (const Invalid&) {
    return -1;
  }
}

void Draft::choose_feedback() {
  for (int v = 0; v < values() && profile_.calls > 1; ++v) {
    if (!is_leaf(v) || leaf(v).role != Role::Argument || leaf(v).style == Style::Index) continue;
    for (size_t k = 0; k < roots.size(); ++k) {
      if (type(roots[k]) == leaf(v).type && shape(roots[k]) == leaf(v).shape && chance(60)) {
        feedback_.push_back({int(k), v});
        break;
      }
    }
  }
}

Program Draft::finished() const {
  Program p;
  p.leaves = leaves_, p.steps = steps_, p.roots = roots, p.targets = targets;
  p.feedback = feedback_, p.mesh = profile_.mesh, p.calls = profile_.calls;
  auto number = [&](int& value) {
    const Value& v = values_[size_t(value)];
    value = v.leaf >= 0 ? v.leaf : leaves() + v.step;
  };
  for (Step& step : p.steps) std::ranges::for_each(step.in, number);
  std::ranges::for_each(p.roots, number);
  std::ranges::for_each(p.targets, number);
  for (Feedback& f : p.feedback) number(f.leaf);
  return p;
}

}  // namespace fuzz
