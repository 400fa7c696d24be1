// "Complex Ops": "Processing", indices and linear algebra.
#include "tests/seeds/printed.h"

namespace tinyshard::seeds::processing_test {
namespace {

TEST(SeedProcessing, Pools) {
  Tensor t = Tensor::arange(25).reshape({1, 1, 5, 5});
  prints(t.avg_pool2d(), Tensor{{{{3.0, 5.0}, {13.0, 15.0}}}});
  prints(t.avg_pool2d({2, 2}, {.ceil_mode = true}),
         Tensor{{{{3.0, 5.0, 6.5}, {13.0, 15.0, 16.5}, {20.5, 22.5, 24.0}}}});
  prints(t.avg_pool2d({2, 2}, {.padding = 1}),
         Tensor{{{{0.0, 0.75, 1.75}, {3.75, 9.0, 11.0}, {8.75, 19.0, 21.0}}}});
  prints(t.avg_pool2d({2, 2}, {.padding = 1, .count_include_pad = false}),
         Tensor{{{{0.0, 1.5, 3.5}, {7.5, 9.0, 11.0}, {17.5, 19.0, 21.0}}}});
  prints(t.max_pool2d(), Tensor{{{{6, 8}, {16, 18}}}});
  prints(t.max_pool2d({2, 2}, {.ceil_mode = true}),
         Tensor{{{{6, 8, 9}, {16, 18, 19}, {21, 23, 24}}}});
  prints(t.max_pool2d({2, 2}, {.padding = 1}), Tensor{{{{0, 2, 4}, {10, 12, 14}, {20, 22, 24}}}});
}

TEST(SeedProcessing, Unpool) {
  Tensor t = Tensor::arange(1, 17).reshape({1, 1, 4, 4});
  auto [output, indices] = t.max_pool2d_with_indices();
  prints(output, Tensor{{{{6, 8}, {14, 16}}}});
  prints(indices, Tensor{{{{5, 7}, {13, 15}}}});
  prints(output.max_unpool2d(indices),
         Tensor{{{{0, 0, 0, 0}, {0, 6, 0, 8}, {0, 0, 0, 0}, {0, 14, 0, 16}}}});
}

TEST(SeedProcessing, ConvolutionsAndProducts) {
  Tensor t = Tensor::arange(9).reshape({1, 1, 3, 3}), w = Tensor::ones({1, 1, 2, 2});
  prints(t.conv2d(w), Tensor{{{{8.0, 12.0}, {20.0, 24.0}}}});
  prints(t.conv_transpose2d(w), Tensor{{{{0.0, 1.0, 3.0, 2.0},
                                         {3.0, 8.0, 12.0, 7.0},
                                         {9.0, 20.0, 24.0, 13.0},
                                         {6.0, 13.0, 15.0, 8.0}}}});
  Tensor a{{1, 2}, {3, 4}}, b{{5, 6}, {7, 8}};
  prints(a.matmul(b), Tensor{{19, 22}, {43, 50}});
  prints(a.dot(b), Tensor{{19, 22}, {43, 50}});
  prints(Tensor::einsum("ij,ij->", {a, b}), 70);
}

// Padding is a number for all dims, one for each, or one for each side: left, right, top, bottom.
TEST(SeedProcessing, PaddingOfThreeKinds) {
  Tensor t = Tensor::arange(9).reshape({1, 1, 3, 3}), w = Tensor::ones({1, 1, 2, 2});
  prints(t.conv2d(w, {}, {.padding = 1}), Tensor{{{{0.0, 1.0, 3.0, 2.0},
                                                   {3.0, 8.0, 12.0, 7.0},
                                                   {9.0, 20.0, 24.0, 13.0},
                                                   {6.0, 13.0, 15.0, 8.0}}}});
  prints(t.conv2d(w, {}, {.padding = {1, 0}}),
         Tensor{{{{1.0, 3.0}, {8.0, 12.0}, {20.0, 24.0}, {13.0, 15.0}}}});
  prints(t.conv2d(w, {}, {.padding = {1, 0, 0, 1}}),
         Tensor{{{{3.0, 8.0, 12.0}, {9.0, 20.0, 24.0}, {6.0, 13.0, 15.0}}}});
  prints(t.max_pool2d({2, 2}, {.padding = 1}), Tensor{{{{0, 2}, {6, 8}}}});
  prints(t.max_pool2d({2, 2}, {.padding = {1, 0}}), Tensor{{{{1}, {7}}}});
  prints(t.max_pool2d({2, 2}, {.padding = {1, 0, 0, 1}}), Tensor{{{{3, 5}, {6, 8}}}});
  prints(t.avg_pool2d({2, 2}, {.padding = {0, 1, 1, 0}, .count_include_pad = false}),
         Tensor{{{{0.5, 2.0}, {5.0, 6.5}}}});
  prints(Tensor::ones({1, 1, 2, 2}).conv_transpose2d(w, {}, {.padding = {0, 1}}),
         Tensor{{{{2.0}, {4.0}, {2.0}}}});
}

TEST(SeedProcessing, Triangles) {
  Tensor t{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}};
  prints(t.triu(0), Tensor{{1, 2, 3, 4}, {0, 6, 7, 8}, {0, 0, 11, 12}});
  prints(t.triu(1), Tensor{{0, 2, 3, 4}, {0, 0, 7, 8}, {0, 0, 0, 12}});
  prints(t.triu(-1), Tensor{{1, 2, 3, 4}, {5, 6, 7, 8}, {0, 10, 11, 12}});
  prints(t.tril(0), Tensor{{1, 0, 0, 0}, {5, 6, 0, 0}, {9, 10, 11, 0}});
  prints(t.tril(1), Tensor{{1, 2, 0, 0}, {5, 6, 7, 0}, {9, 10, 11, 12}});
  prints(t.tril(-1), Tensor{{0, 0, 0, 0}, {5, 0, 0, 0}, {9, 10, 0, 0}});
}

TEST(SeedProcessing, Interpolate) {
  Tensor t{{1, 2, 3, 4}, {21, 22, 23, 24}, {41, 42, 43, 44}};
  prints(t.interpolate({2, 3}, Interpolation::Linear), Tensor{{6, 7, 8}, {36, 37, 38}});
}

TEST(SeedIndices, Scatter) {
  Tensor src = Tensor::arange(1, 11).reshape({2, 5});
  prints(Tensor::zeros({3, 5}, src.dtype()).scatter(0, Tensor{{0, 1, 2, 0}}, src),
         Tensor{{1, 0, 0, 4, 0}, {0, 2, 0, 0, 0}, {0, 0, 3, 0, 0}});
  prints(Tensor::zeros({3, 5}, src.dtype()).scatter(1, Tensor{{0, 1, 2}, {0, 1, 4}}, src),
         Tensor{{1, 2, 3, 0, 0}, {6, 7, 0, 0, 8}, {0, 0, 0, 0, 0}});
  Tensor two = Tensor::full({2, 4}, 2.0), index{{2}, {3}};
  prints(two.scatter(1, index, 1.23, ScatterReduce::Prod),
         Tensor{{2.0, 2.0, 2.46, 2.0}, {2.0, 2.0, 2.0, 2.46}});
  prints(two.scatter(1, index, 1.23, ScatterReduce::Sum),
         Tensor{{2.0, 2.0, 3.23, 2.0}, {2.0, 2.0, 2.0, 3.23}});
}

TEST(SeedIndices, ScatterReduce) {
  Tensor src = Tensor::arange(1, 11).cast(DType::F32).reshape({2, 5});
  Tensor index = Tensor::zeros({2, 5}, DType::I32), ones = Tensor::ones({1, 5});
  prints(ones.scatter_reduce(0, index, src, ScatterReduce::Sum),
         Tensor{{8.0, 10.0, 12.0, 14.0, 16.0}});
  prints(ones.scatter_reduce(0, index, src, ScatterReduce::Prod),
         Tensor{{6.0, 14.0, 24.0, 36.0, 50.0}});
  prints(ones.scatter_reduce(0, index, src, ScatterReduce::Mean, false),
         Tensor{{3.5, 4.5, 5.5, 6.5, 7.5}});
  Tensor t{{-10.0, 20.0, 0.0, 5.0, 10.0}};
  prints(t.scatter_reduce(0, index, src, ScatterReduce::Amax), Tensor{{6.0, 20.0, 8.0, 9.0, 10.0}});
  prints(t.scatter_reduce(0, index, src, ScatterReduce::Amin), Tensor{{-10.0, 2.0, 0.0, 4.0, 5.0}});
}

TEST(SeedIndices, Masks) {
  Tensor t{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}};
  Tensor mask{{true, false, true}, {false, true, false}, {false, false, true}};
  prints(t.masked_select(mask), Tensor{0, 2, 4, 8});
  Tensor five{1, 2, 3, 4, 5}, some{true, false, true, false, false};
  prints(five.masked_fill(some, -12), Tensor{-12, 2, -12, 4, 5});
  prints(five.masked_fill(some, Tensor{-1, -2, -3, -4, -5}), Tensor{-1, 2, -3, 4, 5});
  prints(Tensor{1, 0, 2, 0, 3}.nonzero(), Tensor{{0}, {2}, {4}});
  prints(Tensor{{1, 0}, {0, 2}}.nonzero(), Tensor{{0, 0}, {1, 1}});
}

