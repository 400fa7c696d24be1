// A sum stays pending through an op that gives the same when it is applied to
// each term, in the arithmetic of the type. Terms may be larger than their
// sum, so whatever could make a term overflow, or rounds it, completes the sum
// first. The terms of a lookup are the element on one device and -0.0 on the
// others: a factor of any size is multiplied with the element alone (weighed).
#include "multi/strategies/pending.h"

#include <cmath>

#include "core/dtype/half.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

// Returns whether each term may be multiplied by `factor` instead of their sum. The terms
// may be far larger than their sum: 600 and -599 times 128 overflow f16, 10 and -9 times 1e38 f32.
// A number of at most 1 makes none larger. 8 and 16 bits round each product, but for these.
bool scales_terms(double factor, DType type) {
  const double size = std::abs(factor);
  return is_narrow(type) ? size == 0 || size == 1 : size <= 1;
}

// Choices among choices of shared parts are asked about for so many steps only.
bool scales_terms(const UOp& x, int& steps) {
  if (--steps < 0) return false;
  switch (x.op()) {
    case Op::Const:
      return !is_float(x.dtype()) || scales_terms(const_as_double(x), x.dtype());
    case Op::Expand:
    case Op::Reshape:
    case Op::Permute:
      return scales_terms(x.src(0), steps);
    case Op::Cast:
      return x.src(0).dtype() == DType::Bool || !is_float(x.dtype());
    case Op::Where:
      return scales_terms(x.src(1), steps) && scales_terms(x.src(2), steps);
    default:
      return !is_float(x.dtype());  // what wraps wraps to the same sum
  }
}

}  // namespace

bool scales_terms(const UOp& x) {
  int steps = 64;
  return scales_terms(x, steps);
}

// A product is linear as long as no term overflows or becomes no number: infinity times the terms 3
// and 0 has no sum, but infinity times their sum is infinity.
bool stays_partial(const UOp& x, std::span<const LocalValue> v, size_t axis) {
  auto partial = [&](size_t i) {
    return v[i].place[axis].is_partial() && v[i].place[axis].op == ReduceOp::Sum;
  };
  auto whole = [&](size_t i) { return v[i].place[axis].is_replicate(); };
  auto zero = [&](size_t i) { return is_const(x.src(i), 0); };  // a sum of zeros
  switch (x.op()) {
    case Op::Neg:
      return partial(0);
    case Op::Cast: {  // of floats: integers may have wrapped in the sum
      const bool floats = is_float(x.dtype()) && is_float(x.src(0).dtype());
      const bool rounds = itemsize(x.dtype()) < itemsize(x.src(0).dtype());
      const bool back = v[0].local && before_widening(v[0].local).dtype() == x.dtype();
      return partial(0) && floats && (!rounds || back);
    }
    case Op::Add:
    case Op::Sub:  // two large terms of f16 are more than it holds, whatever the sums are
      return partial(0) && partial(1) && x.dtype() != DType::F16 && !is_float8(x.dtype());
    case Op::Mul:
      return (partial(0) && whole(1) && scales_terms(x.src(1))) ||
             (whole(0) && partial(1) && scales_terms(x.src(0)));
    case Op::Div:
      return partial(0) && whole(1) && is_float(x.dtype()) && x.src(1).op() == Op::Const &&
             std::isfinite(const_as_double(x.src(1))) &&
             scales_terms(1 / const_as_double(x.src(1)), x.dtype());
    case Op::Where:
      return whole(0) && (partial(1) || partial(2)) && (partial(1) || zero(1)) &&
             (partial(2) || zero(2));
    default:
      return false;
  }
}

bool stays_partial_through(const UOp& x, const UOp& source) {
  switch (x.op()) {
    case Op::Reshape:
    case Op::Permute:
    case Op::Detach:
    case Op::Identity:
    case Op::ContiguousBackward:
      return true;
    default:
      break;
  }
  if (info(x.op()).op_class != OpClass::Elementwise) return false;
  std::vector<LocalValue> operands(size_t(x->sources));
  for (size_t i = 0; i < operands.size(); ++i)
    operands[i].place = {x.src(i) == source ? Placement(Partial()) : Replicate};
  return stays_partial(x, operands, 0);
}

bool weighs(const UOp& x, const UOp& source) {
  if (x.op() != Op::Mul || !is_float(x.dtype()) || x.src(0) == x.src(1)) return false;
  return !scales_terms(x.src(x.src(0) == source ? 1 : 0));
}

bool is_found(const UOp& terms) {
  UOp at = terms;
  while (rearranges(at) || at.op() == Op::Cast) at = at.src(0);
  return at.op() == Op::Where && is_const(at.src(1), 0) && std::signbit(const_as_double(at.src(1)));
}

UOp weighed(const UOp& terms, const UOp& weight) {
  std::vector<UOp> moves;
  UOp at = terms;
  for (; at.op() != Op::Where; at = at.src(0)) moves.push_back(at);
  UOp elsewhere = at.src(0), found = at.src(2);
  for (size_t i = moves.size(); i-- > 0;) {
    const UOp& move = moves[i];
    if (move.op() == Op::Cast) {
      found = cast(found, move.dtype());
      continue;
    }
    for (UOp* x : {&elsewhere, &found}) *x = UOp::make(move.op(), x->dtype(), {*x}, move->arg());
  }
  return where(elsewhere, const_float(found.dtype(), -0.0, found.shape()),
               binary(Op::Mul, found, weight));
}

}  // namespace tinyshard
