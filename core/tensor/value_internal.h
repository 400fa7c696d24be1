// Nodes under construction. A Value is a node or a number without a type; operators on Values
// promote and broadcast as the public methods do, without making a Tensor for every step. Methods
// of Tensor are written with these. Internal to core/tensor and core/nn.
#pragma once
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/call.h"
#include "core/dtype/half.h"
#include "core/tensor/arguments.h"
#include "core/tensor/tensor.h"
#include "core/uop/shape.h"

namespace tinyshard::value {

class Value {
 public:
  Value(UOp node) : node_(std::move(node)) {}           // NOLINT
  Value(const Tensor& tensor) : node_(tensor.uop()) {}  // NOLINT
  Value(Scalar number) : number_(number) {}             // NOLINT
  template <Number T>
  Value(T number) : number_(number) {}           // NOLINT
  Value(const Operand& x) : number_(x.scalar) {  // NOLINT
    if (x.tensor) node_ = x.tensor->uop();
  }

  bool is_number() const { return !node_; }
  const Scalar& number() const { return number_; }
  const UOp& node() const { return node_; }
  DType dtype() const { return node_.dtype(); }
  DimSpan shape() const { return node_.shape(); }
  int64_t rank() const { return static_cast<int64_t>(node_.shape().size()); }
  int64_t size(int64_t axis) const { return node_.shape()[axis]; }
  Dims dims() const { return {shape().begin(), shape().end()}; }
  Tensor tensor() const { return Tensor(node_); }
  operator Tensor() const { return Tensor(node_); }  // NOLINT

