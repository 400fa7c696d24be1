// Random expressions and random chains of movement ops: simplification must not change a value at
// any point, must be final, and the bounds of nodes must hold.
#include <random>

#include <gtest/gtest.h>

#include "core/rewrite/symbolic.h"
#include "tests/core/rewrite/expressions.h"

namespace tinyshard::test::random_test {
namespace {

class RandomExpressions {
 public:
  explicit RandomExpressions(uint32_t seed) : random_(seed) {}

  int64_t pick(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

  std::vector<UOp> ranges() {
    std::vector<UOp> list;
    for (int64_t i = 0, n = pick(1, 3); i < n; ++i)
      list.push_back(r(i, pick(0, 9) ? pick(1, 8) : 1));
    return list;
  }

  UOp index(const std::vector<UOp>& ranges, int depth) {
    if (depth == 0 || pick(0, 7) == 0) {
      if (pick(0, 4) == 0) return k(pick(-5, 9));
      return ranges[static_cast<size_t>(pick(0, static_cast<int64_t>(ranges.size()) - 1))];
    }
    auto sub = [&] { return E(index(ranges, depth - 1)); };
    switch (pick(0, 13)) {
      case 0:
      case 1:
      case 2:
        return sub() + sub();
      case 3:
        return sub() - sub();
      case 4:
      case 5:
        return sub() * E(pick(-4, 8));
      case 6:
      case 7:
      case 8:
        return sub() / E(pick(0, 15) ? pick(1, 12) : -pick(1, 5));
      case 9:
      case 10:
        return sub() % E(pick(0, 15) ? pick(1, 12) : -pick(1, 5));
      case 11:
        return max(sub(), sub());
      case 12:
        return select(condition(ranges, depth - 1), sub(), sub());
      default:
        return pick(0, 1) ? UOp(-sub()) : UOp(sub() * sub());
    }
  }

  UOp condition(const std::vector<UOp>& ranges, int depth) {
    if (depth > 1 && pick(0, 2) == 0) {
      E a(condition(ranges, depth - 1)), b(condition(ranges, depth - 1));
      switch (pick(0, 4)) {
        case 0:
          return a | b;
        case 1:
          return negate(a);
        default:
          return a & b;
      }
    }
    E a(index(ranges, std::min(depth, 2))),
        b(pick(0, 1) ? k(pick(-3, 12)) : index(ranges, std::min(depth, 1)));
    switch (pick(0, 5)) {
      case 0:
        return a == b;
      case 1:
        return a != b;
      case 2:
        return b < a;
      default:
        return a < b;
    }
  }

  std::mt19937_64& generator() { return random_; }

 private:
  std::mt19937_64 random_;
};

void expect_bounds(const UOp& x, int64_t value) {
  if (x.dtype() != DType::Index) return;
  ASSERT_LE(x->low, value) << print(x);
  ASSERT_GE(x->high, value) << print(x);
}

void expect_same(const UOp& before, const UOp& after, const std::vector<UOp>& ranges,
                 const UOp& given = UOp()) {
  for_each_point(ranges, [&](const Point& point) {
    if (testing::Test::HasFatalFailure()) return;  // one point says enough
    Evaluator evaluate(point);
    if (given && !evaluate.integer(given)) return;
    int64_t expected = evaluate.integer(before), actual = evaluate.integer(after);
    ASSERT_EQ(expected, actual) << "before:\n"
                                << print(before) << "after:\n"
                                << print(after) << (given ? "given:\n" + print(given) : "");
    expect_bounds(before, expected);
    expect_bounds(after, actual);
  });
}

TEST(RandomIndex, KeepsItsValueEverywhere) {
  size_t before = 0, after = 0, not_final = 0;
  for (uint32_t seed = 0; seed < 30000 && !testing::Test::HasFatalFailure(); ++seed) {
    RandomExpressions random(seed);
    std::vector<UOp> ranges = random.ranges();
    UOp x = random.index(ranges, 2 + static_cast<int>(seed % 4));
    UOp y = simplify(x);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same(x, y, ranges);
    before += divisions(x);
    after += divisions(y);
    not_final += !(simplify(y) == y);
  }
  RecordProperty("not_final", static_cast<int>(not_final));
  RecordProperty("divisions_before", static_cast<int>(before));
  RecordProperty("divisions_after", static_cast<int>(after));
  EXPECT_LT(after * 2, before) << "of the divisions written at random, most can go";
  EXPECT_EQ(not_final, 0u) << "simplifying twice should change nothing";
}

TEST(RandomConditions, KeepTheirValueEverywhere) {
  size_t not_final = 0;
  for (uint32_t seed = 0; seed < 20000 && !testing::Test::HasFatalFailure(); ++seed) {
    RandomExpressions random(seed);
    std::vector<UOp> ranges = random.ranges();
    UOp x = random.condition(ranges, 2 + static_cast<int>(seed % 4));
    UOp y = simplify(x);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same(x, y, ranges);
    not_final += !(simplify(y) == y);
  }
  RecordProperty("not_final", static_cast<int>(not_final));
  EXPECT_EQ(not_final, 0u) << "simplifying twice should change nothing";
}

TEST(RandomIndex, AgreesWhereTheConditionHolds) {
  for (uint32_t seed = 0; seed < 20000 && !testing::Test::HasFatalFailure(); ++seed) {
    RandomExpressions random(seed);
    std::vector<UOp> ranges = random.ranges();
    UOp x = random.index(ranges, 2 + static_cast<int>(seed % 3));
    UOp given = random.condition(ranges, 2 + static_cast<int>(seed % 3));
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_same(x, simplify_given(x, given), ranges, given);
  }
}

// --- chains of movement ops ----------------------------------------------------------------------

struct View {
  Dims shape;
  std::vector<UOp> index;  // of the source, one per dim of its shape
  UOp valid = const_int(DType::Bool, 1);
};

// How movement ops act on indices: from an index of the result to one of the source.
class Movement {
 public:
  explicit Movement(Dims shape) : source_(std::move(shape)) { shape_ = source_; }

