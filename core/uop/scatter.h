// What a ScatterAdd does where several elements meet.
#pragma once
#include "core/uop/args.h"

namespace tinyshard {

inline ReduceOp scatter_op(const UOp& x) { return scatter_arg(*x).op; }

}  // namespace tinyshard
