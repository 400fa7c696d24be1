// Ops that a device's library computes where it has one for them, as items of their own.
#pragma once
#include "core/uop/op.h"

namespace tinyshard {

constexpr bool is_library_op(Op op) {
  switch (op) {
    case Op::Dot:
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
    case Op::Attention:
    case Op::AttentionBackward:
    case Op::ScatterAdd:
    case Op::Sort:
    case Op::Decompose:
      return true;
    default:
      return false;
  }
}

}  // namespace tinyshard
