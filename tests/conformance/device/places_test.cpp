// Ops that move, look up, write and sort on a device of each kind, with elements of every width,
// against plain loops on the host: results are the same numbers, so they are compared to the bit.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/tensor/tensor.h"
#include "tests/conformance/device/device_case.h"

namespace tinyshard::test::places_test {
namespace {

using Values = std::vector<double>;

// Types of each width, and those that memory holds in another form than registers do.
constexpr DType kTypes[] = {DType::Bool, DType::U8,  DType::I16, DType::F16,
                            DType::BF16, DType::F32, DType::I64, DType::F64};

// A value on the host: whole numbers, row by row.
struct Array {
  Dims shape;
  Values values;

  // The array of that shape whose element at `place` is this one's at source(place); zero where the
  // source says so with a negative number.
  Array read(Dims to, const std::function<Dims(const Dims&)>& source) const {
    Array out{std::move(to), {}};
    Dims place(out.shape.size());
    const int64_t n = product(out.shape);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t rest = i, d = int64_t(place.size()) - 1; d >= 0; --d) {
        place[size_t(d)] = rest % out.shape[size_t(d)];
        rest /= out.shape[size_t(d)];
      }
      const Dims from = source(place);
      int64_t at = 0;
      bool inside = true;
      for (size_t d = 0; d < shape.size(); ++d) {
        inside = inside && from[d] >= 0 && from[d] < shape[d];
        at = at * shape[d] + from[d];
      }
      out.values.push_back(inside ? values[size_t(at)] : 0);
    }
    return out;
  }
};

class DevicePlaces : public DeviceCase {
 protected:
  std::string place() const { return std::string(GetParam()) + ":0"; }
  Tensor there(const Values& values, const Dims& shape, DType type) const {
    return Tensor(values, Ints(shape)).cast(type).to(place()).realize();
  }
  Tensor places(const std::vector<int32_t>& values, const Dims& shape) const {
    return Tensor(values, Ints(shape)).to(place()).realize();
  }
  // Whole numbers that each type holds; the truth values are 0 and 1.
  static Values numbers(size_t n, DType type, uint32_t seed) {
    std::mt19937 random(seed);
    Values values(n);
    for (double& v : values) v = type == DType::Bool ? random() % 2 : random() % 50;
    return values;
  }
  void expect(const Tensor& got, const Values& want) {
    got.realize();
    if (!device().executes()) return;
    EXPECT_EQ(got.to_vector<double>(), want);
  }

  // A movement op, drawn, of x and of its array.
  static void move(std::mt19937& random, Tensor* x, Array* a) {
    const size_t rank = a->shape.size();
    auto draw = [&](int64_t below) { return int64_t(random() % uint64_t(below)); };
    const auto d = size_t(draw(int64_t(rank)));
    Dims to = a->shape;
    switch (draw(6)) {
      case 0: {
        Dims order(rank);
        std::iota(order.begin(), order.end(), 0);
        std::ranges::shuffle(order, random);
        for (size_t i = 0; i < rank; ++i) to[i] = a->shape[size_t(order[i])];
        *x = x->permute(Ints(order));
        *a = a->read(to, [&](const Dims& p) {
          Dims from(rank);
          for (size_t i = 0; i < rank; ++i) from[size_t(order[i])] = p[i];
          return from;
        });
        break;
      }
      case 1: {
        *x = x->flip({int64_t(d)});
        *a = a->read(to, [&](Dims p) {
          p[d] = a->shape[d] - 1 - p[d];
          return p;
        });
        break;
      }
      case 2: {
        const int64_t low = draw(a->shape[d]), high = low + 1 + draw(a->shape[d] - low);
        Pairs bounds;
        for (int64_t n : a->shape) bounds.emplace_back(0, n);
        bounds[d] = {low, high};
        to[d] = high - low;
        *x = x->shrink(bounds);
        *a = a->read(to, [&](Dims p) {
          p[d] += low;
          return p;
        });
        break;
      }
      case 3: {
        const int64_t low = draw(3), high = draw(3);
        Pairs around(rank, {0, 0});
        around[d] = {low, high};
        to[d] += low + high;
        *x = x->pad(around);
        *a = a->read(to, [&](Dims p) {
          p[d] -= low;
          return p;
        });
        break;
      }
      case 4: {  // a dim goes into the next
        if (d + 1 == rank) return;
        to[d] *= to[d + 1];
        to.erase(to.begin() + int64_t(d) + 1);
        *x = x->reshape(Ints(to));
        a->shape = to;
        break;
      }
      default: {  // a new dim, repeated
        to.insert(to.begin() + int64_t(d), 2);
        *x = x->unsqueeze(int64_t(d)).expand(Ints(to));
        *a = a->read(to, [&](Dims p) {
          p.erase(p.begin() + int64_t(d));
          return p;
        });
      }
    }
  }
};

