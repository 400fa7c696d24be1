// A ragged bag is found by counting: a one is added at each begin, and the running sum at an entry,
// less one, is its bag. Bags that are empty share a begin with the next one and are passed over.
//
//   begins [0 2 2], 4 entries    marks [1 0 2 0]    bags [0 0 2 2]
#include "core/nn/embedding_bag.h"

#include <limits>

#include <fmt/format.h>

#include "core/base/call.h"

namespace tinyshard::nn {
namespace {

constexpr double kLeast = -std::numeric_limits<double>::infinity();

// Where numbers name rows of a table.
Tensor are_there(const Tensor& index, int64_t rows) { return (index >= 0) & (index < rows); }

void check(const Tensor& index, int64_t rank, const Tensor& weights, Bag mode) {
  if (!is_int(index.dtype()) || index.ndim() != rank)
    fail(fmt::format("index is {}: it must be integers of {} dims", index.describe(), rank));
  if (!weights.defined()) return;
  if (mode != Bag::Sum) fail("weights multiply the rows of a sum; a mean or a maximum has none");
  if (weights.shape() != index.shape())
    fail(fmt::format("weights are {}, index is {}", weights.describe(), index.describe()));
}

}  // namespace

EmbeddingBag::EmbeddingBag(int64_t rows, int64_t width, const EmbeddingBagOptions& options)
    : weight(Tensor::randn({rows, width}).is_param_()), mode(options.mode) {}

Tensor EmbeddingBag::operator()(const Tensor& index, const Tensor& weights, Caller caller) const {
  Call call("EmbeddingBag", caller);
  check(index, 2, weights, mode);
  Tensor rows = weight.embedding(index);  // zeros for what is not there
  if (weights.defined()) rows = rows * weights.cast(rows.dtype()).unsqueeze(2);
  if (mode == Bag::Sum) return rows.sum(1);
  const Tensor there = are_there(index, weight.shape(0));
  const Tensor count = there.cast(DType::F32).sum(1, true);
  if (mode == Bag::Mean) return (rows.sum(1) / count.maximum(1.0)).cast(rows.dtype());
  const Tensor most = there.unsqueeze(2).where(rows, kLeast).max(1);
  return (count > 0).where(most, 0.0).cast(rows.dtype());
}

Tensor EmbeddingBag::ragged(const Tensor& index, const Tensor& begins, const Tensor& weights,
                            Caller caller) const {
  Call call("EmbeddingBag", caller);
  check(index, 1, weights, mode);
  if (!is_int(begins.dtype()) || begins.ndim() != 1)
    fail(fmt::format("begins is {}: it must be integers of one dim", begins.describe()));
  const int64_t bags = begins.shape(0), entries = index.shape(0), width = weight.shape(1);
  Tensor rows = weight.embedding(index);
  if (weights.defined()) rows = rows * weights.cast(rows.dtype()).unsqueeze(1);
  // The bag of entry i is the number of bags that begin at or before it, less one.
  const Tensor marks =
      Tensor::zeros({entries + 1}, DType::I32)
          .shard_like(index.sharding().mesh.is_single() ? index.sharding()
                                                        : replicated(index.sharding().mesh))
          .scatter_reduce(0, begins, Tensor::ones({bags}, DType::I32), ScatterReduce::Sum);
  const Tensor bag = marks.shrink({{0, entries}}).cumsum(0) - 1;
  const Tensor there = are_there(index, weight.shape(0));
  const Tensor target = there.where(bag, -1).unsqueeze(1).expand({entries, width});
  const Tensor zeros = Tensor::zeros({bags, width}, rows.dtype());
  if (mode == Bag::Max) {
    const Tensor most = Tensor::full({bags, width}, kLeast, rows.dtype())
                            .scatter_reduce(0, target, rows, ScatterReduce::Amax);
    return (most == kLeast).where(0.0, most).cast(rows.dtype());
  }
  const Tensor sums = zeros.scatter_reduce(0, target, rows, ScatterReduce::Sum);
  if (mode == Bag::Sum) return sums;
  const Tensor count =
      Tensor::zeros({bags}, DType::F32)
          .scatter_reduce(0, there.where(bag, -1), Tensor::ones({entries}), ScatterReduce::Sum);
  return (sums / count.maximum(1.0).unsqueeze(1)).cast(rows.dtype());
}

}  // namespace tinyshard::nn
