// Reductions, lookups, orders, scans and drawn numbers give on every mesh the values and gradients
// of one device, however their operands lie: on 1, 3 and 4 devices and on 2 x 2, with sizes that do
// not divide, in several types.
#include <functional>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multi/one_device.h"

namespace tinyshard::lookups_test {
namespace {

using Results = std::vector<Tensor>;

struct Case {
  std::string name;
  std::vector<Dims> shapes;
  std::function<Results(const std::vector<Tensor>&)> run;
  std::vector<DType> types = {DType::F64};
};

struct Layout {
  std::string name;
  std::vector<MeshAxis> axes;
  std::vector<Placement> place;  // one per mesh axis; dims that an operand has not: replicated
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int64_t n : {1, 3, 4}) {
    std::vector<MeshAxis> axes{{"d", n}};
    for (int d : {0, 1}) all.push_back({fmt::format("dim{}_{}", d, n), axes, {Shard(d)}});
  }
  std::vector<MeshAxis> grid{{"r", 2}, {"c", 2}};
  all.push_back({"grid_01", grid, {Shard(0), Shard(1)}});
  all.push_back({"grid_00", grid, {Shard(0), Shard(0)}});
  return all;
}

Tensor lying(const Tensor& x, const Mesh& mesh, const std::vector<Placement>& place) {
  std::vector<AxisPlacement> named;
  for (size_t a = 0; a < place.size(); ++a) {
    const bool fits = !place[a].is_shard() || place[a].dim < x.ndim();
    named.push_back({mesh.axes()[a].name, fits ? place[a] : Replicate});
  }
  return x.shard(mesh, named).realize();
}

class LookupsTest : public OnDevices<4, testing::TestWithParam<Layout>> {
 protected:
  // The results, and the gradients of a loss that weighs all of their elements differently.
  static Results with_gradients(const Case& c, const std::vector<Tensor>& operands) {
    Results all = c.run(operands);
    Tensor loss;
    for (const Tensor& y : all) {
      if (!is_float(y.dtype())) continue;
      Tensor weights = (Tensor::arange(y.numel()).reshape(y.shape()).cast(y.dtype()) * 0.37).sin();
      Tensor part = (y.tanh() * weights).sum();
      loss = loss.defined() ? loss + part : part;
    }
    if (!loss.defined()) return all;
    std::vector<Tensor> floats;
    for (const Tensor& x : operands) {
      if (is_float(x.dtype())) floats.push_back(x);
    }
    for (const Tensor& g : loss.gradient(floats)) all.push_back(g);
    return all;
  }

