// Operators on UOps, for rules and kernels that a program writes itself:
//
//   [](const Match& m) { return m["x"] * 2 + m["y"]; }
//
// Both sides have one type and one shape; a number takes those of the other side. UserError where they
// differ, or where the type has no such op. Comparisons are functions: == asks whether two UOps are
// one node.
#pragma once
#include <concepts>

#include "core/uop/uop.h"

namespace tinyshard {

// A number beside a UOp.
template <class T>
concept PlainNumber = (std::integral<T> || std::floating_point<T>) && !std::same_as<T, bool>;

UOp operator+(const UOp& a, const UOp& b);
UOp operator-(const UOp& a, const UOp& b);
UOp operator*(const UOp& a, const UOp& b);
UOp operator/(const UOp& a, const UOp& b);  // integers: truncates; an Index: rounds down
UOp operator%(const UOp& a, const UOp& b);
UOp operator-(const UOp& x);
UOp maximum(const UOp& a, const UOp& b);
UOp minimum(const UOp& a, const UOp& b);
UOp less(const UOp& a, const UOp& b);  // Bool
UOp equal(const UOp& a, const UOp& b);
UOp choose(const UOp& condition, const UOp& a, const UOp& b);  // a where it holds, else b
// These take floats.
UOp sqrt(const UOp& x);
UOp exp2(const UOp& x);
UOp log2(const UOp& x);
UOp sin(const UOp& x);
UOp reciprocal(const UOp& x);

// A power, a ReLU, a GELU and the slopes of the latter two are one node each (Op::Composite), and rules
// for the small ops that they stand for do not look into them. Returns what such a node is spelled as,
// which may hold other composites; null, as of a rule that does not apply, for any other node.
UOp spelled_out(const UOp& x);

// A number in the type and shape of x. UserError for a fraction in a type of integers.
UOp number_like(const UOp& x, double value);
UOp number_like(const UOp& x, int64_t value);
template <PlainNumber T>
UOp number_like(const UOp& x, T value) {
  if constexpr (std::floating_point<T>)
    return number_like(x, double(value));
  else
    return number_like(x, int64_t(value));
}

template <PlainNumber T>
UOp operator+(const UOp& a, T b) {
  return a + number_like(a, b);
}
template <PlainNumber T>
UOp operator+(T a, const UOp& b) {
  return number_like(b, a) + b;
}
template <PlainNumber T>
UOp operator-(const UOp& a, T b) {
  return a - number_like(a, b);
}
template <PlainNumber T>
UOp operator-(T a, const UOp& b) {
  return number_like(b, a) - b;
}
template <PlainNumber T>
UOp operator*(const UOp& a, T b) {
  return a * number_like(a, b);
}
template <PlainNumber T>
UOp operator*(T a, const UOp& b) {
  return number_like(b, a) * b;
}
template <PlainNumber T>
UOp operator/(const UOp& a, T b) {
  return a / number_like(a, b);
}
template <PlainNumber T>
UOp operator/(T a, const UOp& b) {
  return number_like(b, a) / b;
}
template <PlainNumber T>
UOp operator%(const UOp& a, T b) {
  return a % number_like(a, b);
}
template <PlainNumber T>
UOp maximum(const UOp& a, T b) {
  return maximum(a, number_like(a, b));
}
template <PlainNumber T>
UOp minimum(const UOp& a, T b) {
  return minimum(a, number_like(a, b));
}
template <PlainNumber T>
UOp less(const UOp& a, T b) {
  return less(a, number_like(a, b));
}
template <PlainNumber T>
UOp equal(const UOp& a, T b) {
  return equal(a, number_like(a, b));
}

}  // namespace tinyshard
