// With the factors of x and their gradients, written as g:
//
//   s   U diag(g) V
//   U   (U (F * (U'g - g'U)) diag(s) + (1 - U U') g diag(1 / s)) V
//   V   U (diag(s) (F * (V g' - g V')) V + diag(1 / s) g (1 - V'V))
//       F[i, j] = 1 / (s[j]^2 - s[i]^2) beside the diagonal, 0 on it
//   R   Q mirrored(R g') R^-T
//   Q   (g - Q mirrored(g'Q)) R^-T
//       mirrored(m): below the diagonal as m, above it the same; Q its first columns
//
// * is element by element. Townsend, "Differentiating the singular value decomposition", 2016; Walter
// and Lehmann, "Algorithmic differentiation of linear algebra functions", 2018. All is computed in f32
// at least, from factors of that type.
#include "core/passes/decompose_gradient.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

Dims with_last(DimSpan shape, int64_t rows, int64_t columns) {
  Dims out(shape.begin(), shape.end() - 2);
  out.insert(out.end(), {rows, columns});
  return out;
}

UOp product(const UOp& a, const UOp& b) {
  return UOp::make(Op::Dot, a.dtype(), {a, b}, Dims{int64_t(a.shape().size()) - 2});
}

// A vector as each row, or as each column, of a matrix of that shape.
UOp in_rows(const UOp& v, DimSpan shape) {
  return expand(reshape(v, with_last(shape, 1, v.shape().back())), shape);
}
UOp in_columns(const UOp& v, DimSpan shape) {
  return expand(reshape(v, with_last(shape, v.shape().back(), 1)), shape);
}

UOp inverse(const UOp& v) { return unary(Op::Recip, v); }

// The place of each element of a matrix of that shape along the last dim but `from_last`.
UOp places(DimSpan shape, size_t from_last) {
  return iota_along(shape, shape.size() - 1 - from_last);
}

UOp below_diagonal(const UOp& m) {
  const UOp below = binary(Op::CmpLt, places(m.shape(), 0), places(m.shape(), 1));
  return where(below, m, const_like(m, 0));
}

// Below the diagonal as m, and symmetric.
UOp mirrored(const UOp& m) {
  const UOp diagonal = binary(Op::CmpEq, places(m.shape(), 0), places(m.shape(), 1));
  const UOp below = below_diagonal(m);
  return binary(Op::Add, binary(Op::Add, below, swap_last_two(below)),
                where(diagonal, m, const_like(m, 0)));
}

// The part of x that is none of these columns, which are orthogonal.
UOp beside(const UOp& x, const UOp& columns) {
  return binary(Op::Sub, x, product(columns, product(swap_last_two(columns), x)));
}

class Gradient {
 public:
  explicit Gradient(const UOp& y, const UOp& g)
      : type_(accumulator(y.dtype())), x_(cast(y.src(0), type_)), g_(cast(g, type_)) {}

  UOp of_values() const {
    const UOp u = factor(Factor::U);
    return product(binary(Op::Mul, u, in_rows(g_, u.shape())), factor(Factor::V));
  }

  UOp of_left() const {
    const UOp u = factor(Factor::U), s = factor(Factor::S), v = factor(Factor::V);
    const UOp turned = product(u, turns(product(swap_last_two(u), g_), s));
    UOp sum = binary(Op::Mul, turned, in_rows(s, turned.shape()));
    if (rows() > columns()) {
      const UOp other = binary(Op::Mul, beside(g_, u), in_rows(inverse(s), u.shape()));
      sum = binary(Op::Add, sum, other);
    }
    return product(sum, v);
  }

