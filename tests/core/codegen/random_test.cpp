// Random kernels against the interpreter: views of every kind, nested folds, stores at several
// depths.
#include <random>

#include <gtest/gtest.h>

#include "core/uop/args.h"
#include "tests/core/codegen/harness.h"
#include "tests/sanitized.h"

namespace tinyshard::test {
namespace {

class Generator {
 public:
  explicit Generator(uint32_t seed) : random_(seed), kernel_("random" + std::to_string(seed)) {}

  Kernel& make() {
    int64_t cells = 1;
    std::vector<UOp> loops;
    for (int n = pick(1, 4); n > 0; --n) {
      int64_t size = size_up_to(800 / cells);
      cells *= size;
      loops.push_back(kernel_.loop(size));
    }
    for (int outputs = pick(1, 2); outputs > 0; --outputs) {
      // All loops, or only the outer ones.
      std::vector<UOp> mine = loops;
      if (outputs == 2 && pick(0, 1))
        mine.resize(static_cast<size_t>(pick(1, static_cast<int>(loops.size()))));
      ranges_ = mine;
      UOp value = expression(pick(1, 4));
      std::vector<UOp> order = mine;
      if (pick(0, 3) == 0) std::shuffle(order.begin(), order.end(), random_);
      auto [index, numel] = row_major(order);
      int out = kernel_.param(DType::F32, numel);
      kernel_.store(out, index, value);
    }
    return kernel_;
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  int64_t size_up_to(int64_t most) {
    static constexpr int64_t kSizes[] = {1, 2, 2, 3, 4, 5, 7, 8, 10, 16, 20, 33, 64, 70};
    int64_t size = kSizes[pick(0, std::size(kSizes) - 1)];
    return std::max<int64_t>(1, std::min(size, most));
  }

  static std::pair<UOp, int64_t> row_major(const std::vector<UOp>& order) {
    UOp index = index_const(0);
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      index = order[i] * stride + index;
      stride *= range_arg(*order[i]).size;
    }
    return {index, stride};
  }

  // A load through some view of the open ranges.
  UOp load() {
    std::vector<UOp> order;
    for (const UOp& r : ranges_) {
      if (pick(0, 4) > 0) order.push_back(r);
    }
    if (pick(0, 2) == 0) std::shuffle(order.begin(), order.end(), random_);
    UOp index = index_const(0), valid;
    int64_t stride = 1;
    for (size_t i = order.size(); i-- > 0;) {
      int64_t size = range_arg(*order[i]).size, extent = size;
      UOp at = order[i];
      switch (pick(0, 9)) {
        case 0:
          at = index_const(size - 1) - at;
          break;
        case 1:
          at = at * 2, extent = 2 * size;
          break;
        case 2:
          at = binary(Op::IDiv, at, index_const(2)), extent = size / 2 + 1;
          break;
        case 3: {  // padding in front and behind
          int64_t low = pick(0, 2);
          extent = std::max<int64_t>(1, size - low - pick(0, 2));
          UOp inside = binary(Op::And, index_const(low - 1) < at, at < index_const(low + extent));
          valid = valid ? binary(Op::And, valid, inside) : inside;
          at = at - index_const(low);
          break;
        }
        default:
          break;
      }
      index = at * stride + index;
      stride *= extent;
    }
    if (!valid && pick(0, 4) == 0) {  // another shape over the same elements
      int64_t part = size_up_to(stride);
      UOp by = index_const(part);
      index =
          binary(Op::IDiv, index, by) * part + (index_const(part - 1) - binary(Op::Mod, index, by));
      stride = (stride + part - 1) / part * part;
    }
    int slot = kernel_.param(DType::F32, stride);
    return kernel_.load(slot, index, valid);
  }

  UOp expression(int depth) {
    if (depth == 0) return load();
    switch (pick(0, 8)) {
      case 0:
      case 1:
        return expression(depth - 1) + expression(depth - 1);
      case 2:
        return expression(depth - 1) * expression(depth - 1);
      case 3:
        return max(expression(depth - 1), real(0.25));
      case 4:
        return unary(Op::Exp2, max(real(-3), expression(0)));
      case 5: {
        UOp index =
            ranges_.empty()
                ? index_const(1)
                : ranges_[static_cast<size_t>(pick(0, static_cast<int>(ranges_.size()) - 1))];
        return where(index < index_const(pick(1, 9)), expression(depth - 1), real(0.5));
      }
      case 6:
      case 7: {
        size_t before = ranges_.size();
        std::vector<UOp> own;
        int64_t cells = 1;
        for (int n = pick(1, 2); n > 0; --n) {
          int64_t size = size_up_to(70 / cells);
          cells *= size;
          own.push_back(kernel_.fold_range(size));
        }
        ranges_.insert(ranges_.end(), own.begin(), own.end());
        UOp value = expression(depth - 1);
        ranges_.resize(before);
        static constexpr ReduceOp kOps[] = {ReduceOp::Sum, ReduceOp::Sum, ReduceOp::Max,
                                            ReduceOp::Min};
        UOp result = fold(kOps[pick(0, 3)], value, own);
        return result * real(1.0 / static_cast<double>(cells));
      }
      default:
        return load();
    }
  }

  std::mt19937 random_;
  Kernel kernel_;
  std::vector<UOp> ranges_;
};

class RandomKernels : public testing::TestWithParam<int> {};

TEST_P(RandomKernels, AgreeWithTheInterpreter) {
  for (int i = 0; i < 40; ++i) {
    Generator generator(static_cast<uint32_t>(GetParam() * 40 + i));
    generator.make().check(64, 1e-4);
    if (HasFailure()) break;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomKernels, testing::Range(0, kSanitized ? 2 : 5));

}  // namespace
}  // namespace tinyshard::test