  void reshape(Dims to) {
    push([from = shape_, to](std::vector<UOp> i, UOp&) {
      E flat(0);
      for (size_t d = 0; d < to.size(); ++d) flat = flat * E(to[d]) + E(i[d]);
      std::vector<UOp> out(from.size());
      for (size_t d = from.size(); d-- > 0;) {
        out[d] = flat % E(from[d]);
        flat = flat / E(from[d]);
      }
      return out;
    });
    shape_ = std::move(to);
  }
  void permute(std::vector<size_t> order) {
    push([order](std::vector<UOp> i, UOp&) {
      std::vector<UOp> out(i.size());
      for (size_t d = 0; d < i.size(); ++d) out[order[d]] = i[d];
      return out;
    });
    Dims to;
    for (size_t d : order) to.push_back(shape_[d]);
    shape_ = to;
  }
  void expand(size_t dim, int64_t n) {
    push([dim](std::vector<UOp> i, UOp&) {
      i[dim] = k(0);
      return i;
    });
    shape_[dim] = n;
  }
  void pad(size_t dim, int64_t low, int64_t high) {
    push([dim, low, n = shape_[dim]](std::vector<UOp> i, UOp& valid) {
      E shifted = E(i[dim]) - E(low);
      valid = E(valid) & (E(-1) < shifted) & (shifted < E(n));
      i[dim] = shifted;
      return i;
    });
    shape_[dim] += low + high;
  }
  void shrink(size_t dim, int64_t low, int64_t high) {
    push([dim, low](std::vector<UOp> i, UOp&) {
      i[dim] = E(i[dim]) + E(low);
      return i;
    });
    shape_[dim] = high - low;
  }
  void flip(size_t dim) {
    push([dim, n = shape_[dim]](std::vector<UOp> i, UOp&) {
      i[dim] = E(n - 1) - E(i[dim]);
      return i;
    });
  }

  const Dims& shape() const { return shape_; }
  std::vector<UOp> ranges() const {
    std::vector<UOp> list;
    for (size_t d = 0; d < shape_.size(); ++d)
      list.push_back(r(static_cast<int64_t>(d), shape_[d]));
    return list;
  }

  // The flat index of the source and whether it is inside.
  std::pair<UOp, UOp> flat(std::vector<UOp> index) const {
    UOp valid = const_int(DType::Bool, 1);
    for (size_t s = steps_.size(); s-- > 0;) index = steps_[s](index, valid);
    E flat(0);
    for (size_t d = 0; d < source_.size(); ++d) flat = flat * E(source_[d]) + E(index[d]);
    return {flat, valid};
  }
  std::pair<UOp, UOp> flat() const { return flat(ranges()); }

 private:
  using Step = std::function<std::vector<UOp>(std::vector<UOp>, UOp& valid)>;
  void push(Step step) { steps_.push_back(std::move(step)); }

