// Random programs. A program has a profile (its types, sizes, length and the ops that it likes), so
// that each kind of composition comes up often somewhere instead of everything seldom everywhere.
#include "tests/fuzz/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

constexpr int64_t kTails[] = {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 129};

const std::vector<std::string> kSmooth = {
    "neg",   "square", "exp",        "sin",       "cos",         "tanh",       "sigmoid",
    "silu",  "gelu",   "gelu_exact", "mish",      "softplus",    "logsigmoid", "quick_gelu",
    "erf",   "atan",   "asinh",      "softsign",  "selu",        "elu",        "celu",
    "relu",  "abs",    "leaky_relu", "hardswish", "hardsigmoid", "relu6",      "sinh",
    "cosh",  "exp2",   "sqrt",       "rsqrt",     "reciprocal",  "log",        "log2",
    "log10", "asin",   "acos",       "acosh",     "atanh"};
const std::vector<std::string> kSteps = {"floor", "ceil", "round", "trunc", "sign"};
const std::vector<std::string> kTests = {"isnan", "isinf", "isfinite", "logical_not"};
const std::vector<std::string> kArithmetic = {"add", "sub", "mul", "div", "maximum", "minimum"};
const std::vector<std::string> kOddArithmetic = {"mod",      "fmod",      "floor_div",
                                                 "copysign", "logaddexp", "pow"};
const std::vector<std::string> kComparisons = {"eq", "ne", "lt", "gt", "le", "ge"};
const std::vector<std::string> kBits = {"bitwise_and", "bitwise_or", "bitwise_xor", "lshift",
                                        "rshift"};
const std::vector<std::string> kReductions = {"sum", "mean", "max",       "min", "prod",
                                              "var", "std",  "logsumexp", "any", "all"};
const std::vector<std::string> kNorms = {"softmax", "log_softmax", "layernorm", "softmin"};
const std::vector<std::string> kScans = {"cumsum",        "cumprod",       "cummax",      "cummin",
                                         "cummax_places", "cummin_places", "logcumsumexp"};
const std::vector<std::string> kOrders = {"sort_values", "sort_order", "topk_values",
                                          "topk_order",  "argmax",     "argmin"};

class Generator {
 public:
  explicit Generator(uint64_t seed) : random_(seed) {}

  Program make() {
    choose_profile();
    int leaves = pick(1, 4);
    for (int i = 0; i < leaves; ++i) add_leaf(any_shape(), main_type());
    int wanted = length();
    for (int tries = 0; int(p_.steps.size()) < wanted && tries < 20 * wanted; ++tries) add_step();
    choose_roots();
    return p_;
  }

 private:
  // --- choices ---------------------------------------------------------------------------------
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool chance(int percent) { return pick(1, 100) <= percent; }
  template <class List>
  const auto& one_of(const List& list) {
    return *(std::begin(list) + pick(0, int(std::size(list)) - 1));
  }

  void choose_profile() {
    gradient_ = chance(20);
    bool mesh = chance(30);
    int kind = pick(0, 9);
    if (gradient_) {
      types_ = {chance(70) ? Type::F64 : Type::F32};
    } else if (kind <= 3) {
      types_ = {Type::F32};
    } else if (kind == 4) {
      types_ = {Type::F64};
    } else if (kind == 5) {
      types_ = {chance(50) ? Type::F16 : Type::BF16};
    } else if (kind == 6) {
      types_ = {Type(pick(1, 8))};
    } else {
      for (int i = pick(2, 4); i > 0; --i) types_.push_back(Type(pick(0, kTypes - 1)));
    }
    int length_kind = pick(0, 99);
    length_ = length_kind < 60 ? pick(3, 12) : length_kind < 92 ? pick(13, 40) : pick(41, 120);
    if (length_kind == 99) length_ = pick(121, 300);
    if (gradient_) length_ = std::min(length_, chance(80) ? 10 : 25);
    int size_kind = pick(0, 99);
    if (size_kind < 65 || gradient_ || length_ > 60)
      sizes_ = Sizes::Small;
    else if (size_kind < 95)
      sizes_ = Sizes::Tails;
    else
      sizes_ = Sizes::Large, length_ = std::min(length_, 8);
    limit_ = sizes_ == Sizes::Small ? 600 : sizes_ == Sizes::Tails ? 6000 : 150000;
    if (mesh) {
      static const std::vector<std::vector<int64_t>> kMeshes = {{2}, {3}, {4}, {2, 2}};
      p_.mesh = one_of(kMeshes);
    }
    meets_sums_ = mesh && chance(40);
    if (!gradient_ && chance(35)) {
      p_.calls = pick(2, 4);
      stateful_ = chance(60);
    }
    assigns_ = !gradient_ && chance(25);
    style_ = chance(75) ? Style::Uniform : chance(80) ? Style::Whole : Style::Wild;
    if (gradient_) style_ = Style::Uniform;
    for (int& w : weights_) w = chance(30) ? 12 : pick(0, 4);
    weights_[0] += 4, weights_[1] += 4, weights_[4] += 2;
    if (meets_sums_) weights_[0] += 8, weights_[6] = 3, length_ = std::max(length_, 10);
  }

