// Attention of single rows on a GPU against double precision: groups of rows, types, layouts of the
// cache, every kind of length. What lies behind the position is NaN, so whoever reads it is found.
#include "devices/cuda/row_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tinyshard/tinyshard.h>

#include "core/dtype/half.h"
#include "tests/devices/cuda/gpu_test.h"

namespace tinyshard::test::row_attention_test {
namespace {

using RowAttention = GpuTest;

struct Case {
  int64_t groups = 8, rows = 4, columns = 4096, width = 64, values = 64;
  DType dtype = DType::BF16, position = DType::I64;
  bool heads_inside = false;  // keys and values lie as [columns, groups, width]
};

std::string text(const Case& c) {
  return std::to_string(c.groups) + " x " + std::to_string(c.rows) + ", columns " +
         std::to_string(c.columns) + ", widths " + std::to_string(c.width) + " and " +
         std::to_string(c.values) + " of " + std::string(name(c.dtype)) +
         (c.heads_inside ? ", heads inside" : "");
}

uint16_t bits_of(float x, DType dtype) {
  return dtype == DType::BF16 ? f32_to_bf16(x) : f32_to_f16(x);
}
double value_of(uint16_t bits, DType dtype) {
  return dtype == DType::BF16 ? bf16_to_f32(bits) : f16_to_f32(bits);
}

LibraryCall call_of(const Case& c) {
  static int64_t next = 4000;
  auto buffer = [&](DType dtype, Dims shape) {
    shape.insert(shape.begin(), next++);
    return UOp::make(Op::Buffer, dtype, {}, shape);
  };
  LibraryCall call = row_major_call(
      UOp::make(Op::Attention, c.dtype,
                {buffer(c.dtype, {c.groups * c.rows, 1, c.width}),
                 buffer(c.dtype, {c.groups, c.columns, c.width}),
                 buffer(c.dtype, {c.groups, c.columns, c.values}), buffer(c.position, {1})},
                to_ints(AttentionArg{0, true, 0.125})));
  if (c.heads_inside) {
    call.operands[1].strides = {c.width, c.groups * c.width, 1};
    call.operands[2].strides = {c.values, c.groups * c.values, 1};
  }
  return call;
}

class Check {
 public:
  Check(Device& gpu, const Case& c) : gpu_(gpu), c_(c), call_(call_of(c)) {
    program_ = gpu.library(call_);
    fill(q_, c.groups * c.rows * c.width);
    fill(k_, c.groups * c.columns * c.width);
    fill(v_, c.groups * c.columns * c.values);
  }

  void at(int64_t position) {
    const int64_t count = std::clamp<int64_t>(position + 1, 0, c_.columns);
    std::vector<uint16_t> k = only(k_, c_.width, count), v = only(v_, c_.values, count);
    OnGpu<uint16_t> on_q(gpu_, q_), on_k(gpu_, k), on_v(gpu_, v),
        out(gpu_, size_t(c_.groups * c_.rows * c_.values));
    std::vector<int64_t> number{position};
    if (c_.position == DType::I32) std::memcpy(number.data(), &position, sizeof(int32_t));
    OnGpu<int64_t> on_position(gpu_, number);
    std::vector<void*> buffers{on_q.get(), on_k.get(), on_v.get(), on_position.get(), out.get()};
    program_->launch(buffers.data(), nullptr);
    const std::vector<uint16_t> result = out.values();
    for (int64_t head = 0; head < c_.groups * c_.rows; ++head) {
      const std::vector<double> expected = row(head, count);
      for (int64_t d = 0; d < c_.values; ++d) {
        const double found = value_of(result[size_t(head * c_.values + d)], c_.dtype);
        ASSERT_NEAR(found, expected[size_t(d)], c_.dtype == DType::BF16 ? 1.5e-2 : 2e-3)
            << text(c_) << " at " << position << ", head " << head << ", element " << d;
      }
    }
  }

 private:
  void fill(std::vector<uint16_t>& list, int64_t n) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) list.push_back(bits_of(normal(random_), c_.dtype));
  }
  // Keys or values of a group start at, and go on from row to row by:
  int64_t place(int64_t group, int64_t column, int64_t width) const {
    return c_.heads_inside ? (column * c_.groups + group) * width
                           : (group * c_.columns + column) * width;
  }
  std::vector<uint16_t> only(std::vector<uint16_t> list, int64_t width, int64_t count) const {
    const uint16_t nan = bits_of(std::numeric_limits<float>::quiet_NaN(), c_.dtype);
    for (int64_t g = 0; g < c_.groups; ++g) {
      for (int64_t s = count; s < c_.columns; ++s)
        std::fill_n(list.begin() + place(g, s, width), width, nan);
    }
    return list;
  }
  std::vector<double> row(int64_t head, int64_t count) const {
    const int64_t group = head / c_.rows;
    std::vector<double> scores, result(size_t(c_.values), 0.0);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t s = 0; s < count; ++s) {
      double score = 0;
      for (int64_t e = 0; e < c_.width; ++e)
        score += value_of(q_[size_t(head * c_.width + e)], c_.dtype) *
                 value_of(k_[size_t(place(group, s, c_.width) + e)], c_.dtype);
      scores.push_back(score * 0.125);
      largest = std::max(largest, scores.back());
    }
    for (double score : scores) sum += std::exp(score - largest);
    for (int64_t s = 0; s < count; ++s) {
      const double weight = std::exp(scores[size_t(s)] - largest) / sum;
      for (int64_t d = 0; d < c_.values; ++d)
        result[size_t(d)] +=
            weight * value_of(v_[size_t(place(group, s, c_.values) + d)], c_.dtype);
    }
    return result;
  }

  Device& gpu_;
  Case c_;
  LibraryCall call_;
  std::unique_ptr<Program> program_;
  std::mt19937 random_{7};
  std::vector<uint16_t> q_, k_, v_;
};