  Dims source_, shape_;
  std::vector<Step> steps_;
};

Dims random_factors(RandomExpressions& random, int64_t n) {
  Dims dims;
  while (n > 1 && dims.size() < 4) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= n; ++d) {
      if (n % d == 0) divisors.push_back(d);
    }
    int64_t d = dims.size() == 3 ? n
                                 : divisors[static_cast<size_t>(
                                       random.pick(0, static_cast<int64_t>(divisors.size()) - 1))];
    dims.push_back(d);
    n /= d;
  }
  if (n > 1 || dims.empty()) dims.push_back(n);
  std::shuffle(dims.begin(), dims.end(), random.generator());
  return dims;
}

TEST(RandomMovement, KeepsIndexAndValidity) {
  size_t before = 0, after = 0;
  for (uint32_t seed = 0; seed < 6000 && !testing::Test::HasFatalFailure(); ++seed) {
    RandomExpressions random(seed);
    Movement m(Dims{random.pick(1, 4), random.pick(1, 6), random.pick(1, 4)});
    for (int64_t i = 0, n = random.pick(1, 6); i < n; ++i) {
      const Dims& shape = m.shape();
      size_t dim = static_cast<size_t>(random.pick(0, static_cast<int64_t>(shape.size()) - 1));
      switch (random.pick(0, 6)) {
        case 0:
        case 1:
          m.reshape(random_factors(random, product(shape)));
          break;
        case 2: {
          std::vector<size_t> order(shape.size());
          for (size_t d = 0; d < order.size(); ++d) order[d] = d;
          std::shuffle(order.begin(), order.end(), random.generator());
          m.permute(order);
          break;
        }
        case 3:
          if (shape[dim] == 1 && product(shape) < 60) m.expand(dim, random.pick(2, 4));
          break;
        case 4:
          if (product(shape) < 100) m.pad(dim, random.pick(0, 2), random.pick(0, 2));
          break;
        case 5:
          if (shape[dim] > 1) {
            int64_t low = random.pick(0, shape[dim] - 1);
            m.shrink(dim, low, random.pick(low + 1, shape[dim]));
          }
          break;
        default:
          m.flip(dim);
      }
    }
    SCOPED_TRACE("seed " + std::to_string(seed));
    auto [index, valid] = m.flat();
    UOp simple = simplify(index), mask = simplify(valid);
    expect_same(index, simple, m.ranges());
    expect_same(valid, mask, m.ranges());
    UOp narrow = simplify_given(index, valid);
    expect_same(index, narrow, m.ranges(), valid);
    before += divisions(index);
    after += divisions(narrow);
  }
  RecordProperty("divisions_before", static_cast<int>(before));
  RecordProperty("divisions_after", static_cast<int>(after));
  EXPECT_LT(after * 4, before);
}

void expect_free_of_divisions(const Movement& m, bool under_valid = true) {
  auto [index, valid] = m.flat();
  UOp simple = under_valid ? simplify_given(index, valid) : simplify(index);
  EXPECT_EQ(divisions(simple), 0u) << print(simple);
  EXPECT_EQ(divisions(simplify(valid)), 0u) << print(simplify(valid));
  expect_same(index, simple, m.ranges(), valid);
}

TEST(CommonMovement, NeedsNoDivision) {
  {
    SCOPED_TRACE("split and merge");
    Movement m({6, 8});
    m.reshape({48});
    m.reshape({6, 2, 4});
    m.reshape({6, 8});
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("split only");
    Movement m({48});
    m.reshape({4, 3, 4});
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("heads of attention and back");
    Movement m({2, 5, 12});  // batch, time, heads * size
    m.reshape({2, 5, 3, 4});
    m.permute({0, 2, 1, 3});
    m.permute({0, 2, 1, 3});
    m.reshape({2, 5, 12});
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("transposed, split");
    Movement m({12, 5});
    m.permute({1, 0});
    m.reshape({5, 3, 4});
    m.permute({2, 0, 1});
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("windows of a pooling, made by repeating and cutting");
    Movement m({2, 9});
    m.reshape({2, 1, 9});
    m.expand(1, 4);
    m.reshape({2, 36});
    m.shrink(1, 0, 30);
    m.reshape({2, 3, 10});  // rows of 10 from data of period 9: each starts one later
    m.shrink(2, 0, 7);
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("flip of a split");
    Movement m({12});
    m.flip(0);
    m.reshape({3, 4});
    m.flip(1);
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("pad inside a merge");
    Movement m({3, 4});
    m.pad(1, 1, 1);
    m.reshape({18});
    m.reshape({3, 6});
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("pad outside of a merge");
    Movement m({3, 4});
    m.reshape({12});
    m.pad(0, 2, 2);
    expect_free_of_divisions(m);
  }
  {
    SCOPED_TRACE("repeat");
    Movement m({4, 5});
    m.reshape({4, 1, 5});
    m.expand(1, 3);
    m.reshape({12, 5});
    m.reshape({4, 3, 5});
    expect_free_of_divisions(m);
  }
}

}  // namespace
}  // namespace tinyshard::test::random_test