TEST(SeedIndices, Sorts) {
  Tensor t{{0.1, 0.5, 1.2, 3.4, 2.1}, {2.2, 1.9, 0.3, 4.5, 0.8}};
  auto [values, indices] = t.sort(1, true);
  prints(values, Tensor{{3.4, 2.1, 1.2, 0.5, 0.1}, {4.5, 2.2, 1.9, 0.8, 0.3}});
  prints(indices, Tensor{{3, 4, 2, 1, 0}, {3, 0, 1, 4, 2}});
  prints(Tensor{{2, 3, 4, 1}, {1, 4, 3, 2}}.argsort(), Tensor{{3, 0, 1, 2}, {0, 3, 2, 1}});
  auto [best, places] = t.topk(2, 1);
  prints(best, Tensor{{3.4, 2.1}, {4.5, 2.2}});
  prints(places, Tensor{{3, 4}, {3, 0}});
}

// The page's draws are those of its own generator; here: which can be drawn, and how often.
TEST(SeedIndices, Multinomial) {
  Tensor::manual_seed(42);
  Tensor t{1, 2, 3, 4};
  const std::vector<int> many = t.multinomial(4000, true).to_vector<int>();
  std::vector<int> count(4);
  for (int place : many) ++count.at(size_t(place));
  for (int place = 0; place < 4; ++place)
    EXPECT_NEAR(count[size_t(place)], 400 * (place + 1), 150) << place;
  std::vector<int> few = t.multinomial(3, false).to_vector<int>();
  std::sort(few.begin(), few.end());
  EXPECT_EQ(std::unique(few.begin(), few.end()), few.end());
}

TEST(SeedLinearAlgebra, QrAndSvd) {
  Tensor a{{1.0, 2.0}, {3.0, 4.0}, {5.0, 6.0}};
  auto [q, r] = a.qr();
  prints(q.matmul(r), a);
  auto [u, s, vt] = a.svd(false);
  prints((u * s).matmul(vt), a);
}

}  // namespace
}  // namespace tinyshard::seeds::processing_test
