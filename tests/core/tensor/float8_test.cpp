// Tensors of 8-bit floats: casts of all codes both ways, moves that keep every bit, arithmetic in f32
// that is rounded once, files, and meshes.
#include <cmath>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "tests/devices.h"
#include "tests/io/temp_folder.h"

namespace tinyshard::float8_test {
namespace {

using Floats = std::vector<float>;

struct Definition {
  DType type;
  int mantissa, bias;
  bool fnuz;
};
constexpr Definition kTypes[] = {{DType::F8E4M3FN, 3, 7, false},
                                 {DType::F8E5M2, 2, 15, false},
                                 {DType::F8E4M3FNUZ, 3, 8, true},
                                 {DType::F8E5M2FNUZ, 2, 16, true}};

double decode(const Definition& d, int code) {
  const int exponent = (code & 127) >> d.mantissa, fraction = code & ((1 << d.mantissa) - 1);
  const double sign = code & 128 ? -1 : 1;
  if (d.fnuz ? code == 128 : d.mantissa == 3 && (code & 127) == 127) return NAN;
  if (!d.fnuz && d.mantissa == 2 && exponent == 31) return fraction ? NAN : sign * INFINITY;
  const int whole = exponent > 0 ? (1 << d.mantissa) + fraction : fraction;
  return sign * std::ldexp(whole, std::max(exponent, 1) - d.bias - d.mantissa);
}

// The code next to x, of two the even one; by search.
int encode(const Definition& d, double x) {
  if (std::isnan(x)) return d.fnuz ? 128 : 127;
  int best = 0;
  const double size =
      std::min(std::abs(x), 1e6);  // far beyond all types, and differences are exact
  for (int code = 0; code < 128; ++code) {
    const double value = decode(d, code), now = decode(d, best);
    if (!std::isfinite(value)) break;
    const double far = std::abs(size - value), nearest = std::abs(size - now);
    if (far < nearest || (far == nearest && code % 2 == 0)) best = code;
  }
  int last = 127;
  while (!std::isfinite(decode(d, last))) --last;
  const double step = decode(d, last) - decode(d, last - 1);
  if (best == last && std::abs(x) >= decode(d, last) + step / 2)
    best = d.fnuz ? 128 : last + 1;  // the middle goes up: the last code is even, or it is past all
  if (best == last && std::abs(x) == decode(d, last) + step / 2 && last % 2 == 0) best = last;
  if (d.fnuz) return best == 0 || best == 128 ? best : best | (std::signbit(x) ? 128 : 0);
  return best | (std::signbit(x) ? 128 : 0);
}

Tensor all_codes(DType type) { return Tensor::arange(256).cast(DType::U8).bitcast(type); }
std::vector<int> codes(const Tensor& x) { return x.bitcast(DType::U8).to_vector<int>(); }
std::vector<int> upto255() {
  std::vector<int> list(256);
  for (int i = 0; i < 256; ++i) list[size_t(i)] = i;
  return list;
}
void expect_values(const Definition& d, const Floats& got) {
  ASSERT_EQ(got.size(), 256u);
  for (int i = 0; i < 256; ++i) {
    const double expected = decode(d, i);
    EXPECT_TRUE(std::isnan(expected) ? std::isnan(got[size_t(i)])
                                     : double(got[size_t(i)]) == expected)
        << name(d.type) << " " << i;
  }
}

TEST(Float8Tensors, EveryCodeBothWays) {
  for (const Definition& d : kTypes) {
    const Tensor stored = all_codes(d.type).clone().realize();
    EXPECT_EQ(stored.data().size(), 256u);
    expect_values(d, stored.to_vector<float>());
    expect_values(d, stored.cast(DType::F64).cast(DType::F32).to_vector<float>());
    EXPECT_EQ(codes(stored), upto255());
    EXPECT_EQ(codes(stored.cast(DType::F32).clone().realize().cast(d.type)), upto255());
    EXPECT_EQ(codes(stored.permute({0}).reshape({16, 16}).T().clone().T().reshape({256})),
              upto255());
    EXPECT_EQ(codes(cat({stored, stored}).shrink({{256, 512}})), upto255());
  }
}

TEST(Float8Tensors, RoundsOnceToTheNearestEven) {
  for (const Definition& d : kTypes) {
    std::vector<double> list{0,     -0.0,  1e-30, -1e-30, 1e30,  -1e30,    465,    448, 463.9,
                             464.1, 57344, 240,   247.9,  248.1, 61439.99, 1e-310, 3.3, -17};
    for (int code = 0; code < 128; ++code) {
      const double a = decode(d, code), b = decode(d, code + 1 < 128 ? code + 1 : code);
      if (!std::isfinite(a) || !std::isfinite(b)) continue;
      for (const double x :
           {a, (a + b) / 2, (a + b) / 2 * (1 + 0x1p-40), (a + b) / 2 * (1 - 0x1p-40)})
        list.push_back(x), list.push_back(-x);
    }
    const std::vector<int> got = codes(Tensor(list).cast(d.type));
    Floats narrow(list.begin(), list.end());
    const std::vector<int> of_f32 = codes(Tensor(narrow).clone().realize().cast(d.type));
    for (size_t i = 0; i < list.size(); ++i) {
      auto same = [&](int code, double x) {
        const int want = encode(d, x);
        return code == want || (std::isnan(decode(d, code)) && std::isnan(decode(d, want)));
      };
      EXPECT_TRUE(same(got[i], list[i])) << name(d.type) << " " << list[i] << ": " << got[i];
      EXPECT_TRUE(same(of_f32[i], double(narrow[i]))) << name(d.type) << " " << narrow[i];
    }
  }
}

TEST(Float8Tensors, ArithmeticIsThatOfF32RoundedOnce) {
  for (const Definition& d : kTypes) {
    const Tensor x = (Tensor::arange(64) * 0.37 - 9).cast(d.type), y = (x * 3 + 1).realize();
    const Floats a = x.to_vector<float>(), b = y.to_vector<float>();
    EXPECT_EQ(y.dtype(), d.type);
    const std::vector<int> sum = codes(x + y), product = codes(x * y);
    const std::vector<int> squash = codes((x * 0.1).gelu());
    EXPECT_EQ(squash.size(), 64u);
    double total = 0;
    for (size_t i = 0; i < 64; ++i) {
      auto value = [&](double v) { return decode(d, encode(d, double(float(v)))); };
      const double s = value(double(a[i]) + double(b[i])), p = value(double(a[i]) * double(b[i]));
      EXPECT_TRUE(decode(d, sum[i]) == s) << name(d.type) << i;
      EXPECT_TRUE(decode(d, product[i]) == p ||
                  (std::isnan(p) && std::isnan(decode(d, product[i]))));
      total += double(a[i]);
    }
    EXPECT_NEAR(x.sum(Axes(), false, DType::F32).item<float>(), total, 1e-3);
    // Every element is negative: what starts a maximum may not be NaN or 0.
    const Tensor negative = (Tensor::arange(37) * -1.0 - 2).cast(d.type);
    EXPECT_EQ(negative.max().item<float>(), -2);
    EXPECT_EQ(negative.min().item<float>(), float(decode(d, encode(d, -38))));
    const Tensor w = (Tensor::arange(12) * 0.5 - 3).reshape({3, 4}).cast(d.type);
    const Tensor want = w.cast(DType::F32).matmul(w.cast(DType::F32).T()).cast(d.type);
    EXPECT_EQ(codes(w.matmul(w.T())), codes(want));
  }
}

TEST(Float8Tensors, TakesTheSignOfEveryNumber) {
  for (const Definition& d : kTypes) {
    const Floats got =
        Tensor::full({256}, 2.0, d.type).copysign(all_codes(d.type)).to_vector<float>();
    for (int i = 0; i < 256; ++i) EXPECT_EQ(got[size_t(i)], i < 128 ? 2 : -2) << name(d.type) << i;
  }
}

TEST(Float8Tensors, DrawsAreBelowTheUpperBound) {
  for (const Definition& d : kTypes) {
    // The largest draws, 1 + 15/16 and 1 + 7/8, lie in the middle below 2, which is even.
    for (const double low : {1.0, -2.0, -1.0}) {
      for (const float x : Tensor::uniform({4096}, low, low + 1, d.type).to_vector<float>())
        EXPECT_TRUE(x >= low && x < low + 1) << name(d.type) << " " << x;
    }
  }
  EXPECT_THROW(Tensor::uniform({4}, 0, 1000, DType::F8E4M3FN), UserError);
}

TEST(Float8Tensors, MatricesAreDecomposed) {
  for (const Definition& d : kTypes) {
    const Tensor x = Tensor({{3.0, 0.0, 0.0}, {4.0, 5.0, 0.0}}).cast(d.type);
    const auto [q, r] = x.qr();
    const Tensor values = Tensor({{0.0, -2.0}, {-3.0, 0.0}}).cast(d.type).svd().s;
    EXPECT_EQ(q.dtype(), d.type);
    EXPECT_EQ(values.to_vector<float>(), (Floats{3, 2}));
    const Floats first = r.abs().to_vector<float>();
    EXPECT_EQ(first[0], 5) << name(d.type);  // of the first column, (3, 4)
    const Floats back = q.cast(DType::F32).matmul(r.cast(DType::F32)).to_vector<float>();
    for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(back[i], x.to_vector<float>()[i], 1) << name(d.type);
  }
}

TEST(Float8Tensors, Promotes) {
  const Tensor e4 = Tensor::ones({2}, DType::F8E4M3FN), e5 = Tensor::ones({2}, DType::F8E5M2);
  EXPECT_EQ((e4 + 1).dtype(), DType::F8E4M3FN);
  EXPECT_EQ((e4 + 1.5).dtype(), DType::F8E4M3FN);
  EXPECT_EQ((e4 + Tensor::ones({2}, DType::I32)).dtype(), DType::F8E4M3FN);
  EXPECT_EQ((e4 + Tensor::ones({2}, DType::BF16)).dtype(), DType::BF16);
  EXPECT_EQ((e4 + e5).dtype(), DType::F32);
  EXPECT_EQ(dtype_from_name("float8_e4m3fn"), DType::F8E4M3FN);
  EXPECT_EQ(dtype_from_name("F8_E5M2"), DType::F8E5M2);
  EXPECT_EQ(dtypes::fp8e5m2fnuz, DType::F8E5M2FNUZ);
}

TEST(Float8Tensors, Files) {
  const test::TempFolder folder;
  nn::StateDict dict;
  for (const Definition& d : kTypes) dict.emplace(std::string(name(d.type)), all_codes(d.type));
  safe_save(dict, folder / "x.safetensors");
  const std::string text = test::get(folder / "x.safetensors");
  for (const char* word : {"\"F8_E4M3\"", "\"F8_E5M2\"", "\"F8_E4M3FNUZ\"", "\"F8_E5M2FNUZ\""})
    EXPECT_NE(text.find(word), std::string::npos) << word;
  const nn::StateDict got = safe_load(folder / "x.safetensors");
  nn::save_checkpoint(dict, folder / "run", 1);
  nn::StateDict from_checkpoint;
  for (const auto& [key, tensor] : dict)
    from_checkpoint.emplace(key, Tensor::zeros({256}, tensor.dtype()).clone());
  nn::load_checkpoint(from_checkpoint, folder / "run");
  for (const auto& [key, tensor] : dict) {
    EXPECT_EQ(got.at(key).dtype(), tensor.dtype());
    EXPECT_EQ(codes(got.at(key)), upto255()) << key;
    EXPECT_EQ(codes(from_checkpoint.at(key)), upto255()) << key;
  }
  EXPECT_THROW(npy_save(dict.begin()->second, folder / "x.npy"), UserError);
  std::ostringstream out;
  out << Tensor({0.5f, -448.f}).cast(DType::F8E4M3FN);
  EXPECT_NE(out.str().find("-448"), std::string::npos) << out.str();
}

TEST(Float8Tensors, OverAMesh) {
  TINYSHARD_NEED_DEVICES(4);
  for (const int count : {2, 3, 4}) {
    const Mesh mesh = Mesh::of(device_names(count), "d");
    for (const Definition& d : kTypes) {
      const Tensor whole = all_codes(d.type), x = whole.shard(mesh, {{"d", Shard(0)}}).clone();
      EXPECT_EQ(codes(x.realize()), upto255());
      expect_values(d, x.cast(DType::F32).to_vector<float>());
      EXPECT_EQ(codes(x.shard(mesh)), upto255());
      EXPECT_EQ(codes(x.reshape({16, 16}).shard(mesh, {{"d", Shard(1)}}).reshape({256})),
                upto255());
      const Tensor small = (Tensor::arange(50) * -0.25 - 1).cast(d.type);
      const Tensor parts = small.shard(mesh, {{"d", Shard(0)}});
      EXPECT_EQ(codes(parts.sum()), codes(small.sum()));
      EXPECT_EQ(codes(parts.max()), codes(small.max()));
      Jit step = [](Tensor t) { return (t * 2 + 1).sum(); };
      EXPECT_EQ(codes(step(parts)), codes((small * 2 + 1).sum()));
      EXPECT_EQ(codes(step(parts)), codes((small * 2 + 1).sum()));
    }
  }
}

}  // namespace
}  // namespace tinyshard::float8_test