void check(Device& gpu, const Case& c, std::initializer_list<int64_t> positions) {
  std::string why;
  if (!gpu.supports(call_of(c), &why)) GTEST_SKIP() << why;
  Check one(gpu, c);
  for (int64_t position : positions) one.at(position);
}

TEST_F(RowAttention, IsAsInDoublePrecision) {
  for (DType dtype : {DType::BF16, DType::F16}) {
    check(*gpu, {.dtype = dtype}, {0, 1, 7, 15, 16, 31, 32, 100, 255, 256, 1000, 4000, 4095});
    check(*gpu, {.width = 128, .values = 128, .dtype = dtype}, {0, 5, 33, 100, 1000, 2047, 4095});
  }
}

TEST_F(RowAttention, TakesAnyNumberOfRowsAndGroups) {
  for (int64_t rows : {1, 2, 3, 5, 8})
    check(*gpu, {.groups = 3, .rows = rows, .columns = 300}, {0, 20, 150, 299});
  for (int64_t groups : {1, 17, 40, 200})
    check(*gpu, {.groups = groups, .rows = 2, .columns = 70}, {0, 20, 69});
  check(*gpu, {.groups = 2, .rows = 1, .columns = 9}, {0, 3, 8});
}

TEST_F(RowAttention, WidthsMayDiffer) {
  check(*gpu, {.columns = 200, .width = 32, .values = 128}, {0, 50, 199});
  check(*gpu, {.columns = 200, .width = 96, .values = 64}, {0, 50, 199});
  check(*gpu, {.columns = 200, .position = DType::I32}, {0, 50, 199});
}

TEST_F(RowAttention, ReadsACacheWithHeadsInside) {
  check(*gpu, {.columns = 333, .heads_inside = true}, {0, 50, 332});
}

// Positions outside of the columns: none of them or all count.
TEST_F(RowAttention, PositionsMayLieOutside) { check(*gpu, {.columns = 100}, {-1, -5, 100, 5000}); }

// A captured step writes a row of the cache and reads it, replayed for one token after the other.
TEST_F(RowAttention, ReadsWhatTheStepWrote) {
  if (!gpu->supports(call_of({}), nullptr)) GTEST_SKIP() << "spelled out on this GPU";
  constexpr int64_t kTokens = 70, kHeads = 8, kShared = 2, kWidth = 64;
  Runtime::shutdown();
  Runtime::configure({.devices = {"CUDA:0"}});
  Tensor::manual_seed(3);
  auto drawn = [&](int64_t heads) {
    return Tensor::randn({heads, kTokens, kWidth}).cast(DType::BF16).realize();
  };
  const Tensor q = drawn(kHeads), k = drawn(kShared), v = drawn(kShared);
  auto cache = [&] { return Tensor::zeros({kShared, 128, kWidth}, DType::BF16).clone().realize(); };
  Tensor keys = cache(), values = cache();
  Variable pos("pos", 0, 127);
  Jit step = [&](Tensor query, Tensor key, Tensor value, Variable p) {
    keys.setitem({Slice(), p}, key);
    values.setitem({Slice(), p}, value);
    const Slice so_far(0, p + 1);
    return query.unsqueeze(1).scaled_dot_product_attention(
        keys[{Slice(), so_far}], values[{Slice(), so_far}], {}, {.enable_gqa = true});
  };
  const std::vector<double> expected =
      q.cast(DType::F64)
          .scaled_dot_product_attention(k.cast(DType::F64), v.cast(DType::F64), {},
                                        {.is_causal = true, .enable_gqa = true})
          .to_vector<double>();
  for (int64_t t = 0; t < kTokens; ++t) {
    auto row = [&](const Tensor& x) { return x[{Slice(), t}].contiguous().realize(); };
    const std::vector<double> found =
        step(row(q), row(k), row(v), pos.bind(t)).cast(DType::F64).to_vector<double>();
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t d = 0; d < kWidth; ++d)
        ASSERT_NEAR(found[size_t(h * kWidth + d)], expected[size_t((h * kTokens + t) * kWidth + d)],
                    1.5e-2)
            << "token " << t << ", head " << h << ", element " << d;
    }
  }
  Runtime::shutdown();
}

}  // namespace
}  // namespace tinyshard::test::row_attention_test