  int length() const { return length_; }
  Type main_type() { return one_of(types_); }

  int64_t any_size() {
    if (chance(1) && !gradient_) return 0;
    if (sizes_ == Sizes::Small) return chance(12) ? 1 : pick(2, 9);
    return chance(10) ? 1 : one_of(kTails);
  }
  Shape any_shape() {
    if (!shapes_.empty() && chance(45)) return one_of(shapes_);
    Shape shape;
    if (sizes_ == Sizes::Large) {
      int kind = pick(0, 2);
      int64_t n = one_of(std::vector<int64_t>{32768, 40000, 65536, 66000, 100003});
      if (kind == 0) shape = {n};
      if (kind == 1) shape = {n / 32, pick(31, 33)};
      if (kind == 2) shape = {pick(3, 9), n / 8};
    } else {
      for (int i = pick(0, 99) < 5 ? 0 : pick(1, 4); i > 0; --i) shape.push_back(any_size());
      while (count(shape) > limit_ / 2) shape.pop_back();
    }
    return shape;
  }

  // --- the pool --------------------------------------------------------------------------------
  const Array& at(int value) const { return pool_[size_t(value)]; }
  int pool() const { return int(pool_.size()); }
  bool usable(int value) const { return !dead_.contains(value); }

  int any(bool (*fits)(Type) = nullptr) {
    for (int tries = 0; tries < 12; ++tries) {
      if (meets_sums_ && chance(75)) {
        int value = a_sum();
        if (value >= 0 && (!fits || fits(at(value).type))) return value;
      }
      int value = chance(55) ? pick(std::max(0, pool() - 5), pool() - 1) : pick(0, pool() - 1);
      if (usable(value) && (!fits || fits(at(value).type))) return value;
    }
    return -1;
  }
  // The result of a reduction or a product, which on a mesh may still be pending.
  int a_sum() {
    std::vector<int> sums;
    for (int v = int(p_.leaves.size()); v < pool(); ++v) {
      static const std::set<std::string> kSums = {"sum", "mean", "max", "min", "prod", "matmul"};
      if (usable(v) && kSums.contains(p_.step(v).op)) sums.push_back(v);
    }
    return sums.empty() ? -1 : one_of(sums);
  }
  int any_float() { return any(is_float); }
  int any_int() { return any(is_int); }
  int with_dims(int rank, bool (*fits)(Type) = nullptr) {
    for (int tries = 0; tries < 12; ++tries) {
      int value = any(fits);
      if (value >= 0 && at(value).rank() >= rank && count(at(value).shape) > 0) return value;
    }
    return -1;
  }
  int64_t axis(int value) { return pick(0, int(at(value).rank()) - 1); }

  // New leaves go before all steps, so every number from there on moves by one.
  int add_leaf(const Shape& shape, Type type, Style style, int64_t limit = 0) {
    Leaf leaf;
    leaf.type = type, leaf.shape = shape, leaf.style = style, leaf.limit = limit;
    leaf.seed = uint64_t(pick(1, 1000000));
    int arguments = 0;
    for (const Leaf& l : p_.leaves) arguments += l.role == Role::Argument;
    if (p_.calls > 1 && arguments < 3 && chance(45) && style != Style::Same &&
        style != Style::Range)
      leaf.role = Role::Argument;
    else if (stateful_ && chance(60) && style != Style::Index)
      leaf.role = Role::State;
    if (!p_.mesh.empty()) {
      for (size_t i = 0; i < p_.mesh.size(); ++i) {
        bool sharded = !shape.empty() && chance(60);
        leaf.placement.push_back(sharded ? pick(0, int(shape.size()) - 1) : -1);
      }
    }
    return insert(leaf);
  }
  int insert(const Leaf& leaf) {
    int me = int(p_.leaves.size());
    for (Step& step : p_.steps) {
      for (int& in : step.in) in += in >= me;
    }
    std::set<int> dead;
    for (int value : dead_) dead.insert(value + (value >= me));
    dead_ = std::move(dead);
    p_.leaves.push_back(leaf);
    pool_.insert(pool_.begin() + me, elements(leaf, 0));
    shapes_.push_back(leaf.shape);
    return me;
  }
  int add_leaf(const Shape& shape, Type type) {
    Style style = style_;
    if (chance(10) && !gradient_) style = chance(50) ? Style::Same : Style::Range;
    if (style == Style::Range && (type == Type::Bool || count(shape) > 120 || shape.empty()))
      style = Style::Uniform;
    return add_leaf(shape, type, style);
  }

