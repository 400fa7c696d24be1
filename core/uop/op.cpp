#include "core/uop/op.h"

#include <array>

namespace tinyshard {
namespace {

using C = OpClass;
using T = TypeRule;

constexpr std::array<OpInfo, kOps> kTable = {{
    {Op::Const, "const", 0, C::Leaf, T::Given},
    {Op::Buffer, "buffer", 0, C::Leaf, T::Given},
    {Op::Iota, "iota", 0, C::Leaf, T::Given},
    {Op::Neg, "neg", 1, C::Elementwise, T::SameAsFirst},
    {Op::Exp2, "exp2", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Log2, "log2", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Sin, "sin", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Sqrt, "sqrt", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Recip, "recip", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Trunc, "trunc", 1, C::Elementwise, T::SameAsFirst, false, true},
    {Op::Not, "not", 1, C::Elementwise, T::SameAsFirst},
    {Op::Cast, "cast", 1, C::Elementwise, T::Given},
    {Op::Bitcast, "bitcast", 1, C::Elementwise, T::Given},
    {Op::Add, "add", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::Sub, "sub", 2, C::Elementwise, T::SameAsFirst},
    {Op::Mul, "mul", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::Div, "div", 2, C::Elementwise, T::SameAsFirst, false, true},
    {Op::IDiv, "idiv", 2, C::Elementwise, T::SameAsFirst},
    {Op::Mod, "mod", 2, C::Elementwise, T::SameAsFirst},
    {Op::Max, "max", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::And, "and", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::Or, "or", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::Xor, "xor", 2, C::Elementwise, T::SameAsFirst, true},
    {Op::Shl, "shl", 2, C::Elementwise, T::SameAsFirst},
    {Op::Shr, "shr", 2, C::Elementwise, T::SameAsFirst},
    {Op::CmpLt, "lt", 2, C::Elementwise, T::Bool},
    {Op::CmpEq, "eq", 2, C::Elementwise, T::Bool, true},
    {Op::CmpNe, "ne", 2, C::Elementwise, T::Bool, true},
    {Op::Threefry, "threefry", 2, C::Elementwise, T::SameAsFirst},
    {Op::Where, "where", 3, C::Elementwise, T::SameAsSecond},
    {Op::Reshape, "reshape", 1, C::Movement, T::SameAsFirst},
    {Op::Expand, "expand", 1, C::Movement, T::SameAsFirst},
    {Op::Permute, "permute", 1, C::Movement, T::SameAsFirst},
    {Op::Pad, "pad", 1, C::Movement, T::SameAsFirst},
    {Op::Shrink, "shrink", 1, C::Movement, T::SameAsFirst},
    {Op::Flip, "flip", 1, C::Movement, T::SameAsFirst},
    {Op::ShardSlice, "shard_slice", 1, C::Movement, T::SameAsFirst},
    {Op::Reduce, "reduce", 1, C::Reduction, T::SameAsFirst},
    {Op::Gather, "gather", 2, C::Reduction, T::SameAsFirst},
    {Op::ScatterAdd, "scatter_add", -1, C::Reduction, T::SameAsSecond},
    {Op::Sort, "sort", 1, C::Reduction, T::Given},
    {Op::Dot, "dot", -1, C::Reduction, T::Given},
    {Op::Conv, "conv", 2, C::Reduction, T::SameAsFirst},
    {Op::ConvBackwardData, "conv_backward_data", 2, C::Reduction, T::SameAsFirst},
    {Op::ConvBackwardWeight, "conv_backward_weight", 2, C::Reduction, T::SameAsFirst},
    {Op::Attention, "attention", -1, C::Reduction, T::Given},
    {Op::AttentionBackward, "attention_backward", -1, C::Reduction, T::SameAsFirst},
    {Op::Contiguous, "contiguous", 1, C::Storage, T::SameAsFirst},
    {Op::Detach, "detach", 1, C::Storage, T::SameAsFirst},
    {Op::ContiguousBackward, "contiguous_backward", 1, C::Storage, T::SameAsFirst},
    {Op::Checkpoint, "checkpoint", -1, C::Storage, T::SameAsFirst},
    {Op::After, "after", 2, C::Storage, T::SameAsFirst},
    {Op::Identity, "identity", 1, C::Storage, T::SameAsFirst},
    {Op::Assign, "assign", 2, C::Storage, T::SameAsFirst},
    {Op::Redistribute, "redistribute", 1, C::Device, T::Given},
    {Op::Collective, "collective", 1, C::Device, T::SameAsFirst},
    {Op::CopyIn, "copy_in", 1, C::Device, T::SameAsFirst},
    {Op::Range, "range", 0, C::Kernel, T::Given},
    {Op::DeviceCoordinate, "device_coordinate", 0, C::Kernel, T::Given},
    {Op::Param, "param", 0, C::Kernel, T::Given},
    {Op::Load, "load", -1, C::Kernel, T::SameAsFirst},
    {Op::Store, "store", -1, C::Kernel, T::SameAsFirst},
    {Op::Fold, "fold", -1, C::Kernel, T::SameAsFirst},
    {Op::Sink, "sink", -1, C::Kernel, T::Given},
}};

constexpr bool table_is_in_order() {
  for (int i = 0; i < kOps; ++i) {
    if (static_cast<int>(kTable[i].op) != i) return false;
  }
  return true;
}
static_assert(table_is_in_order(), "rows of the op table follow the enum");

}  // namespace

const OpInfo& info(Op op) { return kTable[static_cast<size_t>(op)]; }

std::string_view name(ReduceOp op) {
  static constexpr std::string_view kNames[] = {"sum", "prod", "max", "min"};
  return kNames[static_cast<size_t>(op)];
}

}  // namespace tinyshard
