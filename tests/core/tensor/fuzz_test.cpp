// Random programs, compared with the literal evaluation of their graph in f64: on one device, and
// with their inputs divided over several. FUZZ_SEED and FUZZ_PROGRAMS choose others and more.
#include <cmath>
#include <cstdlib>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "core/tensor/tensor.h"
#include "tests/core/passes/evaluate.h"
#include "tests/devices.h"

namespace tinyshard::fuzz_test {
namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Program {
 public:
  Program(uint64_t seed, bool sharded) : random_(seed), sharded_(sharded) {
    if (sharded_) {
      std::vector<DeviceRef> devices;
      for (int i = 0; i < 4; ++i) devices.push_back({.kind = device_kind(), .index = i});
      if (flip()) {
        devices.pop_back();
        mesh_ = Mesh({{"a", 3}}, devices);
      } else {
        mesh_ = Mesh({{"a", 2}, {"b", 2}}, devices);
      }
    }
    for (int i = 0; i < 3; ++i) add_leaf();
    int steps = pick(3, 18);
    for (int i = 0; i < steps; ++i) add_step();
  }

  void check() {
    std::vector<Tensor> outputs{pool_.back()};
    for (int i = pick(0, 3); i > 0; --i) outputs.push_back(any());
    std::vector<test::Values> expected;
    for (const Tensor& t : outputs) expected.push_back(evaluate_(t.uop()));
    Tensor::realize(outputs);
    for (size_t i = 0; i < outputs.size(); ++i) compare(outputs[i], expected[i]);
  }

  std::string text() const { return text_.str(); }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool flip() { return pick(0, 1) == 1; }
  const Tensor& any() { return pool_[size_t(pick(0, int(pool_.size()) - 1))]; }
  int64_t axis(const Tensor& x) { return pick(0, int(x.ndim()) - 1); }

  void keep(Tensor x, const std::string& how) {
    // Values stay within what doubles compare well.
    if (x.numel() > 4000 || x.numel() == 0) return;
    text_ << "  t" << pool_.size() << " = " << how << "  -> " << x.describe() << "\n";
    pool_.push_back(std::move(x));
  }

  std::string name(const Tensor& x) const {
    for (size_t i = 0; i < pool_.size(); ++i) {
      if (pool_[i].state() == x.state()) return "t" + std::to_string(i);
    }
    return "?";
  }

  void add_leaf() {
    Dims shape;
    for (int i = 0; i < 3; ++i) shape.push_back(pick(0, 3) ? pick(2, 7) : 1);
    Tensor drawn = Tensor::empty(shape, DType::F64);
    std::vector<double> values(size_t(drawn.numel()));
    for (double& v : values) v = std::uniform_real_distribution<double>(-2, 2)(random_);
    Tensor leaf(values, shape);
    if (sharded_) {
      std::vector<AxisPlacement> placements;
      for (const auto& mesh_axis : mesh_->axes()) {
        if (flip()) placements.emplace_back(mesh_axis.name, Shard(pick(0, 2)));
      }
      leaf = leaf.shard(*mesh_, placements).realize();
    }
    evaluate_.set(leaf.uop(), values);
    keep(leaf, "leaf");
  }

  void add_step() {
    const Tensor x = any();
    std::string a = name(x);
    if (x.ndim() == 0) return;
    int64_t d = axis(x);
    std::string at = std::to_string(d);
    switch (pick(0, 17)) {
      case 0:
        return keep(x.sin(), "sin " + a);
      case 1:
        return keep((x.abs() + 0.5).log(), "log " + a);
      case 2:
        return keep(x.clamp(-3, 2).exp(), "exp " + a);
      case 3:
        return keep(x.relu() * 0.5 - 0.25, "relu " + a);
      case 4:
        return keep(x.sum(d, flip()), "sum " + a + " " + at);
      case 5:
        return keep(x.max(d, flip()), "max " + a + " " + at);
      case 6:
        return keep(x.softmax(d), "softmax " + a + " " + at);
      case 7:
        return keep(x - x.mean(d, true), "centred " + a + " " + at);
      case 8:
        return keep(x.transpose(d, axis(x)), "transpose " + a + " " + at);
      case 9:
        return keep(x.flip({d}), "flip " + a + " " + at);
      case 10:
        return keep(x.contiguous(), "contiguous " + a);
      case 11:
        return keep(x.cumsum(d) * 0.25, "cumsum " + a + " " + at);
      case 12: {
        Pairs pads;
        for (int64_t i = 0; i < x.ndim(); ++i) pads.push_back({pick(0, 2), pick(0, 2)});
        return keep(x.pad(pads), "pad " + a);
      }
      case 13: {
        Pairs bounds;
        for (int64_t i = 0; i < x.ndim(); ++i) {
          int low = pick(0, int(x.shape(i)) - 1);
          bounds.push_back({low, pick(low + 1, int(x.shape(i)))});
        }
        return keep(x.shrink(bounds), "shrink " + a);
      }
      case 14:
        return keep(cat({x, x * 0.5}, d), "cat " + a + " " + at);
      case 15: {
        const Tensor y = any();
        if (y.ndim() != x.ndim() || x.ndim() < 2) return keep(x.flatten(), "flatten " + a);
        int64_t k = x.shape(x.ndim() - 1);
        if (y.shape(y.ndim() - 2) != k) return keep(x.matmul(x.transpose(-1, -2)), "gram " + a);
        for (int64_t i = 0; i + 2 < x.ndim(); ++i) {
          if (x.shape(i) != y.shape(i)) return;
        }
        return keep(x.matmul(y) * 0.25, "matmul " + a + " " + name(y));
      }
      default: {
        const Tensor y = any();
        std::string b = name(y);
        for (int64_t i = 1; i <= std::min(x.ndim(), y.ndim()); ++i) {
          int64_t p = x.shape(-i), q = y.shape(-i);
          if (p != q && p != 1 && q != 1) return keep(x * x.detach(), "square " + a);
        }
        switch (pick(0, 3)) {
          case 0:
            return keep(x + y, "add " + a + " " + b);
          case 1:
            return keep(x * y * 0.5, "mul " + a + " " + b);
          case 2:
            return keep((x < y).where(x, y * 0.5), "where " + a + " " + b);
          default:
            return keep(x.maximum(y), "maximum " + a + " " + b);
        }
      }
    }
  }

  void compare(const Tensor& t, const test::Values& expected) {
    std::vector<double> actual = t.to_vector<double>();
    ASSERT_EQ(actual.size(), expected.size());
    double scale = 1e-3;
    for (double e : expected) scale = std::max(scale, std::isfinite(e) ? std::abs(e) : 0);
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_TRUE(actual[i] == expected[i] || std::abs(actual[i] - expected[i]) < 1e-9 * scale)
          << name(t) << "[" << i << "] = " << actual[i] << ", expected " << expected[i];
    }
  }

  std::mt19937_64 random_;
  bool sharded_;
  std::optional<Mesh> mesh_;
  std::vector<Tensor> pool_;
  test::Evaluator evaluate_;
  std::ostringstream text_;
};

void run_programs(bool sharded, uint64_t programs) {
  uint64_t first = from_environment("FUZZ_SEED", 1);
  programs = from_environment("FUZZ_PROGRAMS", programs);
  for (uint64_t seed = first; seed < first + programs; ++seed) {
    Program program(seed, sharded);
    SCOPED_TRACE("FUZZ_SEED=" + std::to_string(seed) + " FUZZ_PROGRAMS=1\n" + program.text());
    try {
      program.check();
    } catch (const std::exception& e) {
      FAIL() << e.what();
    }
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RandomPrograms, OnOneDevice) { run_programs(false, 250); }
TEST(RandomPrograms, WithShardedInputs) {
  TINYSHARD_NEED_DEVICES(4);
  run_programs(true, 120);
}

}  // namespace
}  // namespace tinyshard::fuzz_test
