// The numbers that integer and float types hold.
#pragma once
#include <cstdint>

#include "core/rewrite/index_algebra.h"

namespace tinyshard {

inline bool is_integer(DType d) { return is_int(d) || d == DType::Index; }
inline bool is_signed(DType d) { return is_signed_int(d) || d == DType::Index; }
inline int bits_of(DType d) { return static_cast<int>(itemsize(d) * 8); }

inline Interval limits(DType d) {
  if (d == DType::Bool) return {0, 1};
  if (!is_int(d)) return {};
  Interval all;
  if (is_unsigned_int(d)) return {0, bits_of(d) == 64 ? all.high : (int64_t{1} << bits_of(d)) - 1};
  if (bits_of(d) == 64) return all;
  return {-(int64_t{1} << (bits_of(d) - 1)), (int64_t{1} << (bits_of(d) - 1)) - 1};
}

inline bool fits(Interval i, DType d) {
  Interval all = limits(d);
  return i.low > -Interval::kUnbounded && i.high < Interval::kUnbounded && i.low >= all.low &&
         i.high <= all.high;
}

// Every value of `from` is a value of `to`.
inline bool holds_all(DType to, DType from) {
  if (from == to || from == DType::Bool) return true;
  if (to == DType::Bool) return false;
  if (is_float(to)) {
    auto digits = [](DType d) {
      switch (d) {
        case DType::F8E4M3FN:
        case DType::F8E4M3FNUZ:
          return 4;
        case DType::F8E5M2:
        case DType::F8E5M2FNUZ:
          return 3;
        case DType::F16:
          return 11;
        case DType::BF16:
          return 8;
        case DType::F32:
          return 24;
        default:
          return 53;
      }
    };
    if (!is_float(from)) return bits_of(from) - (is_signed(from) ? 1 : 0) <= digits(to);
    return itemsize(from) < itemsize(to);
  }
  if (is_float(from)) return false;
  if (is_signed(from)) return is_signed(to) && bits_of(to) >= bits_of(from);
  return bits_of(to) > bits_of(from) || (!is_signed(to) && bits_of(to) == bits_of(from));
}

}  // namespace tinyshard
