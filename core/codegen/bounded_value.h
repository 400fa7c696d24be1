// Values of the interpreter: floats with a bound on how far correct code may be from them, integers
// exactly; ops, casts and reductions on them. Every float is computed in double and rounded to its
// type once. A bound is 0 where IEEE 754 fixes the bits, begins where it does not (a transcendental
// function, the order of a sum) and grows with what is computed from it:
//
//   a = exp2(x)        may be 4 ulps off
//   b = a * 3          three times as far, and one ulp more for its own rounding, which may go
//                      another way
//   b < 10             unsure where the bound of b reaches 10: it is not compared
#pragma once
#include <cstdint>
#include <limits>

#include "core/dtype/dtype.h"
#include "core/uop/op.h"

namespace tinyshard::bounded {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Floats as a double of their type's precision and how far correct code may be off, infinite when
// nothing is known. Integers and Bool as 64 bits, extended as the type is.
struct Value {
  double real = 0, error = 0;
  int64_t whole = 0;
  bool unsure = false;
};

bool known(const Value& v);  // whether its bound says anything
bool has_sign(DType dtype);
double largest(DType dtype);  // that is finite

// A result of type `dtype`, computed exactly or in double, of which correct code may be `error` and
// `ulps` of the type it computes in away.
Value real_value(DType dtype, double exact, double error, double ulps = 0);
// Element i of memory that holds elements of the type.
Value element(const void* memory, DType dtype, int64_t i);

Value bit_cast(const Value& v, DType from, DType to);
Value cast(const Value& v, DType from, DType to);
// The op on one or two floats; `division_ulps` is what Div, Recip and Sqrt may be off.
Value on_reals(Op op, DType dtype, const Value& a, const Value& b, double division_ulps);
// The op on one or two integers of type `from`.
Value on_integers(Op op, DType from, DType dtype, const Value& a, const Value& b);

// A sum, product or extremum that takes its operands one by one.
class Total {
 public:
  Total(ReduceOp op, DType dtype, bool contracts);
  void add(const Value& v);
  Value value() const;

 private:
  void add_whole(const Value& v);

  ReduceOp op_;
  DType dtype_;
  bool contracts_, nan_ = false;
  int64_t count_ = 0;
  long double real_ = 0, sizes_ = 0;
  double extremum_ = 0, error_ = 0;
  Value value_;  // of integers
};

}  // namespace tinyshard::bounded