  UOp of_right() const {
    const UOp u = factor(Factor::U), s = factor(Factor::S), v = factor(Factor::V);
    const UOp turned = product(turns(product(v, swap_last_two(g_)), s), v);
    UOp sum = binary(Op::Mul, in_columns(s, turned.shape()), turned);
    if (columns() > rows()) {
      const UOp other = swap_last_two(beside(swap_last_two(g_), swap_last_two(v)));
      sum = binary(Op::Add, sum, binary(Op::Mul, in_columns(inverse(s), v.shape()), other));
    }
    return product(u, sum);
  }

  UOp of_triangle() const {
    const UOp r = first(factor(Factor::R), columns(), columns()),
              g = first(g_, columns(), columns()), q = first(factor(Factor::Q), rows(), columns());
    return product(product(q, mirrored(product(r, swap_last_two(g)))), transposed_inverse(r));
  }

  UOp of_orthogonal() const {
    const UOp q = factor(Factor::Q);
    const UOp turned = product(q, mirrored(product(swap_last_two(g_), q)));
    return product(binary(Op::Sub, g_, turned), transposed_inverse(factor(Factor::R)));
  }

  int64_t rows() const { return x_.shape()[x_.shape().size() - 2]; }
  int64_t columns() const { return x_.shape().back(); }

 private:
  UOp factor(Factor which) const { return factor_of(x_, which); }
  static UOp factor_of(const UOp& x, Factor which) {
    // The node that a program has, where there is a choice.
    const bool square = x.shape().back() == x.shape()[x.shape().size() - 2];
    const bool full = square || (which != Factor::U && which != Factor::V);
    return UOp::make(Op::Decompose, x.dtype(), {x}, to_ints(DecomposeArg{which, full}));
  }

  // F * (m - m').
  static UOp turns(const UOp& m, const UOp& s) {
    const UOp of_row = in_columns(s, m.shape()), of_column = in_rows(s, m.shape());
    const UOp gap =
        binary(Op::Mul, binary(Op::Sub, of_column, of_row), binary(Op::Add, of_column, of_row));
    const UOp diagonal = binary(Op::CmpEq, places(m.shape(), 0), places(m.shape(), 1));
    const UOp quotient = binary(Op::Div, binary(Op::Sub, m, swap_last_two(m)), gap);
    return where(diagonal, const_like(m, 0), quotient);
  }

  static UOp transposed_inverse(const UOp& r) {
    const UOp u = factor_of(r, Factor::U);
    return product(binary(Op::Mul, u, in_rows(inverse(factor_of(r, Factor::S)), u.shape())),
                   factor_of(r, Factor::V));
  }

  static UOp first(const UOp& x, int64_t rows, int64_t columns) {
    Dims bounds;
    for (int64_t d : with_last(x.shape(), rows, columns)) bounds.insert(bounds.end(), {0, d});
    return shrink(x, bounds);
  }

  DType type_;
  UOp x_, g_;
};

[[noreturn]] void refuse(const UOp& y, const char* what) {
  throw UserError(
      fmt::format("gradient: {}: {}; detach() the value before it", describe(*y.src(0)), what));
}

}  // namespace

UOp decompose_gradient(const UOp& y, const UOp& g) {
  const Gradient gradient(y, g);
  const bool square = gradient.rows() == gradient.columns();
  const DecomposeArg arg = decompose_arg(*y);
  UOp result;
  switch (arg.factor) {
    case Factor::Q:
      if (!square) refuse(y, "Q of qr has a gradient where the matrix is square");
      result = gradient.of_orthogonal();
      break;
    case Factor::R:
      if (gradient.rows() < gradient.columns())
        refuse(y, "qr has no gradient where a matrix has more columns than rows");
      result = gradient.of_triangle();
      break;
    case Factor::S:
      result = gradient.of_values();
      break;
    case Factor::U:
    case Factor::V:
      if (!square && arg.full)
        refuse(y, "whole u and vt of svd have a gradient where the matrix is square: svd(false)");
      result = arg.factor == Factor::U ? gradient.of_left() : gradient.of_right();
      break;
  }
  return cast(result, y.dtype());
}

}  // namespace tinyshard
