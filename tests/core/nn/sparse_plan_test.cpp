// Plans of rows that change in place move the bytes of these rows, however long the table is.
#include <functional>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/exec/executable.h"
#include "core/exec/runtime.h"
#include "core/nn/nn.h"
#include "core/tensor/explain.h"
#include "core/tensor/jit.h"
#include "tests/message_of.h"

namespace tinyshard::sparse_plan_test {
namespace {

constexpr int64_t kEntries = 1024, kWidth = 64;

class RowsInPlace : public ::testing::TestWithParam<const char*> {
 protected:
  void devices(int count) {
    Runtime::shutdown();
    Runtime::configure({.devices = {GetParam()}, .devices_per_rank = count});
  }
  void SetUp() override { devices(1); }
  void TearDown() override { Runtime::shutdown(); }

  static Tensor stored(const Dims& shape, DType type) {
    return Tensor::zeros(shape, type).contiguous().realize();
  }
};

// Rows of entries: each is read or written this often at most, beside one index.
int64_t bytes_of_rows(int64_t times, DType type) {
  return times * kEntries * kWidth * int64_t(itemsize(type));
}

TEST_P(RowsInPlace, OfStoragesThatAreAssigned) {
  using Change = std::function<void(const Tensor& w, const Tensor& i, const Tensor& rows)>;
  auto spread = [](const Tensor& i) { return i.unsqueeze(1).expand({-1, kWidth}); };
  const std::vector<std::pair<const char*, Change>> changes{
      {"scatter_reduce",
       [&](const Tensor& w, const Tensor& i, const Tensor& rows) {
         w.assign(w.scatter_reduce(0, spread(i), rows, ScatterReduce::Sum));
       }},
      {"scatter", [&](const Tensor& w, const Tensor& i,
                      const Tensor& rows) { w.assign(w.scatter(0, spread(i), rows)); }},
      {"setitem",
       [&](const Tensor& w, const Tensor& i, const Tensor& rows) { w.setitem({i}, rows); }},
      {"added zeros",
       [&](Tensor w, const Tensor& i, const Tensor& rows) {
         w += Tensor::zeros(w.shape(), w.dtype())
                  .scatter_reduce(0, spread(i), rows, ScatterReduce::Sum);
       }},
  };
  for (const auto& [name, change] : changes) {
    for (DType type : {DType::F32, DType::BF16}) {
      // A sum of 16 bits that is added is rounded before.
      if (type == DType::BF16 && std::string_view(name) == "added zeros") continue;
      for (int64_t rows : {5000, 200000}) {
        const Tensor w = stored({rows, kWidth}, type), i = stored({kEntries}, DType::I32),
                     g = stored({kEntries, kWidth}, type);
        Jit step = [&](Tensor index, Tensor values) { change(w, index, values); };
        step(i, g);
        const PlanSummary plan = summarize(step);
        EXPECT_LE(plan.bytes_read + plan.bytes_written, bytes_of_rows(3, type) + 3 * kEntries * 8)
            << name << ' ' << tinyshard::name(type) << ' ' << rows << '\n'
            << explain(step, true);
        EXPECT_LE(plan.arena_bytes, 8 * kEntries * 8) << name;
      }
    }
  }
}

TEST_P(RowsInPlace, NotWhileTheOldTableIsStillRead) {
  const Tensor w = stored({500, kWidth}, DType::F32), i = stored({8}, DType::I32),
               g = stored({8, kWidth}, DType::F32);
  Jit step = [&](Tensor index, Tensor rows) {
    const Tensor old = w * 1;
    w.assign(
        w.scatter_reduce(0, index.unsqueeze(1).expand({-1, kWidth}), rows, ScatterReduce::Sum));
    return old - w;
  };
  step(i, g);
  EXPECT_GE(summarize(step).bytes_read, 500 * kWidth * 4);
}

struct Stepped {
  const char* name;
  int64_t rows_moved;  // at most, in f32, forward and backward pass included
  std::function<std::unique_ptr<nn::optim::Optimizer>(const Tensor&)> make;
};

std::vector<Stepped> steps() {
  using namespace nn::optim;
  using Made = std::unique_ptr<Optimizer>;
  return {{"SGD", 14,
           [](const Tensor& w) -> Made {
             return std::make_unique<SGD>(std::vector{w}, SgdOptions{.sparse = true});
           }},
          {"Adagrad", 20,
           [](const Tensor& w) -> Made {
             return std::make_unique<Adagrad>(std::vector{w}, AdagradOptions{.sparse = true});
           }},
          {"Adam", 28, [](const Tensor& w) -> Made {
             return std::make_unique<Adam>(std::vector{w}, AdamOptions{.sparse = true});
           }}};
}

PlanSummary step_of(const Stepped& method, const Tensor& table, const Tensor& index, bool bags) {
  auto optimizer = method.make(table);
  TrainingMode on;
  const Tensor f = Tensor::ones({bags ? kEntries / 4 : kEntries, kWidth}).contiguous().realize();
  Jit step = [&](Tensor i, Tensor g) {
    optimizer->zero_grad();
    Tensor rows = table.embedding(i);
    if (bags) rows = rows.reshape({kEntries / 4, 4, kWidth}).sum(1);
    (rows * g).sum().backward();
    optimizer->step();
  };
  step(index, f);
  if (std::getenv("SHOW")) std::cout << explain(step, true);
  return summarize(step);
}

TEST_P(RowsInPlace, OfOptimizers) {
  for (const Stepped& method : steps()) {
    for (bool bags : {false, true}) {
      for (int64_t rows : {5000, 200000}) {
        const Tensor table = stored({rows, kWidth}, DType::F32).is_param_();
        const PlanSummary plan = step_of(method, table, stored({kEntries}, DType::I32), bags);
        EXPECT_LE(plan.bytes_read + plan.bytes_written,
                  bytes_of_rows(method.rows_moved, DType::F32))
            << method.name << ' ' << rows;
        EXPECT_LE(plan.arena_bytes, bytes_of_rows(6, DType::F32)) << method.name << ' ' << rows;
      }
    }
  }
}

TEST_P(RowsInPlace, OfOptimizersOfDividedTables) {
  for (int count : {4, 64}) {
    devices(count);
    const Mesh mesh({{"d", count}});
    for (const Stepped& method : steps()) {
      const Tensor table = Tensor::zeros({64000, kWidth})
                               .contiguous()
                               .shard(mesh, {{"d", Shard(0)}})
                               .realize()
                               .is_param_();
      const Tensor index = stored({kEntries}, DType::I32).shard(mesh, {{"d", Shard(0)}}).realize();
      const PlanSummary plan = step_of(method, table, index, false);
      EXPECT_LE(plan.bytes_read + plan.bytes_written,
                bytes_of_rows(method.rows_moved + 8, DType::F32))
          << method.name;
      // Rows to where they are used and gradients back, and indices.
      EXPECT_LE(plan.collective_bytes, bytes_of_rows(3, DType::F32)) << method.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(On, RowsInPlace, ::testing::Values("NULL", "NULL_H200"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tinyshard::sparse_plan_test
