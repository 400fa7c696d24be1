// Values that are read later: those of the moment at which the copy began, whatever was written since.
#include <string>
#include <tinyshard/tinyshard.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/message_of.h"

namespace tinyshard::host_copy_test {
namespace {

using Floats = std::vector<float>;
using test::message_of;

TEST(HostCopy, IsTheValueOfTheTensor) {
  const Tensor x = Tensor::arange(6).reshape({2, 3});
  for (DType type : {DType::U8, DType::I8, DType::I16, DType::U16, DType::I32, DType::U32,
                     DType::I64, DType::U64, DType::F16, DType::BF16, DType::F32, DType::F64}) {
    const HostCopy copy = (x.cast(type) + 1).copy_to_host();
    EXPECT_EQ(copy.to_vector<float>(), (Floats{1, 2, 3, 4, 5, 6})) << name(type);
    EXPECT_EQ(copy.data(), (x.cast(type) + 1).data()) << "again, as it is, " << name(type);
  }
  const HostCopy many = x.copy_to_host(), one = x.sum().copy_to_host();
  EXPECT_EQ(one.item<int>(), 15);
  EXPECT_TRUE(one.ready()) << "once it was read";
  EXPECT_EQ(many.to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(Tensor::ones({0, 3}).copy_to_host().to_vector<float>(), Floats{});
}

TEST(HostCopy, KeepsWhatLaterWritesReplace) {
  const Tensor state = Tensor::zeros({4}).clone().realize(), one = Tensor::ones({4}).realize();
  Jit add = [&](Tensor x) { return state.assign(state + x) * 10; };
  std::vector<std::pair<HostCopy, HostCopy>> copies;
  for (int i = 0; i < 20; ++i) {
    const Tensor result = add(one);
    copies.emplace_back(result.copy_to_host(), state.copy_to_host());
  }
  state.assign(Tensor::zeros({4})).realize();
  for (size_t i = copies.size(); i-- > 0;) {
    const auto n = float(i + 1);
    EXPECT_EQ(copies[i].first.to_vector<float>(), Floats(4, 10 * n)) << "call " << i;
    EXPECT_EQ(copies[i].second.to_vector<float>(), Floats(4, n)) << "call " << i;
  }
}

// The next step begins before anybody has seen what the last one made.
TEST(HostCopy, OfAStepThatTakesItsOwnResult) {
  Jit step = [](Tensor x) { return x * 2 + 1; };
  Tensor x = Tensor::zeros({1}).realize();
  HostCopy read = x.copy_to_host();
  float expected = 0;
  for (int i = 0; i < 12; ++i) {
    x = step(x);
    const HostCopy made = x.copy_to_host();
    EXPECT_EQ(read.item<float>(), expected) << "call " << i;
    expected = 2 * expected + 1;
    read = made;
  }
  EXPECT_EQ(read.item<float>(), expected);
}

TEST(HostCopy, OutlivesItsTensorAndNeedNotBeRead) {
  HostCopy copy;
  {
    Tensor x = Tensor::full({1000}, 3.0F) * 2;
    copy = x.copy_to_host();
    for (int i = 0; i < 50; ++i) x.copy_to_host();
  }
  const Tensor other = (Tensor::full({1000}, 1.0F) * 5).realize();  // may lie where x did
  EXPECT_EQ(copy.to_vector<float>(), Floats(1000, 6));
}

TEST(HostCopy, OfPartsIsTheWhole) {
  const Tensor x = Tensor::arange(7).shard({"CPU:0", "CPU:1", "CPU:2"}, 0).realize();
  EXPECT_EQ(x.copy_to_host().to_vector<int>(), (std::vector<int>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(x.sum().copy_to_host().item<int>(), 21);
}

TEST(HostCopy, TellsWhatIsWrong) {
  const auto expect = [](const std::string& part, const std::string& text) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect("copy_to_host", message_of<UserError>([] { Tensor().copy_to_host(); }));
  expect("never begun", message_of<UserError>([] { HostCopy().item<float>(); }));
  const HostCopy two = Tensor::ones({2}).copy_to_host();
  expect("2 elements", message_of<UserError>([&] { two.item<float>(); }));
  Jit step = [](Tensor x) {
    x.copy_to_host();
    return x;
  };
  expect("inside a captured step",
         message_of<UserError>([&] { step(Tensor::ones({2}).realize()); }));
}

}  // namespace
}  // namespace tinyshard::host_copy_test
