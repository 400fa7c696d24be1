// The op table: one row per op holds every fact that other code asks about it. To add an op: a row
// here and in op.cpp, its shape rule (shape.cpp), its gradient (passes/gradient_rules.cpp) and, for
// a new arithmetic op, its lowering (codegen/emit.cpp).
#pragma once
#include <cstdint>
#include <string_view>

namespace tinyshard {

enum class Op : uint8_t {
  // leaves
  Const,
  Buffer,
  Iota,
  // elementwise, one source
  Neg,
  Exp2,
  Log2,
  Sin,
  Sqrt,
  Recip,
  Trunc,
  Not,
  Cast,
  Bitcast,
  // elementwise, two sources
  Add,
  Sub,
  Mul,
  Div,
  IDiv,
  Mod,
  Max,
  And,
  Or,  // of floats: their bits, where one is +0: the other, to the sign of a zero
  Xor,
  Shl,
  Shr,
  CmpLt,
  CmpEq,
  CmpNe,
  Threefry,
  // elementwise, three sources
  Where,
  // movement
  Reshape,
  Expand,
  Permute,
  Pad,
  Shrink,
  Flip,
  ShardSlice,
  // reduction and the products kept whole for libraries
  Reduce,
  Gather,
  ScatterAdd,
  Sort,
  Dot,
  Conv,
  ConvBackwardData,
  ConvBackwardWeight,
  Attention,
  AttentionBackward,
  // storage and gradient boundaries
  Contiguous,
  Detach,
  ContiguousBackward,
  Checkpoint,
  After,
  Identity,
  Assign,
  // between devices
  Redistribute,
  Collective,
  CopyIn,
  // inside kernels, where every value is a scalar
  Range,
  DeviceCoordinate,
  Param,
  Load,
  Store,
  Fold,
  Sink,
};
inline constexpr int kOps = static_cast<int>(Op::Sink) + 1;

enum class OpClass : uint8_t { Leaf, Elementwise, Movement, Reduction, Storage, Device, Kernel };

// How the element type of a node follows from its sources.
enum class TypeRule : uint8_t { Given, SameAsFirst, SameAsSecond, Bool };

struct OpInfo {
  Op op;
  std::string_view name;
  int8_t arity;  // -1: any number
  OpClass op_class;
  TypeRule type_rule;
  bool commutative = false;
  bool floats_only = false;
};

const OpInfo& info(Op op);
inline bool is_elementwise(Op op) { return info(op).op_class == OpClass::Elementwise; }
inline bool is_movement(Op op) { return info(op).op_class == OpClass::Movement; }

enum class ReduceOp : uint8_t { Sum, Prod, Max, Min };
std::string_view name(ReduceOp op);

}  // namespace tinyshard
