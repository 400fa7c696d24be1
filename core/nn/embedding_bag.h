// Sums, means or maxima of rows of a table: one result for each bag of numbers.
#pragma once
#include <cstdint>

#include "core/nn/fields.h"

namespace tinyshard::nn {

enum class Bag { Sum, Mean, Max };

struct EmbeddingBagOptions {
  Bag mode = Bag::Sum;
};

// weight is [rows, width]. A number out of range, such as -1, is no entry: bags may be padded with it.
// A bag without entries gives zeros.
struct EmbeddingBag {
  EmbeddingBag(int64_t rows, int64_t width, const EmbeddingBagOptions& options = {});

  // [bags, width] of index [bags, entries]; `weights`, of the index's shape, multiply rows of a sum.
  Tensor operator()(const Tensor& index, const Tensor& weights = {},
                    Caller caller = Caller::current()) const;
  // Bags of unlike lengths: index [entries], and where each bag begins in it, [bags], ascending from 0.
  Tensor ragged(const Tensor& index, const Tensor& begins, const Tensor& weights = {},
                Caller caller = Caller::current()) const;

  Tensor weight;
  Bag mode;
  TS_FIELDS(weight)
};

}  // namespace tinyshard::nn