  // --- steps -----------------------------------------------------------------------------------
  void add_step() {
    if (meets_sums_ && a_sum() < 0) {
      Step sum;
      if (chance(75) ? reduction(sum) : product(sum)) keep(sum);
      return;
    }
    int total = std::accumulate(std::begin(weights_), std::end(weights_), 0);
    int at = pick(0, total - 1), kind = 0;
    while (at >= weights_[kind]) at -= weights_[kind++];
    Step step;
    bool made = false;
    switch (kind) {
      case 0:
        made = unary(step);
        break;
      case 1:
        made = binary(step);
        break;
      case 2:
        made = comparison(step);
        break;
      case 3:
        made = types(step);
        break;
      case 4:
        made = movement(step);
        break;
      case 5:
        made = joining(step);
        break;
      case 6:
        made = reduction(step);
        break;
      case 7:
        made = norm(step);
        break;
      case 8:
        made = scan(step);
        break;
      case 9:
        made = ordering(step);
        break;
      case 10:
        made = product(step);
        break;
      case 11:
        made = indexing(step);
        break;
      case 12:
        made = pooling(step);
        break;
      default:
        made = statement(step);
        break;
    }
    if (made) keep(step);
  }

  bool healthy(const Array& x) {
    size_t bad = 0;
    bool large = false;
    double top = is_half(x.type) ? 500 : x.type == Type::F32 ? 1e5 : 1e7;
    for (const Element& e : x.at) {
      bad += !e.known() || (is_float(x.type) && !std::isfinite(e.v));
      // What is not known to a hundredth says nothing any more.
      bad += is_float(x.type) && e.err > 0.01 * std::max(1.0, std::abs(e.v));
      large = large || std::abs(e.v) > top;
    }
    if (style_ != Style::Wild && 4 * bad > x.at.size() && !chance(3)) return false;
    if (gradient_ && bad > 0) return false;
    return !large || chance(5);
  }

  void keep(const Step& step) {
    for (int in : step.in) {
      if (in < 0 || !usable(in)) return;
    }
    try {
      Operands operands;
      for (int in : step.in) operands.push_back(&at(in));
      if (is_statement(step)) {
        int target = step.in[0];
        if (!p_.is_leaf(target)) return;
        Array value = writes(step) ? interpret(step, operands) : at(target);
        if (writes(step) && !healthy(value)) return;
        if (writes(step)) pool_[size_t(target)] = value;
        p_.steps.push_back(step);
        pool_.push_back(value);
        dead_.insert(pool() - 1);
        if (step.op == "free") dead_.insert(target);
        return;
      }
      Array value = interpret(step, operands);
      if (count(value.shape) > limit_ || !healthy(value)) return;
      p_.steps.push_back(step);
      pool_.push_back(std::move(value));
    } catch (const Invalid&) {
    }
  }

  bool unary(Step& s) {
    int x = any();
    if (x < 0) return false;
    Type type = at(x).type;
    s.in = {x};
    if (is_float(type)) {
      s.op = chance(85) || gradient_ ? one_of(kSmooth) : one_of(kSteps);
      if (chance(5)) s.op = "contiguous";
      if (chance(2)) s.op = "detach";
      if (chance(3)) s.op = "clamp", s.d = {-0.75, 1.25};
      if (chance(3) && !gradient_) s.op = one_of(kTests);
    } else if (type == Type::Bool) {
      s.op = chance(50) ? "logical_not" : "bitwise_not";
    } else {
      static const std::vector<std::string> kOps = {
          "abs",         "sign",        "square",     "relu", "relu6",   "neg",
          "bitwise_not", "logical_not", "contiguous", "sin",  "sigmoid", "sqrt"};
      s.op = one_of(kOps);
    }
    return true;
  }

