// A kernel computed element by element in plain C++, slowly, and compared with what its code made:
// the other side of TS_CHECK=values. It shares nothing with the code generator but the meaning of
// the nodes (kernel.h).
//
// Each float is computed with a bound on how far correct code may be from it. The bound is 0, and
// bits have to be equal (but for the sign of zero and the payload of NaN), where all that leads to
// a value is loads, casts, comparisons and arithmetic that IEEE 754 fixes. Exp2, Log2 and Sin may
// be some ulps off, sums and products may be added up in another order; from there on bounds are
// carried through what is computed with such a value. Where a bound leaves open which way a
// comparison goes, or where a gather reads, what depends on it is not compared.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "core/codegen/kernel.h"

namespace tinyshard {

struct ValueDifference {
  int64_t param = 0, element = 0;
  std::string actual, expected;
  double allowed = 0;  // how far they may be apart
  UOp value;           // that is stored there; null for an element that the kernel does not store
};

struct InterpretOptions {
  double division_ulps = 0;    // that Div, Recip and Sqrt may be off: 0 where code follows IEEE 754
  int64_t most = 200'000'000;  // values to compute; of larger kernels some elements are compared
};

// Returns the first difference, in the order of stores and loops. `before` is the memory of each
// parameter when the kernel began, `after` that of the written ones when it had ended.
std::optional<ValueDifference> first_difference(const KernelSource& kernel,
                                                std::span<const void* const> before,
                                                std::span<const void* const> after,
                                                std::span<const int64_t> coordinates,
                                                const InterpretOptions& options = {});

}  // namespace tinyshard
