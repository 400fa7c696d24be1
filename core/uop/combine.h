// Reductions on the host: what elements begin with and what two of them make, for loops that libraries
// of the CPU and transports run over memory. Integers wrap; NaN stays; of equal numbers, such as zeros
// of two signs, the second is kept.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/uop/op.h"

namespace tinyshard {

template <ReduceOp op, class T>
constexpr T start_of() {
  constexpr bool kFloat = std::is_floating_point_v<T>;
  using Limits = std::numeric_limits<T>;
  switch (op) {
    case ReduceOp::Sum:
      return T(0);
    case ReduceOp::Prod:
      return T(1);
    case ReduceOp::Max:
      return kFloat ? -Limits::infinity() : Limits::lowest();
    case ReduceOp::Min:
      return kFloat ? Limits::infinity() : Limits::max();
  }
}

template <ReduceOp op, class T>
constexpr T combined(T a, T b) {
  if constexpr (op == ReduceOp::Max || op == ReduceOp::Min) {
    const T chosen = (op == ReduceOp::Max ? a > b : a < b) ? a : b;  // b where either is NaN
    return a != a ? a : chosen;
  } else if constexpr (std::is_floating_point_v<T>) {
    return op == ReduceOp::Sum ? a + b : a * b;
  } else {
    // In 64 bits, as narrow types would be promoted to a signed one, which may not overflow.
    using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
    const auto x = static_cast<uint64_t>(Wide{a}), y = static_cast<uint64_t>(Wide{b});
    return static_cast<T>(op == ReduceOp::Sum ? x + y : x * y);
  }
}

// A table with one entry for each reduction, in the order of ReduceOp: what `make` returns for it, to
// which it is a constant.
//
//   constexpr auto kNames = by_reduction([]<ReduceOp op>() { return &add_all<op>; });
//   kNames[static_cast<size_t>(op)](values);
template <class Make>
constexpr auto by_reduction(const Make& make) {
  return [&]<size_t... i>(std::index_sequence<i...>) {
    return std::array { make.template operator()<static_cast<ReduceOp>(i)>()... };
  }(std::make_index_sequence<kReduceOps>());
}

}  // namespace tinyshard