  // A value that broadcasts with x: itself, one of the pool, or a new leaf.
  int partner(int x) {
    for (int tries = 0; tries < 6; ++tries) {
      int y = any();
      if (y < 0) continue;
      try {
        if (count(broadcast(at(x).shape, at(y).shape)) <= limit_) return y;
      } catch (const Invalid&) {
      }
    }
    if (p_.leaves.size() >= 8) return x;
    Shape shape = at(x).shape;
    for (int64_t& d : shape) d = chance(25) ? 1 : d;
    if (!shape.empty() && chance(20)) shape.erase(shape.begin());
    return -2 - add_leaf(shape, main_type());  // x may have moved
  }
  // Both operands, after a new leaf may have moved the first.
  bool pair(Step& s, int x) {
    if (x < 0) return false;
    int before = int(p_.leaves.size());
    int y = partner(x);
    if (y <= -2) y = -2 - y, x += x >= before;
    s.in = chance(50) ? std::vector<int>{x, y} : std::vector<int>{y, x};
    return true;
  }

  bool binary(Step& s) {
    int x = any();
    if (x < 0) return false;
    Type type = at(x).type;
    int kind = pick(0, 99);
    if (kind < 25) {  // with a number
      s.in = {x};
      bool whole = is_float(type) ? chance(20) : chance(85);
      static const std::vector<double> kReals = {0.5, -0.25, 2, 1.5, 0.1, 3, -1};
      s.n = {whole};
      s.d = {whole ? double(pick(is_unsigned(type) || type == Type::Bool ? 0 : -3, 5))
                   : one_of(kReals)};
      s.op = one_of(kArithmetic);
      if (type == Type::Bool) return whole = false, s.n = {0}, true;
      if (chance(20)) {
        s.op = "pow";
        static const std::vector<double> kPowers = {2, 3, 0.5, -1, 1.5, 1, 4};
        s.d = {whole ? double(pick(0, 4)) : one_of(kPowers)};
      }
      return true;
    }
    if (!pair(s, x)) return false;
    Type both = promoted(at(s.in[0]).type, at(s.in[1]).type);
    if (kind < 80)
      s.op = one_of(kArithmetic);
    else if (is_float(both))
      s.op = gradient_ ? "logaddexp" : one_of(kOddArithmetic);
    else
      s.op = chance(60) ? one_of(kBits) : one_of(kOddArithmetic);
    if (both == Type::Bool && !s.op.starts_with("bitwise")) s.op = "add";
    if (kind > 95 && at(s.in[0]).type == at(s.in[1]).type && is_float(both)) {
      s.op = "lerp";
      s.in.push_back(s.in[0]);
    }
    return true;
  }

  bool comparison(Step& s) {
    int x = any();
    if (!pair(s, x)) return false;
    if (chance(40)) {
      s.op = one_of(kComparisons);
      return true;
    }
    // A condition, and a choice by it.
    Step compare = s;
    compare.op = one_of(kComparisons);
    size_t before = pool_.size();
    std::vector<int> both = s.in;
    keep(compare);
    if (pool_.size() == before) return false;
    if (chance(25)) {
      s.op = "masked_fill", s.in = {both[0], pool() - 1}, s.n = {1}, s.d = {2};
    } else {
      s.op = "where", s.in = {pool() - 1, both[0], both[1]};
    }
    return true;
  }

  bool types(Step& s) {
    int x = any();
    if (x < 0) return false;
    s.in = {x};
    s.op = "cast";
    Type to = Type(pick(0, kTypes - 1));
    if (gradient_) to = is_float(at(x).type) ? (chance(50) ? Type::F64 : Type::F32) : types_[0];
    if (!gradient_ && chance(50)) to = main_type();
    if (gradient_ && types_[0] == Type::F64) to = Type::F64;
    s.text = std::string(name(to));
    if (chance(25) && !gradient_) {
      s.op = "bitcast";
      std::vector<Type> same;
      for (int i = 1; i < kTypes; ++i) {
        if (bytes(Type(i)) == bytes(at(x).type) && Type(i) != at(x).type) same.push_back(Type(i));
      }
      if (same.empty()) return false;
      s.text = std::string(name(one_of(same)));
    }
    return true;
  }

  // Another shape of as many elements.
  Shape factored(int64_t n) {
    Shape shape;
    for (int64_t f = 2; n > 1 && shape.size() < 4;) {
      while (n % f != 0) ++f;
      shape.push_back(f), n /= f;
      if (chance(30) && n > 1) {
        shape.back() *= n, n = 1;
      } else if (shape.size() > 1 && chance(50)) {
        int64_t last = shape.back();
        shape.pop_back(), shape.back() *= last;
      }
    }
    if (n > 1) shape.push_back(n);
    std::ranges::shuffle(shape, random_);
    if (chance(15)) shape.insert(shape.begin() + pick(0, int(shape.size())), 1);
    return shape;
  }

