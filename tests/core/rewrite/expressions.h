// Short ways to write Index expressions in tests, and an interpreter to check them against.
#pragma once
#include <functional>
#include <map>
#include <stdexcept>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard::test {

inline UOp r(int64_t id, int64_t size) { return range(id, size, RangeKind::Loop); }
inline UOp k(int64_t value) { return index_const(value); }

// Wraps a UOp so that expressions read as arithmetic.
struct E {
  UOp u;
  E(UOp node) : u(std::move(node)) {}          // NOLINT: implicit on purpose
  E(int64_t value) : u(index_const(value)) {}  // NOLINT
  E(int value) : u(index_const(value)) {}      // NOLINT
  operator UOp() const { return u; }           // NOLINT
};
inline E operator+(const E& a, const E& b) { return binary(Op::Add, a.u, b.u); }
inline E operator-(const E& a, const E& b) { return binary(Op::Sub, a.u, b.u); }
inline E operator*(const E& a, const E& b) { return binary(Op::Mul, a.u, b.u); }
inline E operator/(const E& a, const E& b) { return binary(Op::IDiv, a.u, b.u); }
inline E operator%(const E& a, const E& b) { return binary(Op::Mod, a.u, b.u); }
inline E operator-(const E& a) { return unary(Op::Neg, a.u); }
inline E operator<(const E& a, const E& b) { return binary(Op::CmpLt, a.u, b.u); }
inline E operator==(const E& a, const E& b) { return binary(Op::CmpEq, a.u, b.u); }
inline E operator!=(const E& a, const E& b) { return binary(Op::CmpNe, a.u, b.u); }
inline E operator&(const E& a, const E& b) { return binary(Op::And, a.u, b.u); }
inline E operator|(const E& a, const E& b) { return binary(Op::Or, a.u, b.u); }
inline E negate(const E& a) { return unary(Op::Not, a.u); }
inline E max(const E& a, const E& b) { return binary(Op::Max, a.u, b.u); }
inline E select(const E& c, const E& a, const E& b) { return where(c.u, a.u, b.u); }

// Values of ranges by id.
using Point = std::map<int64_t, int64_t>;

// The value of a scalar expression as a Const. Index arithmetic is done here, on plain integers,
// the rest by fold_constants. `load(slot, index)` gives the elements of params.
class Evaluator {
 public:
  using LoadFunction = std::function<UOp(int64_t slot, int64_t index)>;
  explicit Evaluator(const Point& point, LoadFunction load = nullptr)
      : point_(point), load_(std::move(load)) {}

  int64_t integer(const UOp& x) { return const_bits(*value(x)); }

  UOp value(const UOp& x) {
    if (const UOp* known = memo_.find(x)) return *known;
    UOp v = compute(x);
    memo_[x] = v;
    return v;
  }

 private:
  UOp compute(const UOp& x) {
    if (is_const(x)) return x;
    if (x.op() == Op::Range) return index_const(point_.at(range_arg(*x).id));
    if (x.op() == Op::Load) {
      if (x->sources == 3 && !integer(x.src(2))) return const_int(x.dtype(), 0);
      return load_(slot_of(*x), integer(x.src(1)));
    }
    if (x.op() == Op::Where) return value(x.src(integer(x.src(0)) ? 1 : 2));
    if (x.dtype() == DType::Index && x.op() != Op::Cast) return index_const(index_value(x));
    std::vector<UOp> src;
    for (const UOp& s : x->src()) src.push_back(value(s));
    UOp v = fold_constants(x.op(), x.dtype(), src);
    if (!v) throw std::runtime_error("cannot evaluate " + describe(*x));
    return v;
  }

  int64_t index_value(const UOp& x) {
    int64_t a = integer(x.src(0)), b = x->sources > 1 ? integer(x.src(1)) : 0;
    auto floor_of = [](int64_t n, int64_t d) {
      int64_t q = 0;  // counting, so that no rule of rounding is trusted
      if (d < 0) n = -n, d = -d;
      while ((q + 1) * d <= n) ++q;
      while (q * d > n) --q;
      return q;
    };
    switch (x.op()) {
      case Op::Neg:
        return -a;
      case Op::Add:
        return a + b;
      case Op::Sub:
        return a - b;
      case Op::Mul:
        return a * b;
      case Op::Max:
        return a < b ? b : a;
      case Op::IDiv:
        return floor_of(a, b);
      case Op::Mod:
        return a - b * floor_of(a, b);
      default:
        throw std::runtime_error("not an Index op: " + describe(*x));
    }
  }

  const Point& point_;
  LoadFunction load_;
  NodeMap<UOp> memo_;
};

// Calls visit(point) for every point of the given ranges.
template <class Visit>
void for_each_point(const std::vector<UOp>& ranges, const Visit& visit) {
  Point point;
  for (const UOp& x : ranges) {
    if (range_arg(*x).size == 0) return;
    point[range_arg(*x).id] = 0;
  }
  for (;;) {
    visit(point);
    size_t i = ranges.size();
    while (i > 0) {
      const UOp& x = ranges[i - 1];
      if (++point[range_arg(*x).id] < range_arg(*x).size) break;
      point[range_arg(*x).id] = 0;
      --i;
    }
    if (i == 0) return;
  }
}

inline size_t count(const UOp& root, std::initializer_list<Op> ops) {
  size_t n = 0;
  for (const UOp& x : toposort(std::span(&root, 1))) {
    for (Op op : ops) n += x.op() == op;
  }
  return n;
}
inline size_t divisions(const UOp& root) { return count(root, {Op::IDiv, Op::Mod}); }

}  // namespace tinyshard::test
