// Differentiation knows this of each op. Internal to core/passes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/uop/uop.h"

namespace tinyshard {

// Takes the node y, the gradient g of it, and which source to give the gradient of.
using GradientRule = UOp (*)(const UOp& y, const UOp& g, size_t source);

struct GradientRow {
  Op op;
  enum Kind : uint8_t {
    Stop,       // constant as far as derivatives go, or not a float
    Follow,     // `rule` gives the gradient of the sources whose bits are set
    Recompute,  // every source, through the same computation made again
    Refuse,     // no derivative: a path to a target must not lead through it
  } kind;
  uint8_t sources = 0;
  GradientRule rule = nullptr;
};

const GradientRow& gradient_row(Op op);

// The sum of what two users of a value give it.
UOp add_gradients(const UOp& a, const UOp& b);
// The same of users on different meshes, which a value of one device has joined: their gradients meet
// where the value lies.
UOp add_gradients_at(const UOp& value, const UOp& a, const UOp& b);

}  // namespace tinyshard
