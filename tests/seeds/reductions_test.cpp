// "Complex Ops", "Reduce" and scans. Where a page draws random numbers, its printed ones are taken.
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::reductions_test {
namespace {

const Tensor& drawn() {
  static const Tensor t{{3.4788, 2.407, 3.3202}, {2.1177, 2.0653, 2.2811}};
  return t;
}
const Tensor& normal() {
  static const Tensor t{{1.9576, -0.1859, 1.6404}, {-0.7647, -0.8695, -0.4379}};
  return t;
}

TEST(SeedReduce, SumAndProd) {
  Tensor t = Tensor::arange(6).reshape({2, 3});
  prints(t, Tensor{{0, 1, 2}, {3, 4, 5}});
  prints(t.sum(), 15);
  prints(t.sum(0), Tensor{3, 5, 7});
  prints(t.sum(1), Tensor{3, 12});
  t = Tensor{-1, -2, -3, 1, 2, 3}.reshape({2, 3});
  prints(t.prod(), -36);
  prints(t.prod(0), Tensor{-1, -4, -9});
  prints(t.prod(1), Tensor{-6, 6});
}

TEST(SeedReduce, MaxAndMin) {
  Tensor t{{1, 0, 2}, {5, 4, 3}};
  prints(t.max(), 5);
  prints(t.max(0), Tensor{5, 4, 3});
  prints(t.max(1, true), Tensor{{2}, {5}});
  prints(t.min(), 0);
  prints(t.min(0), Tensor{1, 0, 2});
  prints(t.min(1, true), Tensor{{0}, {3}});
}

TEST(SeedReduce, AnyAndAll) {
  Tensor t{{true, true}, {true, false}, {false, false}};
  prints(t.any(), 1);
  prints(t.any(0), Tensor{true, true});
  prints(t.any(1, true), Tensor{{true}, {true}, {false}});
  prints(t.all(), 0);
  prints(t.all(0), Tensor{false, false});
  prints(t.all(1, true), Tensor{{true}, {false}, {false}});
}

TEST(SeedReduce, Close) {
  prints(Tensor{1e-7, 1e-8, 1e-9, NAN}.isclose(Tensor{0.0, 0.0, 0.0, NAN}),
         Tensor{false, true, true, false});
  prints(Tensor{double(NAN)}.isclose(Tensor{double(NAN)}, 1e-5, 1e-8, true), Tensor{true});
  EXPECT_TRUE(drawn().allclose(drawn()));
}

TEST(SeedReduce, MeanVarAndStd) {
  const Tensor& t = drawn();
  prints(t.mean(), 2.6116748);
  prints(t.mean(0), Tensor{2.7982, 2.2361, 2.8006});
  prints(t.mean(1), Tensor{3.0687, 2.1547});
  prints(t.var(), 0.38955206);
  prints(t.var(0), Tensor{0.9264, 0.0584, 0.5399});
  prints(t.var(1), Tensor{0.3346, 0.0127});
  prints(t.var_mean().first, 0.38955206);
  prints(t.var_mean().second, 2.6116748);
  prints(t.std(), 0.62414104);
  prints(t.std(0), Tensor{0.9625, 0.2417, 0.7348});
  prints(t.std(1), Tensor{0.5785, 0.1126});
  prints(t.std_mean().first, 0.62414104);
  prints(t.std_mean().second, 2.6116748);
}

TEST(SeedReduce, SoftmaxAndLogsumexp) {
  const Tensor& t = normal();
  prints(t.softmax(), Tensor{{0.5419, 0.0635, 0.3946}, {0.3042, 0.274, 0.4218}});
  prints(t.softmax(0), Tensor{{0.9383, 0.6645, 0.8888}, {0.0617, 0.3355, 0.1112}});
  prints(t.log_softmax(), Tensor{{-0.6127, -2.7563, -0.9299}, {-1.19, -1.2948, -0.8632}});
  prints(t.log_softmax(0), Tensor{{-0.0637, -0.4087, -0.1179}, {-2.786, -1.0922, -2.1962}});
  prints(t.logsumexp(), 2.681043);
  prints(t.logsumexp(0), Tensor{2.0213, 0.2227, 1.7583});
  prints(t.logsumexp(1), Tensor{2.5703, 0.4253});
  prints(t.logcumsumexp(), Tensor{{1.9576, -0.1859, 1.6404}, {2.0213, 0.2227, 1.7583}});
  prints(t.logcumsumexp(1), Tensor{{1.9576, 2.0685, 2.5703}, {-0.7647, -0.1226, 0.4253}});
}

TEST(SeedReduce, Places) {
  Tensor t{{1, 0, 2}, {5, 4, 3}};
  prints(t.argmax(), 3);
  prints(t.argmax(0), Tensor{1, 1, 1});
  prints(t.argmax(1), Tensor{2, 0});
  prints(t.argmin(), 1);
  prints(t.argmin(0), Tensor{0, 0, 0});
  prints(t.argmin(1), Tensor{1, 2});
}

TEST(SeedScans, Cumulative) {
  prints(Tensor::ones({2, 3}).cumsum(1), Tensor{{1.0, 2.0, 3.0}, {1.0, 2.0, 3.0}});
  prints(Tensor::arange(1, 7).reshape({2, 3}).cumprod(0), Tensor{{1, 2, 3}, {4, 10, 18}});
  Tensor t{0, 1, -1, 2, -2, 3, -3};
  prints(t.cummax(0).first, Tensor{0, 1, 1, 2, 2, 3, 3});
  prints(t.cummax(0).second, Tensor{0, 1, 1, 3, 3, 5, 5});
  prints(t.cummin(0).first, Tensor{0, 0, -1, -1, -2, -2, -3});
  prints(t.cummin(0).second, Tensor{0, 0, 2, 2, 4, 4, 6});
}

}  // namespace
}  // namespace tinyshard::seeds::reductions_test