  static void check(const std::vector<Case>& cases) {
    const Layout& layout = GetParam();
    Mesh mesh(layout.axes);
    for (const Case& c : cases) {
      for (DType type : c.types) {
        SCOPED_TRACE(fmt::format("{} in {}", c.name, name(type)));
        Tensor::manual_seed(11);
        std::vector<Tensor> one, many;
        for (const Dims& shape : c.shapes) {
          Tensor x = Tensor::randn(shape) * 2;
          if (!is_float(type)) x = x * 40;
          one.push_back(x.cast(type).contiguous().realize());
          many.push_back(lying(one.back(), mesh, layout.place));
        }
        Results want = with_gradients(c, one), got = with_gradients(c, many);
        ASSERT_EQ(got.size(), want.size());
        const double tolerance = type == DType::F64 ? 1e-11 : itemsize(type) == 2 ? 3e-2 : 3e-5;
        for (size_t i = 0; i < got.size(); ++i)
          expect_same(got[i], want[i], tolerance, fmt::format("{} result {}", c.name, i));
      }
    }
  }
};

using Operands = std::vector<Tensor>;

TEST_P(LookupsTest, ReductionsThatAreRepeated) {
  check({
      {"mean", {{7, 10}}, [](const Operands& o) { return Results{o[0] - o[0].mean(0, true)}; }},
      {"range",
       {{7, 10}},
       [](const Operands& o) {
         Tensor low = o[0].min(0, true);
         return Results{(o[0] - low) / (o[0].max(0, true) - low + 1)};
       }},
      {"softmax",
       {{7, 10}},
       [](const Operands& o) {
         return Results{o[0].softmax(0), o[0].softmax(1), o[0].log_softmax(0), o[0].logsumexp(0)};
       },
       {DType::F64, DType::F32, DType::BF16}},
      {"statistics_that_share_a_sum",
       {{7, 10}},
       [](const Operands& o) {
         return Results{o[0].mean(0), o[0].std(0), o[0].mean(0) + o[0].std(0), o[0].sum(0, true),
                        o[0].mean(0, true) * 2};
       },
       {DType::F64, DType::BF16}},
      {"norms",
       {{7, 10}},
       [](const Operands& o) {
         return Results{o[0].layernorm(0), o[0].layernorm(1), o[0].var(0), o[0].std(1, true),
                        o[0] / o[0].sum()};
       }},
      {"all_of_a_sum",
       {{7, 10}, {10, 6}},
       [](const Operands& o) {
         Tensor y = o[0].matmul(o[1]);
         return Results{y.gelu(), y * 0.5 + y.relu(), y.layernorm(), y.silu()};
       }},
      {"bias",
       {{7, 10}, {10}, {7, 1}},
       [](const Operands& o) { return Results{o[1] + o[0], (o[0] * o[2]).tanh() + o[1] * o[2]}; }},
      {"places",
       {{7, 10}},
       [](const Operands& o) {
         Tensor even = (o[0] * 2).cast(DType::I32);  // with ties
         return Results{o[0].argmax(0), o[0].argmin(0), o[0].argmax(1), even.argmax(0),
                        even.argmin(0), even.argmax(1), o[0].argmax(),  even.argmin()};
       },
       {DType::F64, DType::F32, DType::I32, DType::U8, DType::I64}},
  });
}

Tensor places(int64_t count, int64_t size) { return (Tensor::arange(count) * 5 + 3) % size; }

TEST_P(LookupsTest, TablesAreLookedUpWhereTheyLie) {
  const std::vector<DType> all = {DType::F64, DType::F32, DType::BF16,
                                  DType::I64, DType::U8,  DType::I16};
  check({
      {"embedding",
       {{11, 6}},
       [](const Operands& o) {
         return Results{o[0].embedding(places(2, 11)),
                        o[0].embedding(places(60, 11).reshape({5, 12}))};
       },
       all},
      {"bool",
       {{11, 6}},
       [](const Operands& o) {
         return Results{(o[0] > 0).gather(0, places(18, 11).reshape({3, 6}))};
       }},
      {"out_of_range",
       {{11, 6}},
       [](const Operands& o) {
         Tensor index({-1, 11, 12, 0, 10, -7, 1 << 30});
         return Results{o[0].embedding(index), o[0].embedding(index.cast(DType::I64))};
       },
       {DType::F32, DType::I32}},
      {"along_columns",
       {{11, 6}},
       [](const Operands& o) {
         return Results{o[0].gather(1, places(22, 6).reshape({11, 2})),
                        o[0].gather(1, places(11, 6).reshape({11, 1})),
                        o[0].gather(1, places(4, 6).reshape({2, 2}))};
       },
       {DType::F64, DType::I32}},
      {"indexed",
       {{11, 6}, {3, 11, 2}},
       [](const Operands& o) {
         Tensor rows = places(4, 11), columns = places(4, 6);
         return Results{o[0][{rows}], o[0][{rows, columns}], o[0][{Slice(), columns}],
                        o[1][{Slice(), rows}], o[1][{1, rows}]};
       }},
      // Any rows and labels, whole and divided, of dims of which one is.
      {"indexed_rows",
       {{11, 6}, {3, 8, 4}, {8}, {11, 12}},
       [](const Operands& o) {
         Tensor rows = places(7, 11), columns = places(7, 6);
         Tensor own = (o[2].abs() * 3).cast(DType::I32) % 6;
         Tensor first = places(9, 3), last = places(9, 4);
         return Results{o[0][{rows, columns}],
                        o[0].T()[{columns, rows}],
                        o[0][{rows - 11, columns - 6}],
                        o[0][{rows, columns + 3}],  // some beyond the end
                        o[0][{own, own}],
                        o[3][{own, own}],
                        (o[3] * 2).tanh()[{rows, columns}],
                        o[3][{rows.reshape({7, 1}), columns.cast(DType::I64)}],
                        o[1][{first, places(9, 8), last}],
                        o[1][{Slice(), places(9, 8), last}],
                        o[1][{first, places(9, 8)}],
                        o[1][{first, Slice(), last}]};
       },
       {DType::F64, DType::BF16, DType::I32}},
      {"bags",
       {{11, 6}, {8, 3}, {4, 6}},
       [](const Operands& o) {
         Tensor whole = places(24, 11).reshape({8, 3});
         Tensor own = (o[1].abs() * 3).cast(DType::I32) % 11;
         Tensor real = (own != 2).unsqueeze(2);
         Tensor rows = o[0].embedding(own);
         return Results{o[0].embedding(whole).sum(1),
                        o[0].embedding(own).sum(1),
                        (o[0] * 2).embedding(own).mean(1),
                        -(o[0] - 1).embedding(own).sum(1, true),
                        (o[0] + 1).embedding(own).sum(0),
                        ((o[0] + 2).embedding(own) * real).sum(1),
                        real.where((o[0] + 3).embedding(own), 0).sum(1),
                        real.where((o[0] + 4).embedding(own), 0).sum({0, 1}),
                        (o[0] + 5).embedding(own).transpose(0, 1).sum(0).linear(o[2].T()),
                        (o[0] + 6)[{own}].sum(1),
                        rows,
                        rows.sum(1)};
       },
       {DType::F64, DType::F32, DType::BF16}},
      // Weights, some of them infinite; two lookups that weigh each other.
      {"weighed bags",
       {{11, 6}, {8, 3}, {8, 3}, {11, 6}},
       [](const Operands& o) {
         Tensor own = (o[1].abs() * 3).cast(DType::I32) % 11, weights = o[2].unsqueeze(2);
         Tensor whole = places(24, 11).reshape({8, 3});
         Tensor large = (o[2] > 1).where(INFINITY, o[2]).unsqueeze(2);
         return Results{
             ((o[0] + 1).embedding(own) * weights).sum(1),
             (weights * (o[0] + 2).embedding(whole)).sum(1),
             ((o[0] + 3).embedding(own) * weights * weights).sum(1),
             ((o[0] + 4).embedding(own) * large).sum(1),
             (-((o[0] + 5).embedding(own) * weights)).mean(1),
             ((o[0] + 6).embedding(own).transpose(0, 1) * weights.transpose(0, 1)).sum(0),
             ((o[0] + 7).embedding(own) * o[3].embedding(own)).sum(1),
             ((o[0] + 8).embedding(own) * (o[3] + 1).embedding(whole) * weights).sum(1)};
       },
       {DType::F64, DType::F32, DType::BF16}},
      // Rows that an index counts, beside labels, whole and divided.
      {"counted",
       {{11, 6}, {3, 11, 2}, {11}},
       [](const Operands& o) {
         Tensor rows = Tensor::arange(11), columns = places(11, 6);
         Tensor labels = (o[2].abs() * 2).cast(DType::I32) % 6;
         Tensor first = Tensor::arange(3).reshape({3, 1}), last({1, 0});
         return Results{o[0][{rows, columns}],
                        o[0][{rows, labels}],
                        o[0][{rows.cast(DType::I64), columns - 6}],
                        o[0][{rows.reshape({11, 1}), places(22, 6).reshape({11, 2})}],
                        o[0][{rows, Tensor({4})}],
                        o[0][{rows, columns + 3}],  // some beyond the end
                        o[0][{rows}],
                        o[0].T()[{labels, rows}],
                        o[0][{rows.shrink({{0, 6}}), Tensor::arange(6)}],
                        o[1][{first, rows, last.reshape({2, 1, 1})}],
                        o[1][{first, Slice(), last}],
                        o[1][{Slice(), rows, places(11, 2)}],
                        o[1].permute({1, 0, 2})[{rows, places(11, 3)}]};
       },
       {DType::F64, DType::BF16}},
      {"divided_places",
       {{11, 6}, {8, 2}},
       [](const Operands& o) {
         Tensor index = (o[1].abs() * 2).cast(DType::I32) % 11;
         return Results{o[0].embedding(index)};
       }},
      {"two_lookups_of_a_sum",
       {{9, 5}, {5, 6}},
       [](const Operands& o) {
         Tensor table = o[0].matmul(o[1]) + 3;  // 3 in what pads parts, too
         return Results{table.embedding(Tensor({5, 8})), table.embedding(places(30, 9))};
       }},
      {"cross_entropy",
       {{7, 10}},
       [](const Operands& o) {
         Tensor labels = places(7, 10);
         return Results{o[0].sparse_categorical_crossentropy(labels),
                        o[0].sparse_categorical_crossentropy(
                            labels, {.ignore_index = 3, .label_smoothing = 0.1}),
                        o[0].cross_entropy(labels, {.reduction = Reduction::None}),
                        o[0].log_softmax(1).nll_loss(labels)};
       },
       {DType::F64, DType::F32, DType::BF16}},
  });
}

// Rows that a device does not hold are masked, not multiplied by 0.
TEST_P(LookupsTest, InfinitiesAndNaNStayInTheirRows) {
  const Layout& layout = GetParam();
  const float inf = INFINITY, nan = NAN;
  Tensor one =
      Tensor({{1.f, nan}, {inf, 2.f}, {3.f, -inf}, {4.f, 5.f}, {nan, inf}, {6.f, 7.f}}).realize();
  Tensor many = lying(one, Mesh(layout.axes), layout.place);
  Tensor index({4, 0, 3, 1, 5, 2});
  expect_same(many.embedding(index.reshape({2, 3})), one.embedding(index.reshape({2, 3})), 0,
              "rows");
  expect_same(many.embedding(Tensor({3})), one.embedding(Tensor({3})), 0, "a finite row");
}

// Classes of scores are divided along one axis, labels along another. If the lookup is completed
// along one axis, it has to be before it is weighed: weights of classes that no label names are
// infinite.
TEST_P(LookupsTest, WeighedLossesOfClassesAndRowsThatAreDivided) {
  const Layout& layout = GetParam();
  const int64_t n = layout.axes[0].size;
  for (const int64_t columns : {1, 2}) {
    if (n * columns > 4) continue;
    const Mesh mesh({{"a", n}, {"b", columns}});
    for (const Dims& shape : {Dims{4, 2, 6, 3}, Dims{4, 1, 6, 3}, Dims{8, 6}}) {
      for (const Reduction reduction : {Reduction::None, Reduction::Mean, Reduction::Sum}) {
        Tensor scores = Tensor::randn(shape, DType::F64).realize();
        Dims places = shape;
        places.erase(places.begin() + 1);
        Tensor labels = Tensor::zeros(places, DType::I32).clone().realize();
        std::vector<double> of_classes(size_t(shape[1]), INFINITY);
        of_classes[0] = 1.5;
        Tensor weights = Tensor(of_classes).realize();
        const Tensor want = scores.nll_loss(labels, weights, {}, reduction);
        const Tensor got = lying(scores, mesh, {Shard(1), Replicate})
                               .nll_loss(lying(labels, mesh, {Replicate, Shard(0)}),
                                         lying(weights, mesh, {Shard(0), Shard(0)}), {}, reduction);
        expect_same(got, want, 1e-12, fmt::format("{} x {} {}", n, columns, shape.size()));
      }
    }
  }
}

// The sum over the devices that have a row and that have not leaves every bit of it, signs of zeros
// among them; a place beyond the table is 0 and not -0.
TEST_P(LookupsTest, KeepEachBit) {
  const Layout& layout = GetParam();
  const Mesh mesh(layout.axes);
  for (DType type : {DType::F32, DType::F64, DType::F16, DType::BF16}) {
    Tensor minus = (-Tensor::zeros({11, 6})).cast(type).contiguous().realize();
    Tensor one = minus.pad({{0, 0}, {0, 3}}).contiguous().realize();  // -0 and 0 beside each other
    Tensor many = lying(one, mesh, layout.place);
    auto looked_up = [](const Tensor& table) {
      Tensor index({10, 0, 5, 3, -1, 11, 8});
      return Results{table.embedding(index), table.embedding(Tensor({7})),
                     table.gather(1, places(44, 9).reshape({11, 4})), table[{index, index}]};
    };
    const Results want = looked_up(one), got = looked_up(many);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(got[i].data() == want[i].data())
          << name(type) << " result " << i << ": " << got[i] << ", not " << want[i];
    const std::vector<double> inverse = (1 / got[0].cast(DType::F64)).to_vector<double>();
    EXPECT_LT(inverse[0], 0) << "the table's own -0 is lost in this test";
  }
}

// As above, where rows travel in the type that they are read in, and where what was widened is
// brought elsewhere: bits are those of one device.
TEST_P(LookupsTest, NarrowTypesTravel) {
  const Layout& layout = GetParam();
  const Mesh mesh(layout.axes);
  const Tensor one = (Tensor::arange(77).cast(DType::F32) * 0.37).sin().reshape({11, 7}).realize();
  const Tensor many = lying(one, mesh, layout.place);
  for (DType type : {DType::BF16, DType::F16}) {
    const Tensor index({{10, 0, 5}, {3, -1, 11}});
    auto read = [&](const Tensor& table) {
      const Tensor rows = table.embedding(index).cast(type);
      const Tensor back = (rows.cast(DType::F32) * 3).tanh();
      return Results{rows, back, back.sum(1), table.embedding(index).transpose().cast(type),
                     (table.embedding(index) * 2).cast(type)};
    };
    const Results want = read(one), got = read(many);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_TRUE(got[i].data() == want[i].data())
          << name(type) << " result " << i << ": " << got[i] << ", not " << want[i];
  }
  for (auto [from, to] : {std::pair{DType::BF16, DType::F32},
                          {DType::F16, DType::F64},
                          {DType::Bool, DType::F32},
                          {DType::I8, DType::I64},
                          {DType::U8, DType::F16},
                          {DType::I32, DType::F64}}) {
    auto widened = [&](const Tensor& x) { return (x * 4).cast(from).cast(to); };
    const Tensor want = widened(one), got = widened(many);
    for (const std::vector<Placement>& place : {std::vector<Placement>{Replicate, Replicate},
                                                {Shard(1), Shard(0)},
                                                {Shard(0), Shard(0)}}) {
      std::vector<AxisPlacement> there;
      for (size_t a = 0; a < layout.axes.size(); ++a)
        there.push_back({layout.axes[a].name, place[a]});
      EXPECT_TRUE(got.shard(mesh, there).data() == want.data()) << name(from) << name(to);
      EXPECT_TRUE(got.T().reshape({7, 11}).flip({0}).shard(mesh, there).data() ==
                  want.T().reshape({7, 11}).flip({0}).data());
    }
    EXPECT_TRUE(got.cumsum(0).argmax(0).data() == want.cumsum(0).argmax(0).data());
  }
}

TEST_P(LookupsTest, Orders) {
  check({
      {"largest",
       {{7, 10}},
       [](const Operands& o) {
         auto [rows, row_places] = o[0].topk(3, 0);
         auto [columns, column_places] = o[0].topk(2, 1, false);
         auto [ties, tie_places] = (o[0] * 0.3).cast(DType::I32).topk(5, 0);
         return Results{rows, row_places, columns, column_places, ties, tie_places};
       },
       {DType::F64, DType::F32, DType::I32}},
      {"sorted",
       {{7, 10}, {23}},
       [](const Operands& o) {
         auto [rows, row_places] = o[0].sort(0);
         auto [columns, column_places] = o[0].sort(1, true);
         auto [line, line_places] = o[1].sort(0);
         return Results{
             rows, row_places, columns, column_places, line, line_places, o[1].topk(2, 0).second};
       },
       {DType::F64, DType::BF16, DType::U8}},
      {"of_joined_dims",
       {{4, 8}, {3, 4, 8}, {2, 7, 10}},
       [](const Operands& o) {
         Results all;
         for (int i : {1, 2}) {
           for (const Tensor& x : {o[i], o[i].transpose(1, 2), o[i].permute({2, 0, 1})}) {
             auto [most, at] = x.flatten(1).topk(3, 1);
             auto [ties, where] = (x * 0.3).cast(DType::I32).flatten(1).topk(9, 1, false);
             all.insert(all.end(), {most, at, ties, where});
           }
         }
         auto [most, at] = o[0].flatten().topk(5, 0);
         auto [line, order] = o[0].T().flatten().sort(0);
         all.insert(all.end(), {most, at, line, order});
         return all;
       },
       {DType::F64, DType::F32, DType::U8}},
      {"none_of_the_padding",
       {{23}},
       [](const Operands& o) {
         Tensor x = o[0].abs() + 1;  // 1 in what pads the parts
         auto [values, at] = x.topk(2, 0, false);
         return Results{values, at, (x * 0).topk(2, 0).second, (-x).topk(1, 0).first};
       }},
      {"nan_and_padding",
       {{9}},
       [](const Operands& o) {
         Tensor x = (o[0] > 0).where(o[0], NAN);
         return Results{x.topk(9, 0).second, x.topk(4, 0).first, x.argsort(0)};
       },
       {DType::F32}},
  });
}

TEST_P(LookupsTest, Scans) {
  check({
      {"short",
       {{7, 10}},
       [](const Operands& o) {
         return Results{o[0].cumsum(0),  o[0].cumsum(1),       o[0].cumprod(0),
                        o[0].cumprod(1), o[0].logcumsumexp(0), o[0].logcumsumexp(1)};
       },
       {DType::F64, DType::F32, DType::I32}},
      {"best",
       {{7, 10}},
       [](const Operands& o) {
         auto [most, most_places] = o[0].cummax(0);
         auto [least, least_places] = o[0].cummin(1);
         return Results{most, most_places, least, least_places};
       },
       {DType::F64, DType::I32}},
      {"long",
       {{1100}, {2, 1031}},
       [](const Operands& o) {
         return Results{o[0].cumsum(0), o[1].cumsum(1), o[0].logcumsumexp(0), o[1].cummax(1).first,
                        o[1].cummax(1).second};
       },
       {DType::F64}},
      {"selected",
       {{37}},
       [](const Operands& o) {
         return Results{o[0].masked_select(o[0] > 0, 12), (o[0] > 0).nonzero(30)};
       }},
  });
}

TEST_P(LookupsTest, Writes) {
  check({
      {"scattered",
       {{7, 10}, {4, 10}, {7, 3}},
       [](const Operands& o) {
         Tensor rows = places(40, 7).reshape({4, 10}), columns = places(21, 10).reshape({7, 3});
         return Results{o[0].scatter(0, rows, o[1]), o[0].scatter(1, columns, o[2]),
                        o[0].scatter_reduce(0, rows, o[1], ScatterReduce::Sum),
                        o[0].scatter_reduce(1, columns, o[2], ScatterReduce::Mean),
                        o[0].scatter_reduce(0, rows, o[1], ScatterReduce::Amax)};
       }},
      {"set",
       {{7, 10, 2}, {7, 2, 2}, {2, 10, 2}},
       [](const Operands& o) {
         Results all;
         auto set = [&](const std::vector<Index>& index, const Tensor& value) {
           Tensor x = (o[0].detach() + 0).contiguous();
           x.setitem(index, value.detach());
           all.push_back(x * 1);
         };
         set({Slice(), Tensor({8, 1}), Slice()}, o[1]);
         set({Tensor({6, 2})}, o[2]);
         set({Slice(), Tensor({3}), Slice()}, o[1].shrink({{0, 7}, {0, 1}, {0, 2}}));
         set({Slice(2, 4)}, o[2]);
         set({5}, o[2][0]);
         set({Tensor::arange(7), places(7, 10)},
             o[1].shrink({{0, 7}, {0, 1}, {0, 2}})[{Slice(), 0}]);
         set({places(10, 7), Tensor::arange(10), 1}, o[2][{1, Slice(), 0}]);
         return all;
       },
       {DType::F32, DType::I32}},
  });
}

// Entries that name some places often and most never, few of them or as many as there are places.
TEST_P(LookupsTest, WritesOfEntriesAlongShards) {
  const Layout& layout = GetParam();
  const Mesh mesh(layout.axes);
  for (const auto& [size, entries] : std::vector<std::pair<int64_t, int64_t>>{
           {1000, 13}, {1000, 40}, {40, 40}, {3, 50}, {4001, 5}}) {
    for (DType type : {DType::F32, DType::BF16, DType::I32, DType::U8}) {
      const Tensor x = (Tensor::arange(size * 4).reshape({size, 4}) % 5).cast(type).realize();
      const Tensor src = (Tensor::arange(entries * 4).reshape({entries, 4}) % 3 + 1).cast(type);
      const Tensor index = ((Tensor::arange(entries) * 31 % 17) * 29 % size).realize();
      const auto written = [&, entries = entries](const Tensor& to, const Tensor& of,
                                                  const Tensor& at) {
        Tensor set = (to + 0).contiguous();
        set.setitem({at}, of);
        Results all{set * 1};
        const Tensor places = at.reshape({entries, 1}).expand({entries, 4});
        all.push_back(to.scatter(0, places, of));
        for (ScatterReduce reduce : {ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean,
                                     ScatterReduce::Amax, ScatterReduce::Amin}) {
          for (bool include_self : {true, false})
            all.push_back(to.scatter_reduce(0, places, of, reduce, include_self));
        }
        return all;
      };
      const Results want = written(x, src, index);
      const Results got =
          written(lying(x, mesh, layout.place), lying(src.realize(), mesh, layout.place),
                  lying(index, mesh, layout.place));
      for (size_t i = 0; i < want.size(); ++i) {
        expect_same(
            got[i], want[i], 0,
            fmt::format("result {} of {} entries for {} places, {}", i, entries, size, name(type)));
      }
    }
  }
}

// The last of the entries that name one place counts, whichever device has it; its gradient goes to it
// alone.
TEST_P(LookupsTest, LastEntriesAlongShards) {
  const Layout& layout = GetParam();
  const Mesh mesh(layout.axes);
  for (const auto& [size, entries] :
       std::vector<std::pair<int64_t, int64_t>>{{64, 64}, {61, 83}, {1000, 13}, {5, 200}, {3, 2}}) {
    for (DType type : {DType::F32, DType::BF16, DType::I64, DType::U8, DType::Bool}) {
      SCOPED_TRACE(fmt::format("{} entries for {} places, {}", entries, size, name(type)));
      const Tensor x = (Tensor::arange(size) % 5 - 2).cast(type).realize();
      const Tensor src = ((Tensor::arange(entries) * 7 % 11) - 5).cast(type).realize();
      const Tensor index = (Tensor::arange(entries) * 31 % 17 * 29 % size).realize();
      const Tensor wide = (Tensor::arange(size * 6) % 7).reshape({size, 6}).cast(type).realize();
      const Tensor rows = (Tensor::arange(entries * 6) % 5).reshape({entries, 6}).cast(type);
      const auto written = [&](const auto& lay) {
        Tensor to = lay(x), of = lay(src), at = lay(index), all = lay(wide), some = lay(rows);
        Tensor set = (to * 1).contiguous(), lines = (all * 1).contiguous();
        set.setitem({at}, of);
        lines.setitem({at}, some);
        const Tensor places = at.reshape({at.shape(0), 1}).expand(some.shape());
        Results got{set * 1,
                    to.scatter(0, at, of),
                    to.scatter(0, at, 1),
                    lines * 1,
                    all.scatter(0, places, some),
                    all.scatter(0, places.shrink({{0, at.shape(0)}, {0, 4}}), some)};
        if (is_float(type)) {
          const Tensor y = to.scatter(0, at, of);
          const Tensor g = (Tensor::arange(y.numel()) % 3).cast(type);
          for (const Tensor& v : y.gradient({to, of}, g)) got.push_back(v);
        }
        return got;
      };
      const Results want = written([](const Tensor& v) { return v; });
      const Results got = written([&](const Tensor& v) { return lying(v, mesh, layout.place); });
      for (size_t i = 0; i < want.size(); ++i)
        expect_same(got[i], want[i], 0, fmt::format("result {}", i));
    }
  }
}

TEST_P(LookupsTest, RandomNumbersAreTheSame) {
  const Layout& layout = GetParam();
  Mesh mesh(layout.axes);
  auto drawn = [&](auto lay) {
    Tensor::manual_seed(5);
    TrainingMode training;
    Results all{lay(Tensor::rand({7, 10})), lay(Tensor::randn({130, 9})),
                lay(Tensor::randint({7, 40}, 0, 100))};
    all.push_back(lay(Tensor::ones({40, 9})).dropout(0.3));
    all.push_back(lay(Tensor::rand({64, 4})) + Tensor::rand({64, 4}));
    return all;
  };
  Results one = drawn([](const Tensor& x) { return x; });
  Results many = drawn([&](const Tensor& x) {
    std::vector<AxisPlacement> named;
    for (size_t a = 0; a < layout.place.size(); ++a)
      named.push_back({mesh.axes()[a].name, layout.place[a]});
    return x.shard(mesh, named);
  });
  for (size_t i = 0; i < one.size(); ++i)
    expect_same(many[i], one[i], 1e-6, fmt::format("draw {}", i));
}

void PrintTo(const Layout& layout, std::ostream* out) { *out << layout.name; }

INSTANTIATE_TEST_SUITE_P(Layouts, LookupsTest, testing::ValuesIn(layouts()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tinyshard::lookups_test
