// Simplification of the scalar expressions inside kernels: constants, identities, and above all the
// index algebra that chains of movement ops leave behind. The scheduler and codegen call it.
//
// What holds of a result:
// - Index sums are in one canonical form: like terms merged, larger factors first, constant last;
//   equal sums are therefore the same node. Sub and Neg are gone from Index expressions.
// - Index IDiv and Mod are floor; a divisor is a positive constant wherever it was a constant, and
//   no part of a dividend that can be divided without remainder is left under it.
// - Comparisons of Index values read `sum < constant`, `constant < sum` or `sum == constant`.
// - And chains hold no condition twice and none that follows from the others.
// - Integers wrap as the type does. Floats keep their value bit for bit, except that `x + 0`
//   becomes x, which differs for x = -0 only.
//   `x * 0` stays, for the sake of NaN and infinity.
// Index arithmetic is taken to stay inside 64 bits.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// Remembers what it simplified: a pass that simplifies many expressions over the same ranges uses
// one Simplifier for all of them. Holds its nodes alive. Threads: one thread at a time.
class Simplifier {
 public:
  Simplifier();
  // Facts: results only need to agree where `condition` (a Bool expression) is true.
  explicit Simplifier(const UOp& condition);
  ~Simplifier();
  Simplifier(Simplifier&&) noexcept;
  Simplifier& operator=(Simplifier&&) noexcept;

  UOp operator()(const UOp& expression);
  std::vector<UOp> operator()(std::span<const UOp> roots);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Any graph may be given; nodes that are not scalar arithmetic only have their sources simplified.
UOp simplify(const UOp& expression);
std::vector<UOp> simplify(std::span<const UOp> roots);

// Agrees with `expression` where `condition` is true; elsewhere the result may be anything, but
// what it loads lies where it lay: code computes it there, too.
UOp simplify_given(const UOp& expression, const UOp& condition);

}  // namespace tinyshard