  bool movement(Step& s) {
    int x = with_dims(1);
    if (x < 0) return false;
    s.in = {x};
    const Shape shape = at(x).shape;
    int rank = int(shape.size());
    int64_t d = axis(x), n = shape[size_t(d)];
    auto order = [&] {
      std::vector<int64_t> o(shape.size());
      std::iota(o.begin(), o.end(), 0);
      std::ranges::shuffle(o, random_);
      return o;
    };
    switch (pick(0, 16)) {
      case 0:
        s.op = "reshape", s.n = factored(count(shape));
        break;
      case 1:
        s.op = "permute", s.n = order();
        break;
      case 2:
        s.op = "T";
        break;
      case 3:
        s.op = "transpose", s.n = {d, axis(x)};
        break;
      case 4:
        s.op = "expand";
        if (chance(60)) s.n = {pick(2, 4)};
        for (int64_t size : shape) s.n.push_back(size == 1 ? pick(1, 5) : size);
        break;
      case 5:
        s.op = "flip", s.n = {d};
        break;
      case 6:
        s.op = "roll", s.n = {pick(-3, 5), d};
        break;
      case 7:
        s.op = "pad", s.n = {chance(60) ? 0 : pick(1, 3)}, s.d = {chance(70) ? 0.0 : 1.0};
        for (int i = 0; i < 2 * rank; ++i) s.n.push_back(chance(50) ? 0 : pick(0, 3));
        break;
      case 8:
        s.op = "shrink";
        for (int64_t size : shape) {
          int low = pick(0, int(size) - 1);
          if (chance(50))
            s.n.insert(s.n.end(), {0, size});
          else
            s.n.insert(s.n.end(), {low, pick(low + 1, int(size))});
        }
        break;
      case 9:
        s.op = "slices";
        for (int i = 0; i < rank; ++i) {
          if (chance(40))
            s.n.insert(s.n.end(), {0, 1000000, 1});
          else if (chance(50))
            s.n.insert(s.n.end(), {pick(0, 2), 1000000, pick(1, 3)});
          else
            s.n.insert(s.n.end(), {1000000, -1000000, -pick(1, 2)});
        }
        break;
      case 10:
        s.op = "pick", s.n = {d, pick(-1, int(n) - 1)};
        break;
      case 11:
        s.op = "repeat";
        for (int i = 0; i < rank; ++i) s.n.push_back(pick(1, 2));
        break;
      case 12:
        s.op = "repeat_interleave", s.n = {pick(1, 3), d};
        break;
      case 13:
        s.op = "unfold", s.n = {d, pick(1, int(std::min<int64_t>(n, 4))), pick(1, 3)};
        break;
      case 14:
        if (rank < 2) return false;
        s.op = chance(50) ? "triu" : "tril", s.n = {pick(-2, 2)};
        if (chance(30)) s.op = "diagonal", s.n = {pick(-1, 1), 0, rank - 1};
        break;
      case 15:
        s.op = "part", s.n = {pick(1, int(n)), d, 0};
        s.n[2] = pick(0, int((n + s.n[0] - 1) / s.n[0]) - 1);
        break;
      default:
        s.op = chance(50) ? "unsqueeze" : "flatten";
        if (s.op == "unsqueeze") s.n = {pick(0, rank)};
    }
    return true;
  }

  bool joining(Step& s) {
    int x = with_dims(1);
    if (x < 0) return false;
    s.in = {x};
    int64_t d = axis(x);
    for (int tries = 0; tries < 8 && s.in.size() < 4; ++tries) {
      int y = any();
      if (y < 0 || at(y).rank() != at(x).rank()) continue;
      bool fits = true;
      for (int64_t i = 0; i < at(x).rank(); ++i)
        fits = fits && (i == d || at(y).shape[size_t(i)] == at(x).shape[size_t(i)]);
      if (fits) s.in.push_back(y);
    }
    bool same = std::ranges::all_of(s.in, [&](int y) { return at(y).shape == at(x).shape; });
    s.op = same && chance(35) ? "stack" : "cat";
    s.n = {d};
    return true;
  }

  bool reduction(Step& s) {
    int x = with_dims(1);
    if (x < 0) return false;
    s.in = {x};
    s.op = one_of(kReductions);
    if (chance(40)) s.op = chance(50) ? "sum" : chance(50) ? "max" : "mean";
    if ((s.op == "any" || s.op == "all") && gradient_) s.op = "sum";
    s.n = {chance(40)};
    if (chance(75)) {
      int64_t d = axis(x);
      s.n.push_back(d);
      int64_t e = axis(x);
      if (e != d && chance(30)) s.n.push_back(e);
    }
    return true;
  }

