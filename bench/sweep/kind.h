// The kinds of steps that bench/sweep_bench.cpp draws from. A kind is a row: which types, how its sizes
// and numbers are drawn, how its step is made, and the work by which its limit is told. Rows of a
// family lie in a source of their own; bench/peers/torch_sweep.py has the same names.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <tinyshard/tinyshard.h>
#include <vector>

#include "bench/sweep/draw.h"

namespace tinyshard::sweep {

// A step to be made. Each kind has its own numbers: axes, strides, counts.
struct Case {
  int64_t id = 0;
  std::string kind;
  DType dtype = DType::F32;
  Dims sizes, numbers;
};
// "7 softmax bf16 1024 768 : 1"; a UserError names a line that is no case.
std::string text_of(const Case& drawn);
Case case_of(const std::string& line);

using Tensors = std::vector<Tensor>;
using Function = std::function<Tensors(const Tensors&)>;
struct Step {
  Tensors inputs;
  Function function;
};

struct Work {
  double bytes = 0, operations = 0;
};
// Every input read once and every result written once.
Work moved(const Case&, const Step& step);
// Parts of the first input are read, as many elements as are written; other inputs whole.
Work selected(const Case&, const Step& step);
// The first input lends its shape alone, as in the gradients of reads.
Work filled(const Case&, const Step& step);

struct Sizes {
  Dims sizes, numbers;
};
struct Kind {
  std::string_view name;
  std::vector<DType> types;  // often named ones are drawn more often
  std::function<Sizes(Draw&, int64_t elements)> draw;
  std::function<Step(const Case&)> make;
  std::function<Work(const Case&, const Step&)> work = moved;
};
using Kinds = std::vector<Kind>;

const Kinds& kinds();
const Kind& kind_of(std::string_view name);  // UserError if there is none

Kinds elementwise_kinds();
Kinds reduction_kinds();
Kinds norm_kinds();
Kinds movement_kinds();
Kinds order_kinds();
Kinds index_kinds();
Kinds product_kinds();
Kinds window_kinds();

// --- parts of rows -------------------------------------------------------------------------------
inline const std::vector<DType> kFloats = {DType::F32, DType::BF16, DType::BF16, DType::F16};
inline const std::vector<DType> kMore = {DType::F32,  DType::F32, DType::BF16,
                                         DType::BF16, DType::F16, DType::F64};
inline const std::vector<DType> kAll = {DType::F32, DType::F32, DType::BF16, DType::BF16,
                                        DType::F16, DType::F64, DType::I32,  DType::I64};

// Any shape; one and an axis of it; one and some axes.
Sizes draw_shape(Draw& draw, int64_t elements);
Sizes draw_axis(Draw& draw, int64_t elements);
Sizes draw_axes(Draw& draw, int64_t elements);

// Realized numbers: normal ones, or integers from 0 to 99.
Tensor numbers(const Dims& shape, DType dtype);
// Realized i32 places below n.
Tensor places(const Dims& shape, int64_t n);

using OneToOne = std::function<Tensor(const Tensor&)>;
Step step_of(Tensors inputs, std::function<Tensor(const Tensors&)> function);
Step unary(const Case& of, OneToOne function);
// The gradients of the first `targets` inputs; a gradient of the result becomes the last input.
Step gradient_of(const Step& step, size_t targets = 1);

}  // namespace tinyshard::sweep
