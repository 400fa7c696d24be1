// Products, convolutions and attention give on every mesh, however their operands lie, the values
// and gradients of one device: each case is run for all placements of its operands on meshes of 1,
// 3 and 4 devices, and for drawn ones on 2 x 2.
#include <cmath>
#include <functional>
#include <random>
#include <tinyshard/tinyshard.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/multi/one_device.h"

namespace tinyshard::mesh_products_test {
namespace {

using Operands = std::vector<Tensor>;
struct Case {
  std::string name;
  std::vector<Dims> shapes;
  std::function<Tensor(const Operands&)> run;
  std::vector<DType> types = {DType::F64, DType::F32, DType::BF16};
};

std::vector<Case> products() {
  return {
      {"rows", {{6, 10}, {10, 7}}, [](const Operands& o) { return o[0].matmul(o[1]); }},
      {"tokens", {{2, 6, 10}, {10, 7}}, [](const Operands& o) { return o[0].matmul(o[1]); }},
      {"batched", {{3, 4, 5}, {3, 5, 6}}, [](const Operands& o) { return o[0].matmul(o[1]); }},
      {"broadcast", {{2, 1, 4, 5}, {3, 5, 6}}, [](const Operands& o) { return o[0].matmul(o[1]); }},
      {"mlp",
       {{2, 6, 5}, {8, 5}, {8}, {5, 8}},
       [](const Operands& o) {
         Tensor h = o[0].linear(o[1].T(), o[2]).gelu().linear(o[3].T());
         return o[0] + h.layernorm();
       }},
      {"heads",
       {{2, 4, 6}, {6, 4, 3}},
       [](const Operands& o) { return Tensor::einsum("bsd,dhe->bhse", {o[0], o[1]}); }},
      {"heads_back",
       {{2, 4, 5, 3}, {4, 3, 6}},
       [](const Operands& o) { return Tensor::einsum("bhse,hed->bsd", {o[0], o[1]}); }},
      {"sum_of_all",
       {{2, 6, 5}, {2, 6, 4}},
       [](const Operands& o) { return Tensor::einsum("bsd,bse->de", {o[0], o[1]}); }},
      {"rows_joined_by_hand",
       {{2, 6, 5}, {5, 7}, {7, 5}},
       [](const Operands& o) {
         Tensor rows = o[0].reshape({12, 5}).matmul(o[1]).tanh().matmul(o[2]);
         return rows.reshape({2, 6, 5}) + o[0];
       }},
  };
}

std::vector<Case> attentions() {
  auto attend = [](bool causal, bool shared) {
    return [=](const Operands& o) {
      return o[0].scaled_dot_product_attention(o[1], o[2], {},
                                               {.is_causal = causal, .enable_gqa = shared});
    };
  };
  const Dims q{2, 4, 6, 8}, few{2, 2, 6, 8};
  return {
      {"heads", {q, q, q}, attend(false, false)},
      {"causal", {q, q, q}, attend(true, false)},
      {"shared_heads", {q, few, few}, attend(false, true)},
      {"causal_shared_heads", {{1, 8, 9, 4}, {1, 4, 9, 4}, {1, 4, 9, 4}}, attend(true, true)},
      {"masked_shared_heads",
       {q, few, few, {6, 6}},
       [](const Operands& o) {
         return o[0].scaled_dot_product_attention(o[1], o[2], o[3].tril() * 2,
                                                  {.enable_gqa = true});
       }},
      {"one_shared_head", {{3, 4, 5, 4}, {3, 1, 5, 4}, {3, 1, 5, 4}}, attend(true, true)},
      {"few_rows", {{2, 4, 3, 8}, {2, 4, 7, 8}, {2, 4, 7, 6}}, attend(true, false)},
      {"no_heads", {{9, 4}, {9, 4}, {9, 4}}, attend(true, false)},
  };
}

std::vector<Case> convolutions() {
  auto conv = [](const ConvOptions& options) {
    return [=](const Operands& o) { return o[0].conv2d(o[1], {}, options); };
  };
  return {
      {"plain", {{4, 6, 5, 6}, {5, 6, 3, 3}}, conv({.padding = 1})},
      {"strided", {{3, 4, 7, 7}, {4, 4, 2, 3}}, conv({.stride = 2, .dilation = 2})},
      {"groups", {{2, 8, 5, 5}, {4, 2, 3, 3}}, conv({.groups = 4})},
      {"depthwise", {{2, 12, 5, 5}, {24, 1, 3, 3}}, conv({.groups = 12, .padding = 1})},
      {"transposed",
       {{2, 6, 4, 4}, {6, 5, 3, 3}},
       [](const Operands& o) { return o[0].conv_transpose2d(o[1], {}, {.stride = 2}); }},
  };
}

// The loss weighs all elements differently, so that no gradient is the same for two of them.
std::vector<Tensor> with_gradients(const Case& c, const Operands& operands) {
  Tensor y = c.run(operands).cast(c.types[0] == DType::F64 ? DType::F64 : DType::F32);
  Tensor weights = (Tensor::arange(y.numel()).reshape(y.shape()).cast(y.dtype()) * 0.37).sin();
  Tensor loss = (y.tanh() * weights).sum();
  std::vector<Tensor> all = loss.gradient(operands);
  all.insert(all.begin(), y);
  return all;
}

class ProductsTest : public OnDevices<4, testing::TestWithParam<Case>> {
 protected:
  // Runs the case in one type with its operands placed so: `place[i][a]` is a dim or -1. Operands
  // that are left out are whole.
  static void check(const Case& c, DType type, const Mesh& mesh,
                    std::vector<std::vector<int>> place) {
    place.resize(c.shapes.size(), {-1});
    Operands one, many;
    std::string where = fmt::format("{} of {} on {}:", c.name, name(type), mesh.to_string());
    for (size_t i = 0; i < c.shapes.size(); ++i) {
      Tensor::manual_seed(11 + i);
      one.push_back(Tensor::randn(c.shapes[i]).cast(type).realize());
      std::vector<AxisPlacement> named;
      for (size_t a = 0; a < place[i].size(); ++a) {
        where += fmt::format(" {}", place[i][a]);
        if (place[i][a] >= 0) named.push_back({mesh.axes()[a].name, Shard(place[i][a])});
      }
      where += ";";
      many.push_back(one[i].shard(mesh, named).realize());
    }
    SCOPED_TRACE(where);
    const Case typed{c.name, c.shapes, c.run, {type}};
    const auto want = with_gradients(typed, one), got = with_gradients(typed, many);
    const double tolerance = type == DType::F64 ? 1e-12 : type == DType::F32 ? 2e-5 : 4e-2;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(got[i].shape(), want[i].shape());
      auto a = got[i].to_vector<double>(), b = want[i].to_vector<double>();
      double largest = 1;
      for (double v : b) largest = std::max(largest, std::abs(v));
      for (size_t e = 0; e < a.size(); ++e)
        ASSERT_NEAR(a[e], b[e], tolerance * largest) << "result " << i << " element " << e;
    }
  }
};

TEST_P(ProductsTest, AreThoseOfOneDevice) {
  const Case& c = GetParam();
  std::mt19937 random(3);
  auto rank = [&](size_t i) { return int(c.shapes[i].size()); };
  for (int64_t n : {1, 3, 4}) {
    const Mesh mesh({{"d", n}});
    int64_t all = 1;
    for (size_t i = 0; i < c.shapes.size(); ++i) all *= rank(i) + 1;
    const int64_t most = n == 1 ? 2 : 9;
    for (int64_t k = 0; k < std::min(all, most); ++k) {
      int64_t number = all <= most ? k : int64_t(random()) % all;
      std::vector<std::vector<int>> place;
      for (size_t i = 0; i < c.shapes.size(); ++i) {
        place.push_back({int(number % (rank(i) + 1)) - 1});
        number /= rank(i) + 1;
      }
      ASSERT_NO_FATAL_FAILURE(check(c, c.types[size_t(k) % c.types.size()], mesh, place));
    }
  }
  const Mesh grid({{"r", 2}, {"c", 2}});
  for (int k = 0; k < 9; ++k) {
    std::vector<std::vector<int>> place;
    for (size_t i = 0; i < c.shapes.size(); ++i)
      place.push_back({int(random() % (rank(i) + 1)) - 1, int(random() % (rank(i) + 1)) - 1});
    ASSERT_NO_FATAL_FAILURE(check(c, c.types[size_t(k) % c.types.size()], grid, place));
  }
}

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Heads that share k and v, against k and v repeated for each head.
TEST(SharedHeads, AreHeadsWithCopies) {
  for (DType type : {DType::F64, DType::F32, DType::BF16}) {
    for (bool causal : {false, true}) {
      Tensor::manual_seed(5);
      Tensor q = Tensor::randn({2, 6, 7, 8}).cast(type).realize(),
             k = Tensor::randn({2, 2, 5, 8}).cast(type).realize(),
             v = Tensor::randn({2, 2, 5, 4}).cast(type).realize(),
             g = Tensor::randn({2, 6, 7, 4}).cast(type).realize();
      Tensor shared =
          q.scaled_dot_product_attention(k, v, {}, {.is_causal = causal, .enable_gqa = true});
      Tensor own = q.scaled_dot_product_attention(
          k.repeat_interleave(3, 1), v.repeat_interleave(3, 1), {}, {.is_causal = causal});
      auto a = shared.gradient({q, k, v}, g), b = own.gradient({q, k, v}, g);
      a.push_back(shared), b.push_back(own);
      const double tolerance = type == DType::F64 ? 1e-12 : type == DType::F32 ? 1e-5 : 4e-2;
      for (size_t i = 0; i < a.size(); ++i) {
        ASSERT_EQ(a[i].shape(), b[i].shape());
        EXPECT_LT((a[i].cast(DType::F64) - b[i].cast(DType::F64)).abs().max().item<double>(),
                  tolerance * (1 + b[i].cast(DType::F64).abs().max().item<double>()))
            << name(type) << " " << causal << " " << i;
      }
    }
  }
}

class FewHeads : public ProductsTest {};

// Heads of q over all devices, of which there are more than heads of k and v, however these lie.
TEST_P(FewHeads, GoToTheDevicesThatShareThem) {
  const Case& c = GetParam();
  int64_t k = 0;
  for (int key = -1; key < 4; ++key) {
    for (int value : {-1, 1, key}) {
      const DType type = c.types[size_t(k++) % c.types.size()];
      ASSERT_NO_FATAL_FAILURE(check(c, type, Mesh({{"d", 4}}), {{1}, {key}, {value}}));
      ASSERT_NO_FATAL_FAILURE(
          check(c, type, Mesh({{"r", 2}, {"c", 2}}), {{1, 1}, {key, value}, {value, -1}}));
      ASSERT_NO_FATAL_FAILURE(
          check(c, type, Mesh({{"r", 2}, {"c", 2}}), {{0, 1}, {key, -1}, {-1, value}}));
    }
  }
}

std::vector<Case> few_heads() {
  std::vector<Case> cases;
  for (Case& c : attentions()) {
    if (c.name.find("shared_head") != std::string::npos) cases.push_back(std::move(c));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Attention, FewHeads, testing::ValuesIn(few_heads()),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(Attention, ProductsTest, testing::ValuesIn(attentions()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Convolution, ProductsTest, testing::ValuesIn(convolutions()),
                         [](const auto& info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(Dot, ProductsTest, testing::ValuesIn(products()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tinyshard::mesh_products_test