  bool norm(Step& s) {
    int x = with_dims(1, is_float);
    if (x < 0) return false;
    s.op = one_of(kNorms), s.in = {x}, s.n = {axis(x)};
    return true;
  }

  bool scan(Step& s) {
    int x = with_dims(1);
    if (x < 0) return false;
    s.op = one_of(kScans), s.in = {x}, s.n = {axis(x)};
    if (chance(40)) s.op = "cumsum";
    return at(x).type != Type::Bool && at(x).shape[size_t(s.n[0])] <= 600;
  }

  bool ordering(Step& s) {
    int x = with_dims(1);
    if (x < 0 || at(x).type == Type::Bool) return false;
    int64_t d = axis(x), n = at(x).shape[size_t(d)];
    if (n > 130) return false;
    s.op = one_of(kOrders), s.in = {x};
    if (s.op.starts_with("arg")) {
      bool all = chance(20) && count(at(x).shape) < 130;
      s.n = {all, chance(40), d};
    } else {
      s.n = {d, chance(50), s.op.starts_with("topk") ? pick(1, int(n)) : n};
    }
    return true;
  }

  bool product(Step& s) {
    int x = with_dims(1);
    if (x < 0 || at(x).type == Type::Bool) return false;
    Type type = at(x).type;
    const Shape shape = at(x).shape;
    int before = int(p_.leaves.size());
    auto leaf = [&](const Shape& other) {
      // One of the pool, where there is one of this shape.
      for (int tries = 0; tries < 6; ++tries) {
        int y = any();
        if (y >= 0 && at(y).shape == other && at(y).type == type) return y;
      }
      if (p_.leaves.size() >= 8) return -1;
      int y = add_leaf(other, type);
      x += x >= before;
      before = int(p_.leaves.size());
      return y;
    };
    int kind = pick(0, 9);
    if (kind < 6) {
      int64_t k = shape.back();
      Shape other = {k, pick(1, 9)};
      if (sizes_ == Sizes::Tails && chance(50)) other[1] = one_of(kTails);
      if (shape.size() > 2 && chance(30))
        other = shape, std::swap(other.back(), other[other.size() - 2]);
      int y = leaf(other);
      if (y < 0) return false;
      s.op = kind < 5 ? "matmul" : "dot", s.in = {x, y};
      if (kind == 4 && shape.size() == 2) {
        // A product with its own transpose.
        Step turn;
        turn.op = "transpose", turn.in = {x}, turn.n = {0, 1};
        size_t now = pool_.size();
        keep(turn);
        if (pool_.size() == now) return false;
        s.in = {x, pool() - 1};
      }
      return true;
    }
    if (kind == 6 && is_float(type)) {
      int64_t out = pick(1, 9);
      int w = leaf({shape.back(), out});
      if (w < 0) return false;
      int now = int(p_.leaves.size());
      int b = add_leaf({out}, type);
      x += x >= now, w += w >= now;
      s.op = "linear", s.in = {x, w, b};
      return true;
    }
    if (kind == 7 && shape.size() == 2) {
      int64_t out = pick(1, 5);
      int y = leaf({shape[1], out});
      if (y < 0) return false;
      static const std::vector<std::string> kFormulas = {"ij,jk->ik", "ij,jk->ki", "ij,jk->i",
                                                         "ij,jk->j",  "ij,jk->k",  "ij,jk->ijk"};
      s.op = "einsum", s.text = one_of(kFormulas), s.in = {x, y};
      return true;
    }
    if (kind >= 8 && shape.size() == 4 && is_float(type)) {
      int64_t groups = shape[1] % 2 == 0 && chance(30) ? 2 : 1;
      int64_t kernel = pick(1, 3);
      int y = leaf({groups * pick(1, 3), shape[1] / groups, kernel, pick(1, 3)});
      if (y < 0) return false;
      s.op = "conv2d", s.in = {x, y}, s.n = {groups, pick(1, 2), pick(1, 2), pick(0, 2)};
      return true;
    }
    return false;
  }

  // Indices below n of this shape: some integers of the pool modulo n, or a leaf.
  int indices(const Shape& shape, int64_t n, int& moves) {
    for (int tries = 0; tries < 5; ++tries) {
      int y = any_int();
      if (y < 0 || at(y).shape != shape || bytes(at(y).type) < 4) continue;
      Step mod;
      mod.op = "mod", mod.in = {y}, mod.n = {1}, mod.d = {double(n)};
      size_t before = pool_.size();
      keep(mod);
      if (pool_.size() > before) return pool() - 1;
    }
    if (p_.leaves.size() >= 9) return -1;
    moves = int(p_.leaves.size());
    return add_leaf(shape, chance(70) ? Type::I32 : Type::I64, Style::Index, n);
  }

