// The table of ops: a row each of the facts that all stages ask for, in place of lists of their own.
#include "core/uop/op.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

namespace tinyshard {
namespace {

using C = OpClass;
using T = TypeRule;

// Nothing is computed for them in a kernel: a constant is part of an instruction, a range a counter.
constexpr ElementFacts kFree = {.cost = {.inlined = 1, .cycles = 0}};
constexpr OpCost kDivision = {.inlined = 4, .cycles = 10};
constexpr OpCost kIntegerDivision = {.inlined = 20, .cycles = 60, .index_cycles = 4};

constexpr OpInfo unary(Op op, std::string_view name, const ElementFacts& facts) {
  return {op, name, 1, C::Elementwise, T::SameAsFirst, facts};
}
constexpr OpInfo binary(Op op, std::string_view name, const ElementFacts& facts) {
  return {op, name, 2, C::Elementwise, T::SameAsFirst, facts};
}
constexpr OpInfo comparison(Op op, std::string_view name, const ElementFacts& facts) {
  return {op, name, 2, C::Elementwise, T::Bool, facts};
}
constexpr OpInfo library(Op op, std::string_view name, int8_t arity, TypeRule type_rule) {
  return {op, name, arity, C::Reduction, type_rule, {}, true};
}

constexpr bool is_bool(IntegerKind k) { return k.bits == 1; }
int64_t as_signed(uint64_t x) { return static_cast<int64_t>(x); }
bool less(IntegerKind k, uint64_t a, uint64_t b) {
  return k.sign ? as_signed(a) < as_signed(b) : a < b;
}

// Division by zero gives 0, and that of the lowest number by -1 wraps.
uint64_t quotient(IntegerKind k, uint64_t a, uint64_t b) {
  if (b == 0) return 0;
  if (!k.sign) return a / b;
  const int64_t x = as_signed(a), y = as_signed(b);
  if (y == -1) return 0 - a;
  return static_cast<uint64_t>(x / y - (k.floors && x % y != 0 && (x ^ y) < 0 ? 1 : 0));
}

uint64_t remainder(IntegerKind k, uint64_t a, uint64_t b) {
  return b == 0 ? 0 : a - quotient(k, a, b) * b;
}

double larger(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  return std::max(a, b);
}
uint64_t larger_integer(IntegerKind k, uint64_t a, uint64_t b) { return less(k, a, b) ? b : a; }
double smaller(double a, double b) { return -larger(-a, -b); }
uint64_t smaller_integer(IntegerKind k, uint64_t a, uint64_t b) { return less(k, b, a) ? b : a; }

// The sign by itself: n may be too large for a double to tell whether it is odd.
double power(double x, int64_t n) {
  const double size = std::pow(std::fabs(x), static_cast<double>(n));
  return std::signbit(x) && n % 2 != 0 ? -size : size;
}

uint64_t shifted_right(IntegerKind k, uint64_t a, uint64_t b) {
  if (b >= k.bits) return 0;
  return k.sign ? static_cast<uint64_t>(as_signed(a) >> b) : a >> b;
}

// threefry-2x32, 20 rounds, of a counter and a key of two words each.
uint64_t threefry(IntegerKind, uint64_t counter, uint64_t key) {
  constexpr int kRotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  uint32_t k[3] = {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32), 0};
  k[2] = k[0] ^ k[1] ^ 0x1BD11BDAu;
  uint32_t x0 = static_cast<uint32_t>(counter) + k[0];
  uint32_t x1 = static_cast<uint32_t>(counter >> 32) + k[1];
  for (uint32_t i = 0; i < 5; ++i) {
    for (int rotation : kRotations[i % 2]) {
      x0 += x1;
      x1 = std::rotl(x1, rotation) ^ x0;
    }
    x0 += k[(i + 1) % 3];
    x1 += k[(i + 2) % 3] + i + 1;
  }
  return uint64_t{x1} << 32 | x0;
}

constexpr std::array<OpInfo, kOps> kTable = {{
    {Op::Const, "const", 0, C::Leaf, T::Given, kFree},
    {Op::Buffer, "buffer", 0, C::Leaf, T::Given},
    {Op::Iota, "iota", 0, C::Leaf, T::Given},
    unary(Op::Neg, "neg",
          {.accuracy = Accuracy::Chosen,
           .reals = [](double a, double) { return -a; },
           .integers = [](IntegerKind k, uint64_t a, uint64_t) { return is_bool(k) ? a : 0 - a; }}),
    unary(Op::Exp2, "exp2",
          {.floats_only = true,
           .accuracy = Accuracy::Series,
           .cost = {.inlined = 12, .cycles = 14, .f64_cycles = 24, .long_sequence = true},
           .reals = [](double a, double) { return std::exp2(a); }}),
    unary(Op::Log2, "log2",
          {.floats_only = true,
           .accuracy = Accuracy::Series,
           .cost = {.inlined = 12, .cycles = 20, .f64_cycles = 40, .long_sequence = true},
           .reals = [](double a, double) { return std::log2(a); }}),
    unary(Op::Sin, "sin",
          {.floats_only = true,
           .accuracy = Accuracy::Series,
           .cost = {.inlined = 25, .cycles = 50, .long_sequence = true},
           .reals = [](double a, double) { return std::sin(a); }}),
    unary(Op::Sqrt, "sqrt",
          {.floats_only = true,
           .accuracy = Accuracy::Division,
           .cost = kDivision,
           .reals = [](double a, double) { return std::sqrt(a); }}),
    unary(Op::Recip, "recip",
          {.floats_only = true,
           .accuracy = Accuracy::Division,
           .cost = kDivision,
           .reals = [](double a, double) { return 1 / a; }}),
    unary(Op::Trunc, "trunc",
          {.floats_only = true,
           .accuracy = Accuracy::Chosen,
           .reals = [](double a, double) { return std::trunc(a); }}),
    unary(
        Op::Not, "not",
        {.integers = [](IntegerKind k, uint64_t a, uint64_t) { return is_bool(k) ? a ^ 1 : ~a; }}),
    {Op::Cast, "cast", 1, C::Elementwise, T::Given, {.accuracy = Accuracy::Chosen}},
    {Op::Bitcast, "bitcast", 1, C::Elementwise, T::Given, {.accuracy = Accuracy::Chosen}},
    binary(Op::Add, "add",
           {.commutative = true,
            .reals = [](double a, double b) { return a + b; },
            .integers = [](IntegerKind k, uint64_t a,
                           uint64_t b) { return is_bool(k) ? a | b : a + b; }}),
    binary(Op::Sub, "sub",
           {.reals = [](double a, double b) { return a - b; },
            .integers = [](IntegerKind k, uint64_t a,
                           uint64_t b) { return is_bool(k) ? a ^ b : a - b; }}),
    binary(Op::Mul, "mul",
           {.commutative = true,
            .reals = [](double a, double b) { return a * b; },
            .integers = [](IntegerKind, uint64_t a, uint64_t b) { return a * b; }}),
    binary(Op::Div, "div",
           {.floats_only = true,
            .accuracy = Accuracy::Division,
            .cost = kDivision,
            .reals = [](double a, double b) { return a / b; }}),
    binary(Op::IDiv, "idiv", {.cost = kIntegerDivision, .integers = quotient}),
    binary(Op::Mod, "mod",
           {.accuracy = Accuracy::Chosen,
            .cost = kIntegerDivision,
            .reals = [](double a, double b) { return std::fmod(a, b); },
            .integers = remainder}),
    binary(Op::Max, "max",
           {.commutative = true,
            .accuracy = Accuracy::Chosen,
            .reals = larger,
            .integers = larger_integer}),
    binary(Op::And, "and",
           {.commutative = true,
            .integers = [](IntegerKind, uint64_t a, uint64_t b) { return a & b; }}),
    binary(Op::Or, "or",
           {.commutative = true,
            .accuracy = Accuracy::Chosen,
            .integers = [](IntegerKind, uint64_t a, uint64_t b) { return a | b; }}),
    binary(Op::Xor, "xor",
           {.commutative = true,
            .integers = [](IntegerKind, uint64_t a, uint64_t b) { return a ^ b; }}),
    binary(Op::Shl, "shl",
           {.integers = [](IntegerKind k, uint64_t a,
                           uint64_t b) { return b < k.bits ? a << b : 0; }}),
    binary(Op::Shr, "shr", {.integers = shifted_right}),
    comparison(Op::CmpLt, "lt",
               {.reals = [](double a, double b) { return double(a < b); },
                .integers = [](IntegerKind k, uint64_t a,
                               uint64_t b) { return uint64_t{less(k, a, b)}; }}),
    comparison(Op::CmpEq, "eq",
               {.commutative = true,
                .reals = [](double a, double b) { return double(a == b); },
                .integers = [](IntegerKind, uint64_t a, uint64_t b) { return uint64_t{a == b}; }}),
    comparison(Op::CmpNe, "ne",
               {.commutative = true,
                .reals = [](double a, double b) { return double(a != b); },
                .integers = [](IntegerKind, uint64_t a, uint64_t b) { return uint64_t{a != b}; }}),
    binary(Op::Threefry, "threefry",
           {.cost = {.inlined = 200, .cycles = 120, .long_sequence = true}, .integers = threefry}),
    {Op::Where, "where", 3, C::Elementwise, T::SameAsSecond, {.accuracy = Accuracy::Chosen}},
    {Op::Reshape, "reshape", 1, C::Movement, T::SameAsFirst},
    {Op::Expand, "expand", 1, C::Movement, T::SameAsFirst},
    {Op::Permute, "permute", 1, C::Movement, T::SameAsFirst},
    {Op::Pad, "pad", 1, C::Movement, T::SameAsFirst},
    {Op::Shrink, "shrink", 1, C::Movement, T::SameAsFirst},
    {Op::Flip, "flip", 1, C::Movement, T::SameAsFirst},
    {Op::ShardSlice, "shard_slice", 1, C::Movement, T::SameAsFirst},
    {Op::Reduce, "reduce", 1, C::Reduction, T::SameAsFirst},
    {Op::Gather, "gather", 2, C::Reduction, T::SameAsFirst},
    library(Op::ScatterAdd, "scatter_add", -1, T::SameAsSecond),
    library(Op::Sort, "sort", 1, T::Given),
    library(Op::Scan, "scan", 1, T::Given),
    library(Op::Decompose, "decompose", 1, T::SameAsFirst),
    library(Op::Dot, "dot", -1, T::Given),
    library(Op::Conv, "conv", 2, T::SameAsFirst),
    library(Op::ConvBackwardData, "conv_backward_data", 2, T::SameAsFirst),
    library(Op::ConvBackwardWeight, "conv_backward_weight", 2, T::SameAsFirst),
    library(Op::Attention, "attention", -1, T::Given),
    library(Op::AttentionBackward, "attention_backward", -1, T::SameAsFirst),
    {Op::Unfold, "unfold", 1, C::Reduction, T::SameAsFirst},
    {Op::UnfoldBackward, "unfold_backward", 1, C::Reduction, T::SameAsFirst},
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
    {Op::Range, "range", 0, C::Kernel, T::Given, kFree},
    {Op::DeviceCoordinate, "device_coordinate", 0, C::Kernel, T::Given, kFree},
    {Op::Param, "param", 0, C::Kernel, T::Given, kFree},
    {Op::Load, "load", -1, C::Kernel, T::SameAsFirst},
    {Op::Store, "store", -1, C::Kernel, T::SameAsFirst},
    {Op::Fold, "fold", -1, C::Kernel, T::SameAsFirst},
    {Op::Sink, "sink", -1, C::Kernel, T::Given, kFree},
    {Op::Composite, "composite", -1, C::Elementwise, T::SameAsFirst},
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

IntegerKind integer_kind(DType dtype) {
  if (dtype == DType::Bool) return {1, false};
  if (dtype == DType::Index) return {64, true, true};
  return {8 * itemsize(dtype), is_signed_int(dtype)};
}

const ReduceInfo& info(ReduceOp op) {
  using Start = ReduceInfo::Start;
  static constexpr const ElementFacts &add = kTable[size_t(Op::Add)].element,
                                      &mul = kTable[size_t(Op::Mul)].element;
  static constexpr ReduceInfo kReductions[] = {
      {ReduceOp::Sum, "sum", Start::Zero, false, ReduceOp::Max, add.reals, add.integers,
       [](double x, int64_t n) { return x * static_cast<double>(n); }},
      {ReduceOp::Prod, "prod", Start::One, false, ReduceOp::Min, mul.reals, mul.integers, power},
      {ReduceOp::Max, "max", Start::Lowest, true, ReduceOp::Max, larger, larger_integer, nullptr},
      {ReduceOp::Min, "min", Start::Highest, true, ReduceOp::Min, smaller, smaller_integer,
       nullptr},
  };
  static_assert(std::size(kReductions) == kReduceOps);
  return kReductions[static_cast<size_t>(op)];
}

}  // namespace tinyshard
