// The op table: one row per op holds the facts that other code asks about it, among them what an
// elementwise op makes of numbers and what it costs. An op that others spell is a row of core/ops. To
// add one that none spells: a name here and a row in op.cpp, its shape rule (shape.cpp) unless it is
// elementwise, its gradient (passes/gradient_rules.cpp) and, for a new arithmetic op, its instructions
// (codegen/arith.cpp).
#pragma once
#include <cstdint>
#include <string_view>

#include "core/dtype/dtype.h"

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
  Scan,
  Decompose,
  Dot,
  Conv,
  ConvBackwardData,
  ConvBackwardWeight,
  Attention,
  AttentionBackward,
  Unfold,
  UnfoldBackward,
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
  // elementwise, spelled by others: its row says what it is (composite.h)
  Composite,
};
inline constexpr int kOps = static_cast<int>(Op::Composite) + 1;

enum class OpClass : uint8_t { Leaf, Elementwise, Movement, Reduction, Storage, Device, Kernel };

// How the element type of a node follows from its sources.
enum class TypeRule : uint8_t { Given, SameAsFirst, SameAsSecond, Bool };

// The cost of computing one where generated kernels do it. Zero: as `cycles`.
struct OpCost {
  float inlined = 1;  // per element and once more in another kernel, in additions
  float cycles = 1;   // of a CPU core for a register full of lanes
  float f64_cycles = 0, index_cycles = 0;
  bool long_sequence = false;  // of instructions, which need registers of their own
};

// Integers and Bool as 64 bits, those of narrower types extended as the type is. A result has what
// bits it likes above the type's: the caller wraps it.
struct IntegerKind {
  uint64_t bits;  // 1: Bool
  bool sign;
  bool floors = false;  // Index: divisions round to minus infinity
};
IntegerKind integer_kind(DType dtype);
using OnReals = double (*)(double, double);
using OnIntegers = uint64_t (*)(IntegerKind, uint64_t, uint64_t);

// How a generated kernel gets to the result of floats.
enum class Accuracy : uint8_t {
  Nearest,   // the exact result, rounded once
  Chosen,    // a value of the type already, such as one of the operands
  Division,  // Nearest on CPUs; on GPUs a few ulps off where 16 bits are kept
  Series,    // a polynomial: a few ulps off
};

// Facts about elementwise ops. `reals` and `integers` are the result for one or two operands of one
// type, in double precision and exactly; null where the op is not defined so. Constant folding, the
// checks of indices and TS_CHECK=values compute with them, so that they agree; generated code has
// instructions of its own, and tests compare it with an interpreter that shares nothing with it.
struct ElementFacts {
  bool commutative = false;
  bool floats_only = false;
  Accuracy accuracy = Accuracy::Nearest;
  OpCost cost = {};
  OnReals reals = nullptr;
  OnIntegers integers = nullptr;
};

struct OpInfo {
  Op op;
  std::string_view name;
  int8_t arity;  // -1: any number
  OpClass op_class;
  TypeRule type_rule;
  ElementFacts element = {};
  bool library = false;  // an item of its own where the device has a library that computes it
};

const OpInfo& info(Op op);
inline bool is_elementwise(Op op) { return info(op).op_class == OpClass::Elementwise; }
inline bool is_movement(Op op) { return info(op).op_class == OpClass::Movement; }
inline bool is_library_op(Op op) { return info(op).library; }

enum class ReduceOp : uint8_t { Sum, Prod, Max, Min };
inline constexpr int kReduceOps = static_cast<int>(ReduceOp::Min) + 1;

// Facts about reductions, computed with as those of elementwise ops are; the instructions are in
// codegen/arith.cpp, and loops of the host in combine.h.
struct ReduceInfo {
  ReduceOp op;
  std::string_view name;
  enum class Start : uint8_t { Zero, One, Lowest, Highest } start;  // what nothing reduces to
  bool chooses;        // the result is one of the elements, which may come in any order and twice
  ReduceOp of_truths;  // the same of truth values, as bytes 0 and 1
  OnReals reals;       // of two elements
  OnIntegers integers;
  // Reduces an element that comes n times; null where it `chooses`.
  double (*repeated)(double x, int64_t n);
};
const ReduceInfo& info(ReduceOp op);
inline std::string_view name(ReduceOp op) { return info(op).name; }

}  // namespace tinyshard