  bool indexing(Step& s) {
    int x = with_dims(1);
    if (x < 0) return false;
    const Shape shape = at(x).shape;
    int64_t d = axis(x), n = shape[size_t(d)];
    int moves = 1 << 30;
    auto with_index = [&](const Shape& index_shape, int64_t limit) {
      int index = indices(index_shape, limit, moves);
      if (index >= 0) x += x >= moves;
      s.in = {x, index};
      return index >= 0;
    };
    switch (pick(0, 5)) {
      case 0: {
        Shape index = shape;
        index[size_t(d)] = pick(1, 6);
        s.op = "gather", s.n = {d};
        return with_index(index, n);
      }
      case 1: {
        Shape index = chance(50) ? Shape{pick(1, 6)} : Shape{pick(1, 3), pick(1, 4)};
        s.op = "take", s.n = {d};
        return with_index(index, n);
      }
      case 2: {
        if (shape.size() != 2) return false;
        s.op = "embedding";
        return with_index({pick(1, 5), pick(1, 4)}, shape[0]);
      }
      case 3: {
        int y = any_int();
        if (y < 0 || gradient_) return false;
        s.op = "one_hot", s.in = {y}, s.n = {pick(2, 7)};
        return true;
      }
      case 4: {
        Shape index = shape;
        index[size_t(d)] = pick(1, int(std::min<int64_t>(n + 2, 8)));
        s.op = chance(50) ? "scatter" : "scatter_reduce";
        s.n = {d};
        if (s.op == "scatter_reduce") s.n = {d, pick(0, 4), chance(60)};
        if (!with_index(index, n)) return false;
        int before = int(p_.leaves.size());
        int src = -1;
        for (int tries = 0; tries < 6 && src < 0; ++tries) {
          int y = any();
          if (y >= 0 && at(y).shape == index && at(y).type == at(s.in[0]).type) src = y;
        }
        if (src < 0) {
          src = add_leaf(index, at(s.in[0]).type, style_);
          for (int& in : s.in) in += in >= before;
        }
        s.in.push_back(src);
        return true;
      }
      default: {
        if (p_.calls < 2 || n < 2) return false;
        for (const Leaf& l : p_.leaves) {
          if (l.role == Role::Variable) return false;
        }
        Leaf leaf;
        leaf.type = Type::I64, leaf.role = Role::Variable, leaf.style = Style::Index;
        leaf.limit = n, leaf.seed = uint64_t(pick(1, 1000));
        int v = insert(leaf);
        x += x >= v;
        s.op = "take", s.n = {d}, s.in = {x, v};
        return true;
      }
    }
  }

  bool pooling(Step& s) {
    int x = with_dims(2);
    if (x < 0 || at(x).type == Type::Bool) return false;
    if (gradient_ && !is_float(at(x).type)) return false;
    s.op = chance(60) ? "max_pool2d" : "avg_pool2d";
    s.in = {x}, s.n = {pick(1, 3), pick(1, 3), pick(1, 3), 0};
    if (chance(30)) s.n[3] = 1;
    return true;
  }

  bool statement(Step& s) {
    int kind = pick(0, 9);
    if (!p_.mesh.empty() && kind < 5) {
      int x = with_dims(1);
      if (x < 0) return false;
      s.op = "shard", s.in = {x};
      for (size_t i = 0; i < p_.mesh.size(); ++i) s.n.push_back(chance(60) ? axis(x) : -1);
      return true;
    }
    if (gradient_) return false;
    std::vector<int> targets;
    for (int i = 0; i < int(p_.leaves.size()); ++i) {
      Role role = p_.leaves[size_t(i)].role;
      // Over several calls only a state may be written.
      bool writable = p_.calls == 1 ? role == Role::Constant : role == Role::State;
      if (writable && usable(i)) targets.push_back(i);
    }
    if (kind == 9 && p_.calls == 1 && p_.leaves.size() > 1 && !targets.empty()) {
      s.op = "free", s.in = {one_of(targets)};
      return true;
    }
    if (kind == 8) {
      s.op = "realize", s.in = {pick(0, int(p_.leaves.size()) - 1)};
      return p_.leaves[size_t(s.in[0])].role == Role::Constant && usable(s.in[0]);
    }
    if ((!assigns_ && !stateful_) || targets.empty()) return false;
    int target = one_of(targets);
    for (int tries = 0; tries < 10; ++tries) {
      int y = any();
      if (y < 0 || y == target || at(y).type != at(target).type) continue;
      if (kind == 7 && at(target).rank() > 0) {
        int64_t d = axis(target), n = at(target).shape[size_t(d)];
        if (n == 0) continue;
        int low = pick(0, int(n) - 1);
        s.op = "setitem", s.in = {target, y}, s.n = {d, low, pick(low + 1, int(n))};
      } else {
        s.op = kind < 5 ? "assign" : "add_assign", s.in = {target, y};
      }
      try {
        Operands operands = {&at(target), &at(y)};
        interpret(s, operands);
        return true;
      } catch (const Invalid&) {
      }
    }
    return false;
  }

