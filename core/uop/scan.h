// Running totals along a dim: a Scan gives each element the total of its row up to there.
//
//   x           3  1  2  5
//   Sum         3  4  6 11      reversed 11 8 7 5
//   Max         3  3  3  5      places   0  0  0  3
//
// It is an op so that devices compute it at the rate of their memory. Where none has a kernel for it,
// it is spelled (core/rewrite/scan_spelling.h).
#pragma once
#include "core/uop/args.h"
#include "core/uop/uop.h"

namespace tinyshard {

enum class ScanKind : uint8_t { Sum, Prod, Max, Min, LogSumExp };

// The result has the type of x, which accumulates: floats of 32 bits or more, and integers. A running
// maximum or minimum is that of any type; NaN, once reached, stays, and of equal elements it is the
// first. A running sum of what is not negative never falls.
struct ScanArg {
  ScanKind kind = ScanKind::Sum;
  int64_t axis = 0;
  bool reverse = false;  // of a Sum: the totals of what comes from each element on
  bool places = false;   // of Max and Min: where each was reached, as I32
};
inline ScanArg scan_arg(const Node& x) {
  return {ScanKind(x.arg()[0]), x.arg()[1], x.arg()[2] != 0, x.arg()[3] != 0};
}
inline Dims to_ints(const ScanArg& a) { return {int64_t(a.kind), a.axis, a.reverse, a.places}; }

inline UOp scan(const UOp& x, const ScanArg& arg) {
  return UOp::make(Op::Scan, arg.places ? DType::I32 : x.dtype(), {x}, to_ints(arg));
}

}  // namespace tinyshard
