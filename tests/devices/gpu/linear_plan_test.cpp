// A layer as users write it, with its bias, is one call of a GPU's library, wherever its rows lie.
#include <string>
#include <tinyshard/tinyshard.h>

#include <gtest/gtest.h>

namespace tinyshard::linear_plan_test {
namespace {

enum class Lie : uint8_t { OneDevice, Whole, Divided };

struct Layer {
  Lie lie = Lie::OneDevice;
  int64_t devices = 1;
  friend void PrintTo(const Layer& l, std::ostream* out) {
    *out << l.devices
         << (l.lie == Lie::OneDevice ? " no mesh"
             : l.lie == Lie::Whole   ? " whole"
                                     : " divided");
  }
};

class LinearPlan : public testing::TestWithParam<Layer> {
 protected:
  void SetUp() override {
    Runtime::shutdown();
    Runtime::configure({.devices = {"NULL_H200"}, .devices_per_rank = int(GetParam().devices)});
  }
  void TearDown() override { Runtime::shutdown(); }

  Tensor rows() const {
    const Tensor x = Tensor::randn({16384, 768}, DType::BF16);
    if (GetParam().lie == Lie::OneDevice) return x.realize();
    const Placement place = GetParam().lie == Lie::Whole ? Replicate : Shard(0);
    return x.shard(mesh(), {{"data", place}}).realize();
  }
  nn::Linear layer(int64_t in, int64_t out) const {
    nn::Linear made(in, out);
    if (GetParam().lie != Lie::OneDevice) nn::data_parallel(made, mesh(), "data");
    Tensor::realize({made.weight, made.bias});
    return made;
  }
  static Mesh mesh() { return Mesh::world({{"data", -1}}); }
};

template <class Step>
void expect_one_call(Step& step, const std::string& what) {
  const PlanSummary plan = summarize(step);
  EXPECT_EQ(plan.library_calls, 1) << what << "\n" << explain(step, true);
  EXPECT_EQ(explain(step, true).find("f32[16384"), std::string::npos) << explain(step, true);
}

TEST_P(LinearPlan, ABiasIsAddedInTheProduct) {
  const nn::Linear fc = layer(768, 3072);
  const Tensor x = rows();
  Jit plain = [&](Tensor in) { return fc(in); };
  plain(x);
  expect_one_call(plain, "the layer alone");
  Jit gelu = [&](Tensor in) { return fc(in).gelu(); };
  gelu(x);
  expect_one_call(gelu, "with a GELU");
}

INSTANTIATE_TEST_SUITE_P(All, LinearPlan,
                         testing::Values(Layer{}, Layer{Lie::Whole}, Layer{Lie::Divided},
                                         Layer{Lie::Whole, 4}, Layer{Lie::Divided, 4}));

}  // namespace
}  // namespace tinyshard::linear_plan_test
