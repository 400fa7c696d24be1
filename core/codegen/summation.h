// How many terms of a sum in floats go into one accumulator in turn. Each addition is off by half a
// unit in the last place of all that has come together, so that one lane that adds up a long column
// loses digits: the mean of 2^18 numbers 0.1 would be off by 0.25 % in f32. Longer loops add up blocks
// by themselves, then blocks of blocks:
//
//   sum of 2^18 terms      2^11 blocks of 128 terms, 16 blocks of 128 of these, and these 16
//
// The blocks lie at fixed places of a loop, wherever it begins and ends: bits depend on the kernel
// alone.
#pragma once
#include <algorithm>
#include <cstdint>

#include "core/uop/op.h"

namespace tinyshard::codegen {

constexpr int64_t kTermsInTurn = 128;

// A product has as many roundings in any order, relative to what it comes to.
inline bool loses_digits(ReduceOp op, DType dtype) {
  return is_float(dtype) && op == ReduceOp::Sum;
}

// Returns how many steps of a loop make a block, if each step adds so many terms in turn.
inline int64_t steps_of_block(int64_t terms_of_step) {
  return std::max<int64_t>(1, kTermsInTurn / std::max<int64_t>(1, terms_of_step));
}

// Returns how many terms a loop of so many steps adds in turn: those of a block if the loop is
// long.
inline int64_t terms_in_turn(int64_t steps, int64_t terms_of_step) {
  return std::min(kTermsInTurn,
                  std::min(steps, kTermsInTurn) * std::max<int64_t>(1, terms_of_step));
}

}  // namespace tinyshard::codegen