 private:
  UOp node_;
  Scalar number_;
};

// --- types and shapes ----------------------------------------------------------------------------
std::string text_of(const Value& x);            // "f32[2, 3]", "2.5"
std::string shape_text(DimSpan shape);          // "[2, 3]"
DType float_type(DType dtype);                  // the type of exp(x) for an x of this type
DType type_of(const Value& a, const Value& b);  // after promotion
void check_dtype(DType dtype);                  // fails the call unless it is a type of elements
bool fits(const Scalar& number, DType dtype);   // whether the type holds it, its fraction aside
Value constant(DType dtype, Scalar value, DimSpan shape = {});  // fails the call unless it fits
// A constant of x's type and shape that depends on x, with the derivative 0.
Value constant_of(const Value& x, Scalar value);
Scalar identity(ReduceOp op, DType dtype);   // what a reduction of nothing gives
Dims broadcast_shape(DimSpan a, DimSpan b);  // fails the call when they do not match
Value broadcast_to(const Value& x, DimSpan shape);
Value cast(const Value& x, DType dtype);
// Both sides as nodes of one type and shape.
std::pair<Value, Value> match(const Value& a, const Value& b);
int64_t resolve_axis(int64_t axis, int64_t rank);   // negative counts from the end; 0 of a scalar
int64_t resolve_dim(int64_t dim, const Value& x);   // the same, but a scalar has none
Dims resolve_axes(const Axes& axes, int64_t rank);  // sorted, distinct
// Returns one placement for each axis of the mesh; `what` has that many dims. Fails the call
// (UserError) for axes that there are not, that are named twice, and for what cannot be asked for.
std::vector<Placement> placements_of(const Mesh& mesh,
                                     const std::vector<std::pair<std::string, Placement>>& named,
                                     int64_t dims, const std::string& what);
void need_float(const Value& x);
void need_int(const Value& x, const char* what);

// f(x) with x as a float, in f32 where that is narrower; the result is rounded once. Everything
// that is more than one op is computed in it, for 16-bit ops round each by itself.
template <class F>
Value in_floats(const Value& x, const F& f) {
  DType type = float_type(x.dtype());
  if (!is_narrow(type)) return f(cast(x, type));
  return cast(f(cast(cast(x, type), DType::F32)), type);
}
// The same for two operands, after promotion: f(a, b), both f32 where they are narrower.
template <class F>
Value in_floats(const Value& a, const Value& b, const F& f) {
  auto [x, y] = match(a, b);
  DType type = float_type(x.dtype()), wide = is_narrow(type) ? DType::F32 : type;
  return cast(f(cast(cast(x, type), wide), cast(cast(y, type), wide)), type);
}

// --- elementwise ---------------------------------------------------------------------------------
Value operator+(const Value& a, const Value& b);
Value operator-(const Value& a, const Value& b);
Value operator*(const Value& a, const Value& b);
Value operator/(const Value& a, const Value& b);
Value operator-(const Value& x);
Value operator<(const Value& a, const Value& b);
Value operator>(const Value& a, const Value& b);
Value operator<=(const Value& a, const Value& b);
Value operator>=(const Value& a, const Value& b);
Value operator==(const Value& a, const Value& b);
Value operator!=(const Value& a, const Value& b);
Value operator&(const Value& a, const Value& b);
Value operator|(const Value& a, const Value& b);
Value operator^(const Value& a, const Value& b);
Value operator!(const Value& x);
Value floor_div(const Value& a, const Value& b);
Value trunc_div(const Value& a, const Value& b);
Value mod(const Value& a, const Value& b);
Value fmod(const Value& a, const Value& b);
Value maximum(const Value& a, const Value& b);
Value minimum(const Value& a, const Value& b);
Value where(const Value& condition, const Value& a, const Value& b);
Value square(const Value& x);
Value abs(const Value& x);
Value sign(const Value& x);
Value sqrt(const Value& x);
Value rsqrt(const Value& x);
Value reciprocal(const Value& x);
Value exp(const Value& x);
Value exp2(const Value& x);
Value log(const Value& x);
Value log2(const Value& x);
Value sin(const Value& x);
Value cos(const Value& x);
Value trunc(const Value& x);
Value floor(const Value& x);
Value isnan(const Value& x);
Value isinf(const Value& x);
Value relu(const Value& x);
Value sigmoid(const Value& x);
Value tanh(const Value& x);
Value softplus(const Value& x);  // log(1 + exp(x))
Value detach(const Value& x);
Value contiguous(const Value& x);

// --- movement ----------------------------------------------------------------------------------
Value reshape(const Value& x, const Dims& shape);
Value permute(const Value& x, const Dims& order);
Value shrink(const Value& x, const Pairs& bounds);
Value shrink_axis(const Value& x, int64_t axis, int64_t low, int64_t high);
Value pad(const Value& x, const Pairs& padding);                       // with zeros
Value pad(const Value& x, const Pairs& padding, const Scalar& value);  // not negative
Value flip(const Value& x, const Dims& axes);
Value move_axis(const Value& x, int64_t from, int64_t to);
Value unsqueeze(const Value& x, int64_t axis);
Value squeeze(const Value& x, int64_t axis);
Value cat(const std::vector<Value>& parts, int64_t axis);  // of one type; shapes checked before

// --- reductions ----------------------------------------------------------------------------------
Value reduce(ReduceOp op, const Value& x, const Dims& axes, bool keepdim);
// Fails the running call where truths are more than their sum, an i32, can count.
void need_countable(const Value& x, const Dims& axes);
Value sum(const Value& x, const Dims& axes,
          bool keepdim = false);  // accumulates and types as x.sum()
Value prod(const Value& x, const Dims& axes, bool keepdim = false);
Value max(const Value& x, const Dims& axes, bool keepdim = false);
Value min(const Value& x, const Dims& axes, bool keepdim = false);
Value mean(const Value& x, const Dims& axes, bool keepdim = false);
Value variance(const Value& x, const Dims& axes, bool keepdim, int64_t correction);
Value softmax(const Value& x, int64_t axis);
Value log_softmax(const Value& x, int64_t axis);
Value logsumexp(const Value& x, const Dims& axes, bool keepdim);
// Where x has the maximum that `top` tells, which is NaN where there is one.
Value holds_maximum(const Value& x, const Value& top);
Value argmax(const Value& x, int64_t axis, bool keepdim);  // i32

// --- products, indices ---------------------------------------------------------------------------
Value matmul(const Value& a, const Value& b, std::optional<DType> dtype = {});
Value iota(int64_t n, DType dtype);
Value iota_along(int64_t axis, int64_t rank, int64_t n, DType dtype);  // [1, .., n, .., 1]
Value index_type(const Value& index);                                  // as Gather wants it
Value gather(const Value& x, int64_t axis, const Value& index);        // shapes as Op::Gather
Value scatter_add(const Value& index, const Value& src, int64_t axis, int64_t size);
// The same for another reduction, which starts from its identity.
Value scatter_reduce(ReduceOp op, const Value& index, const Value& src, int64_t axis, int64_t size);
// Returns for each of `size` places the last entry of the index along the axis that names it,
// counted from one; 0 where none does.
Value last_entries(const Value& index, int64_t axis, int64_t size);
// The places of the k smallest of each row of unsigned keys, in order, as i32.
Value sort_order(const Value& keys, int64_t k);
Value one_hot(const Value& index, int64_t classes);  // bool, classes are the last dim

// Windows of the last dims: [.., out.., kernel..].
struct Windows {
  Dims kernel, stride, dilation;
};
// Cuts the padded x into windows. The padding is a pair for every dim, (0, 0) for those before.
Value windows(const Value& x, const Windows& w, const Pairs& padding = {}, const Scalar& value = 0);
int64_t window_reach(int64_t kernel, int64_t dilation);  // elements from the first to the last
int64_t window_count(int64_t size, int64_t kernel, int64_t stride, int64_t dilation);

// A list option given as one number or one per spatial dim.
Dims per_dim(const Ints& option, int64_t spatial, const char* name);
void note_placement(const Sharding& where);  // of a tensor that is made
// Tells whether any value can live on several devices: asking where costs a walk of the graph.
bool placed_on_several();

// Padding as (before, after) per spatial dim, first dim first.
Pairs spatial_padding(const Ints& padding, int64_t spatial);

}  // namespace tinyshard::value