TEST_P(DevicePlaces, ChainsOfMovements) {
  for (const DType type : kTypes) {
    for (uint32_t seed = 0; seed < 25; ++seed) {
      SCOPED_TRACE(std::string(name(type)) + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      Array a{{2, 3, 5}, numbers(30, type, seed)};
      Tensor x = there(a.values, a.shape, type);
      for (int i = 0; i < 6 && a.values.size() < 4000; ++i) move(random, &x, &a);
      EXPECT_EQ(x.shape(), a.shape);
      ASSERT_NO_FATAL_FAILURE(expect(x.contiguous(), a.values));
    }
  }
}

TEST_P(DevicePlaces, LookupsAndWhatIsOutside) {
  const std::vector<int32_t> at{4, 0, 2, 2, 7, -1, 3, 1};
  for (const DType type : kTypes) {
    SCOPED_TRACE(name(type));
    const Values table = numbers(15, type, 3);
    Values rows, picked;
    for (const int32_t row : at) {
      for (int64_t c = 0; c < 3; ++c)
        rows.push_back(row < 0 || row > 4 ? 0 : table[size_t(row * 3 + c)]);
    }
    const Tensor x = there(table, {5, 3}, type);
    if (is_float(type)) expect(x.embedding(places(at, {8})), rows);
    const std::vector<int32_t> column{2, 0, 1, -1, 5};
    for (size_t r = 0; r < 5; ++r)
      picked.push_back(column[r] < 0 || column[r] > 2 ? 0 : table[r * 3 + size_t(column[r])]);
    expect(x.gather(1, places(column, {5, 1})), picked);
  }
}

// Several terms at one place, some outside, with and without what was there.
TEST_P(DevicePlaces, ScattersOfEveryKind) {
  const std::vector<int32_t> at{3, 0, 3, 1, 3, 9, -1, 1};
  struct Kind {
    ScatterReduce reduce;
    std::function<double(double, double)> of;
    double none;  // what a fold begins with
  };
  const Kind kinds[] = {
      {ScatterReduce::Sum, [](double a, double b) { return a + b; }, 0},
      {ScatterReduce::Prod, [](double a, double b) { return a * b; }, 1},
      {ScatterReduce::Amax, [](double a, double b) { return std::max(a, b); }, -1e9},
      {ScatterReduce::Amin, [](double a, double b) { return std::min(a, b); }, 1e9}};
  for (const DType type :
       {DType::I32, DType::I64, DType::F32, DType::F64, DType::F16, DType::BF16}) {
    Values base = numbers(5, DType::U8, 1), terms = numbers(8, DType::U8, 2);
    for (double& v : terms) v = 1 + int(v) % 3;  // products stay small
    const Tensor x = there(base, {5}, type), y = there(terms, {8}, type), index = places(at, {8});
    for (const Kind& kind : kinds) {
      for (const bool with_self : {true, false}) {
        SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(int(kind.reduce)) +
                     (with_self ? " with" : " without"));
        Values want = base;
        for (int32_t place = 0; place < 5; ++place) {
          double fold = with_self ? base[size_t(place)] : kind.none;
          bool any = with_self;
          for (size_t i = 0; i < at.size(); ++i) {
            if (at[i] != place) continue;
            fold = kind.of(fold, terms[i]);
            any = true;
          }
          if (any) want[size_t(place)] = fold;
        }
        expect(x.scatter_reduce(0, index, y, kind.reduce, with_self), want);
      }
    }
    Values written = base;
    for (const auto& [place, value] : {std::pair(2, 7.0), {4, 9.0}}) written[size_t(place)] = value;
    expect(x.scatter(0, places({2, 4}, {2}), there({7, 9}, {2}, type)), written);
  }
}

// Equal elements keep their order, in both directions, along both dims.
TEST_P(DevicePlaces, SortsAreStable) {
  constexpr size_t kRows = 37, kColumns = 11;
  for (const DType type : {DType::U8, DType::I16, DType::I64, DType::F16, DType::F32, DType::F64}) {
    Values data = numbers(kRows * kColumns, type, 4);
    const Tensor x = there(data, {kRows, kColumns}, type);
    for (const bool down : {false, true}) {
      for (const int64_t dim : {0, 1}) {
        SCOPED_TRACE(std::string(name(type)) + (down ? " down " : " up ") + std::to_string(dim));
        const size_t length = dim == 0 ? kRows : kColumns, lines = dim == 0 ? kColumns : kRows;
        auto place = [&](size_t line, size_t i) {
          return dim == 0 ? i * kColumns + line : line * kColumns + i;
        };
        Values sorted(data.size()), order(data.size());
        for (size_t line = 0; line < lines; ++line) {
          std::vector<size_t> all(length);
          std::iota(all.begin(), all.end(), size_t{0});
          std::ranges::stable_sort(all, [&](size_t a, size_t b) {
            const double u = data[place(line, a)], v = data[place(line, b)];
            return down ? u > v : u < v;
          });
          for (size_t i = 0; i < length; ++i) {
            sorted[place(line, i)] = data[place(line, all[i])];
            order[place(line, i)] = double(all[i]);
          }
        }
        const auto [values, indices] = x.sort(dim, down);
        ASSERT_NO_FATAL_FAILURE(expect(values, sorted));
        ASSERT_NO_FATAL_FAILURE(expect(indices, order));
      }
    }
  }
}

TEST_P(DevicePlaces, RunningSumsAndMaxima) {
  for (const DType type : {DType::I32, DType::I64, DType::F32, DType::F64}) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{300}, size_t{5000}}) {
      SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(n));
      const Values data = numbers(n, DType::U8, 6);
      Values sums(n), maxima(n);
      for (size_t i = 0; i < n; ++i) {
        const bool larger = i == 0 || data[i] >= maxima[i - 1];
        sums[i] = data[i] + (i ? sums[i - 1] : 0);
        maxima[i] = larger ? data[i] : maxima[i - 1];
      }
      const Tensor x = there(data, {int64_t(n)}, type);
      expect(x.cumsum(0), sums);
      expect(x.cummax(0).first, maxima);
    }
  }
}

TINYSHARD_ON_EVERY_DEVICE(DevicePlaces);

}  // namespace
}  // namespace tinyshard::test::places_test