  // --- the end ---------------------------------------------------------------------------------
  void choose_roots() {
    std::set<int> used;
    for (const Step& step : p_.steps) used.insert(step.in.begin(), step.in.end());
    std::vector<int> ends;
    for (int v = int(p_.leaves.size()); v < pool(); ++v) {
      if (usable(v) && !used.contains(v) && (!gradient_ || is_float(at(v).type))) ends.push_back(v);
    }
    std::ranges::shuffle(ends, random_);
    if (ends.size() > 6) ends.resize(6);
    for (int i = pick(0, 2); i > 0; --i) {
      int v = gradient_ ? any_float() : any();
      if (v >= 0 && std::ranges::find(ends, v) == ends.end()) ends.push_back(v);
    }
    if (ends.empty()) {
      for (int v = pool() - 1; v >= 0 && ends.empty(); --v) {
        if (usable(v) && (!gradient_ || is_float(at(v).type))) ends.push_back(v);
      }
    }
    if (ends.empty()) {
      ends.push_back(add_leaf({3}, Type::F32, Style::Uniform));
    }
    p_.roots = ends;
    if (gradient_) choose_targets();
    for (int i = 0; i < int(p_.leaves.size()) && p_.calls > 1; ++i) {
      const Leaf& leaf = p_.leaves[size_t(i)];
      if (leaf.role != Role::Argument || leaf.style == Style::Index) continue;
      for (size_t k = 0; k < p_.roots.size(); ++k) {
        const Array& root = at(p_.roots[k]);
        if (root.type == leaf.type && root.shape == leaf.shape && chance(60)) {
          p_.feedback.push_back({int(k), i});
          break;
        }
      }
    }
  }

  void choose_targets() {
    // Floats that the roots are made of.
    std::vector<bool> leads(size_t(pool()), false);
    for (int root : p_.roots) leads[size_t(root)] = true;
    for (int v = pool() - 1; v >= int(p_.leaves.size()); --v) {
      const Step& step = p_.step(v);
      if (!leads[size_t(v)] || step.op == "detach" || !is_float(at(v).type)) continue;
      for (int in : step.in) leads[size_t(in)] = leads[size_t(in)] || is_float(at(in).type);
    }
    for (int v = 0; v < pool(); ++v) {
      bool leaf = p_.is_leaf(v);
      if (!leads[size_t(v)] || !is_float(at(v).type) || at(v).at.empty()) continue;
      if (leaf && p_.leaves[size_t(v)].style == Style::Uniform) p_.targets.push_back(v);
      // What may be its operand again, such as a sum over one element, is no target of its own.
      auto among = [&](const auto& ops) {
        return std::ranges::find(ops, p_.step(v).op) != ops.end();
      };
      bool own = !leaf && (among(kSmooth) || (among(kArithmetic) && p_.step(v).in.size() == 2));
      if (own && chance(10)) p_.targets.push_back(v);
    }
    if (p_.targets.size() > 4) p_.targets.resize(4);
  }

  enum class Sizes : uint8_t { Small, Tails, Large };

  std::mt19937_64 random_;
  Program p_;
  std::vector<Array> pool_;  // values by number
  std::set<int> dead_;       // freed, or numbers of statements
  std::vector<Shape> shapes_;
  std::vector<Type> types_;
  Style style_ = Style::Uniform;
  Sizes sizes_ = Sizes::Small;
  int64_t limit_ = 600;
  int length_ = 10;
  bool gradient_ = false, stateful_ = false, assigns_ = false;
  bool meets_sums_ = false;  // most operands are results of reductions
  int weights_[14] = {};
};

}  // namespace

Program generate(uint64_t seed) { return Generator(seed).make(); }

}  // namespace fuzz
