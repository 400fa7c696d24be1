// Tensor: a light handle on a value that is computed when someone looks at it. Copies share one
// state; every method leaves its tensor as it is and returns another one, except those that say
// they write (assign, setitem, the compound operators, backward, realize, is_param_).
//
//   Tensor x = Tensor::rand({2, 3});
//   Tensor y = (x * 2 + 1).relu().sum();     // nothing has run
//   float value = y.item<float>();           // now it has
//
// A view (x[0], x.T(), x.reshape(..), a part of x.split(..): movement that repeats nothing, detach,
// bitcast) reads x as it was when it was taken. What is written to the view is written into x, which
// other views of x do not show:
//
//   x[0] = 5;   x.T()[2] += row;   x[{i}] = rows;     // x has it
//   Tensor v = x[0];  v *= 2;                         // so have x and v
//   v = row;                                          // a variable: v is another tensor from here on
//
// A view by an index tensor, v = x[{i}], is a copy once it has a name. UserError for what has no
// place to write to: (a + b)[0] = 5, x.expand(..) += 1.
//
// Mistakes throw UserError that names the operation, shapes, types and the caller's line. Threads:
// different tensors may be used from different threads; graphs are built side by side, and runs
// queue up behind each other. Tensors that share memory count as one: a tensor, its views, and what
// was made from it and is not computed yet; who writes to one of them needs them alone (runtime.h).
#pragma once
#include <concepts>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/exec/tensor_state.h"
#include "core/tensor/arguments.h"
#include "core/tensor/host_copy.h"
#include "core/tensor/training.h"
#include "multi/mesh.h"

namespace tinyshard {

// The type of rand(), zeros() and of numbers with a point; f32 unless set. Set it before tensors
// are made, by the thread that makes them all.
DType default_float();
void set_default_float(DType dtype);

// A Sharding together with what it divides: prints as f32[4096@data:4, 4096].
struct TensorSharding : Sharding {
  DType dtype = DType::F32;
  Dims shape;
  std::string to_string() const;
};

using AxisPlacement = std::pair<std::string, Placement>;

class Tensor {
 public:
  // --- making ------------------------------------------------------------------------------------
  Tensor() = default;                          // no tensor at all: an argument not given
  Tensor(std::initializer_list<Nested> rows);  // i32, default_float() or bool
  explicit Tensor(Scalar value);               // a constant of shape []
  template <class E>
  explicit Tensor(const std::vector<E>& values) : Tensor(values, Ints(values.size())) {}
  template <class E>
  Tensor(const std::vector<E>& values, const Ints& shape, Caller caller = Caller::current());
  template <class E>
  Tensor(std::span<const E> values, const Ints& shape, Caller caller = Caller::current())
      : Tensor(std::as_bytes(values), shape, dtype_of<E>(), caller) {}
  // Copies row-major elements of any type.
  Tensor(std::span<const std::byte> bytes, const Ints& shape, DType dtype,
         Caller caller = Caller::current());
  explicit Tensor(UOp value);  // another tensor of this value
  explicit Tensor(StatePtr state) : state_(std::move(state)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  // A variable takes another tensor. To x[0] and the like, which are no variables, it is written.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  Tensor operator=(const Operand& value) const&&;
  Tensor operator=(std::initializer_list<Nested> rows) const&&;

  static Tensor empty(const Ints& shape, DType dtype = default_float(),
                      Caller caller = Caller::current());
  Tensor empty_like(std::optional<DType> dtype = {}) const;  // sharded as this one
  static Tensor full(const Ints& shape, Scalar value,
                     Caller caller = Caller::current());  // the number's own type
  static Tensor full(const Ints& shape, Scalar value, DType dtype,
                     Caller caller = Caller::current());
  static Tensor zeros(const Ints& shape, DType dtype = default_float(),
                      Caller caller = Caller::current());
  static Tensor ones(const Ints& shape, DType dtype = default_float(),
                     Caller caller = Caller::current());
  Tensor full_like(Scalar value, std::optional<DType> dtype = {}) const;
  Tensor zeros_like(std::optional<DType> dtype = {}) const;  // sharded as this one
  Tensor ones_like(std::optional<DType> dtype = {}) const;
  static Tensor arange(Scalar stop, std::optional<DType> dtype = {},
                       Caller caller = Caller::current());
  template <SizeExpression T>  // 0 to a size that is known when a captured step runs
  static Tensor arange(const T& size, std::optional<DType> dtype = {},
                       Caller caller = Caller::current()) {
    return arange_of(size_state(size), dtype, caller);
  }
  static Tensor arange(Scalar start, Scalar stop, Scalar step = 1, std::optional<DType> dtype = {},
                       Caller caller = Caller::current());
  // Begins with `start` and ends with `stop`, exactly.
  static Tensor linspace(Scalar start, Scalar stop, int64_t steps, std::optional<DType> dtype = {},
                         Caller caller = Caller::current());
  static Tensor eye(int64_t n, std::optional<int64_t> m = {}, DType dtype = default_float(),
                    Caller caller = Caller::current());
  static std::vector<Tensor> meshgrid(const std::vector<Tensor>& axes, bool xy = false,
                                      Caller caller = Caller::current());
  static void meshgrid(const std::vector<Tensor>& axes, const char*) = delete;  // true of any text

  // Random values depend on the seed, the order of creation and the element's index alone: any
  // number of devices draws the same.
  static void manual_seed(uint64_t seed = 0, Caller caller = Caller::current());
  static Tensor rand(const Ints& shape, DType dtype = default_float(),
                     Caller caller = Caller::current());
  static Tensor randn(const Ints& shape, DType dtype = default_float(),
                      Caller caller = Caller::current());
  // From `low` up to but not including `high`, after rounding to the type as well.
  static Tensor uniform(const Ints& shape, double low = 0, double high = 1,
                        DType dtype = default_float(), Caller caller = Caller::current());
  static Tensor normal(const Ints& shape, double mean = 0, double std = 1,
                       DType dtype = default_float(), Caller caller = Caller::current());
  static Tensor randint(const Ints& shape, int64_t low = 0, int64_t high = 10,
                        DType dtype = DType::I32, Caller caller = Caller::current());
  static Tensor scaled_uniform(const Ints& shape, DType dtype = default_float(),
                               Caller caller = Caller::current());
  static Tensor glorot_uniform(const Ints& shape, DType dtype = default_float(),
                               Caller caller = Caller::current());
  static Tensor kaiming_uniform(const Ints& shape, double a = 0.01, DType dtype = default_float(),
                                Caller caller = Caller::current());
  static Tensor kaiming_normal(const Ints& shape, double a = 0.01, DType dtype = default_float(),
                               Caller caller = Caller::current());
  static Tensor randperm(int64_t n, DType dtype = DType::I32, Caller caller = Caller::current());
  Tensor rand_like(std::optional<DType> dtype = {}) const;  // sharded as this one
  Tensor randn_like(std::optional<DType> dtype = {}) const;
  // Places along the last dim, drawn by weights that need not add up to one; those of zero are never
  // drawn. Where a row has a weight that is negative, infinite or NaN, or too few positive ones,
  // places are -1.
  Tensor multinomial(int64_t num_samples = 1, bool replacement = false,
                     Caller caller = Caller::current()) const;

  // --- what it is --------------------------------------------------------------------------------
  bool defined() const { return state_ != nullptr; }
  // The shape() of dims whose size is known when a captured step runs has the largest sizes; a number
  // of one of them is a UserError, size_tensor() and numel_tensor() have what it is at each call.
  Dims shape() const;
  int64_t shape(int64_t dim, Caller caller = Caller::current()) const;  // size of one dim
  int64_t size(int64_t dim, Caller caller = Caller::current()) const { return shape(dim, caller); }
  int64_t ndim() const;
  int64_t numel(Caller caller = Caller::current()) const;
  Tensor size_tensor(int64_t dim, Caller caller = Caller::current()) const;  // i64[]
  Tensor numel_tensor(Caller caller = Caller::current()) const;
  DType dtype() const;
  size_t element_size() const { return itemsize(dtype()); }
  size_t nbytes(Caller caller = Caller::current()) const {
    return size_t(numel(caller)) * element_size();
  }
  bool is_floating_point() const { return is_float(dtype()); }
  std::string describe() const;  // "f32[32, 784@data:4]", "f32[8, 1 + pos <= 4096]"

  const UOp& uop() const;  // an operand of new ops; see touch()
  const StatePtr& state() const { return state_; }

  // --- values on the host (all realize; UserError inside a capture) ------------------------------
  template <Number E>
  E item(Caller caller = Caller::current()) const;  // of a tensor of one element
  template <Number E>
  std::vector<E> to_vector(Caller caller = Caller::current()) const;  // row-major, converted to E
  std::vector<std::byte> data(Caller caller = Caller::current()) const;  // row-major, as they are
  // Begins to copy the value as it is now, and does not wait for it (host_copy.h).
  HostCopy copy_to_host(Caller caller = Caller::current()) const;

  // --- storage -----------------------------------------------------------------------------------
  Tensor realize(Caller caller = Caller::current()) const;  // computes; returns itself
  static void realize(const std::vector<Tensor>& tensors);  // all in one run
  Tensor contiguous() const;                                // ends fusion: a value of its own
  // Dims whose size is known when a captured step runs become as long as their bound, with `value`
  // behind what is there.
  Tensor to_bound(Scalar value = 0, Caller caller = Caller::current()) const;
  Tensor clone() const;  // a copy with its own storage
  // Writes over this tensor's storage, or into what it is a view of.
  Tensor assign(const Operand& value) const&;
  Tensor assign(const Operand& value) const&&;
  Tensor assign(const Tensor& value, Caller caller = Caller::current()) const&;
  Tensor assign(const Tensor& value, Caller caller = Caller::current()) const&&;
  Tensor replace(const Tensor& value, Caller caller = Caller::current()) const;  // takes its place
  void setitem(const std::vector<Index>& index, const Operand& value) const&;    // x[index] = value
  void setitem(const std::vector<Index>& index, const Operand& value) const&&;

  // --- gradients ---------------------------------------------------------------------------------
  // Parameters get their gradient from backward(), and storage of their own.
  Tensor is_param_(bool is_param = true, Caller caller = Caller::current()) const;
  bool is_param() const;
  Tensor grad() const;  // not defined() before backward() reached it
  void set_grad(const Tensor& gradient, Caller caller = Caller::current()) const;
  // Adds d(this * gradient)/d(p) to the gradient of every parameter p that this depends on.
  Tensor backward(const Tensor& gradient = {}, Caller caller = Caller::current()) const;
  // d(this * gradient)/d(target) for each target: a tensor that this was computed from, as it went
  // in, be it a constant or an intermediate value; others of equal values do not count. UserError
  // for a target that this was not computed from; with materialize_grads its gradient is zeros.
  std::vector<Tensor> gradient(const std::vector<Tensor>& targets, const Tensor& gradient = {},
                               bool materialize_grads = false,
                               Caller caller = Caller::current()) const;
  Tensor detach() const;
  Tensor contiguous_backward() const;  // the gradient that arrives here is a value of its own

  // --- where it lives ----------------------------------------------------------------------------
  Tensor shard(const Mesh& mesh, const std::vector<AxisPlacement>& placements = {},
               Caller caller = Caller::current()) const;  // axes not named: Replicate
  Tensor shard(const std::vector<std::string>& devices, std::optional<int64_t> axis = {},
               Caller caller = Caller::current()) const;
  Tensor shard_like(const Tensor& other, Caller caller = Caller::current()) const;
  Tensor shard_like(const Sharding& sharding, Caller caller = Caller::current()) const;
  // "CPU:3", or a kind, which means its first device here. There are 1024 CPU devices whatever the
  // machine has, parts of one memory and of the same cores: a device need not be in TS_DEVICES.
  Tensor to(const std::string& device, Caller caller = Caller::current()) const;
  TensorSharding sharding() const;
  // Where it is: "CPU:0", or "CPU:0@1" of another rank. A tensor on several devices has devices(), in
  // the order of its mesh, and a UserError in the place of device().
  std::string device(Caller caller = Caller::current()) const;
  std::vector<std::string> devices() const;
  // The value whose parts these are: one for each device of the mesh that this process holds, in
  // the mesh's order, each on one device of this process. Sizes are those of parts times devices
  // unless `shape` says them, which all ranks say alike where parts are uneven. A process without a
  // device of the mesh gives no parts, but the shape, and the type where it is not default_float().
  // Copies; realizes.
  static Tensor from_local(const Mesh& mesh, const std::vector<AxisPlacement>& placements,
                           const std::vector<Tensor>& parts, const std::optional<Ints>& shape = {},
                           std::optional<DType> dtype = {}, Caller caller = Caller::current());
  // Such parts of this tensor, without padding: copies, each where its part is. Sums that are
  // pending are completed. Realizes.
  std::vector<Tensor> local(Caller caller = Caller::current()) const;

  // --- types -------------------------------------------------------------------------------------
  Tensor cast(DType dtype) const;
  Tensor bitcast(DType dtype, Caller caller = Caller::current()) const&;
  Tensor to_float() const { return cast(DType::F32); }
  Tensor to_double() const { return cast(DType::F64); }
  Tensor to_half() const { return cast(DType::F16); }
  Tensor to_bfloat16() const { return cast(DType::BF16); }
  Tensor to_int() const { return cast(DType::I32); }
  Tensor to_long() const { return cast(DType::I64); }
  Tensor to_short() const { return cast(DType::I16); }
  Tensor to_bool() const { return cast(DType::Bool); }

  // --- movement ----------------------------------------------------------------------------------
  Tensor reshape(const Ints& shape,
                 Caller caller = Caller::current()) const&;  // one -1 is inferred
  Tensor view(const Ints& shape, Caller caller = Caller::current()) const&;
  Tensor flatten(int64_t start_dim = 0, int64_t end_dim = -1,
                 Caller caller = Caller::current()) const&;
  Tensor unflatten(int64_t dim, const Ints& sizes, Caller caller = Caller::current()) const&;
  Tensor squeeze(std::optional<int64_t> dim = {}, Caller caller = Caller::current()) const&;
  Tensor unsqueeze(int64_t dim, Caller caller = Caller::current()) const&;
  Tensor permute(const Ints& order, Caller caller = Caller::current()) const&;
  Tensor transpose(int64_t dim0 = 1, int64_t dim1 = 0, Caller caller = Caller::current()) const&;
  Tensor T() const;  // all dims in reverse
  Tensor expand(const Ints& shape, Caller caller = Caller::current()) const&;  // -1 keeps a size
  Tensor repeat(const Ints& repeats, Caller caller = Caller::current()) const;
  Tensor repeat_interleave(int64_t repeats, std::optional<int64_t> dim = {},
                           Caller caller = Caller::current()) const;
  Tensor shrink(const Pairs& bounds, Caller caller = Caller::current()) const&;
  // The first elements of each dim, and zeros or `value` behind them; -1 keeps a size.
  Tensor shrink_to(const Ints& shape, Caller caller = Caller::current()) const&;
  Tensor pad_to(const Ints& shape, Scalar value = 0, Caller caller = Caller::current()) const;
  Tensor pad(const Pairs& padding, Scalar value = 0, PadMode mode = PadMode::Constant,
             Caller caller = Caller::current()) const;  // negative padding shrinks
  Tensor flip(const Ints& axes, Caller caller = Caller::current()) const&;
  Tensor roll(const Ints& shifts, const Axes& dims = {}, Caller caller = Caller::current()) const;
  std::vector<Tensor> split(int64_t size, int64_t dim = 0,
                            Caller caller = Caller::current()) const&;
  std::vector<Tensor> split(const Dims& sizes, int64_t dim = 0,
                            Caller caller = Caller::current()) const&;
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0,
                            Caller caller = Caller::current()) const&;
  // This tensor, then the others; the functions cat({x, y}) and stack({x, y}) take all in one list.
  Tensor cat(const std::vector<Tensor>& others, int64_t dim = 0,
             Caller caller = Caller::current()) const;
  Tensor cat(const Tensor& other, int64_t dim = 0, Caller caller = Caller::current()) const;
  Tensor stack(const std::vector<Tensor>& others, int64_t dim = 0,
               Caller caller = Caller::current()) const;
  Tensor stack(const Tensor& other, int64_t dim = 0, Caller caller = Caller::current()) const;
  Tensor diag(Caller caller = Caller::current()) const;
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1,
                  Caller caller = Caller::current()) const&;
  Tensor unfold(int64_t dim, int64_t size, int64_t step, Caller caller = Caller::current()) const&;
  Tensor rearrange(const std::string& formula,
                   const std::vector<std::pair<std::string, int64_t>>& sizes = {},
                   Caller caller = Caller::current()) const&;
  Tensor triu(int64_t diagonal = 0, Caller caller = Caller::current()) const;
  Tensor tril(int64_t diagonal = 0, Caller caller = Caller::current()) const;

  // x[0], x[Slice(1, 3)], x[{kEllipsis, 0}], x[{rows, columns}] as in numpy, but for index
  // tensors: a number beside them takes its dim away first, as in tinygrad and torch, and is none of
  // them, so x[{0, Slice(), rows}] is x[0][{Slice(), rows}], where numpy puts the dims of rows first;
  // their places out of range read 0; and none is of bools. setitem() takes the same.
  Tensor operator[](const Index& index) const&;
  Tensor operator[](std::initializer_list<Index> index) const&;
  Tensor operator[](const std::vector<Index>& index) const& { return at(index); }
  Tensor at(const std::vector<Index>& index) const&;

  // --- elementwise, one operand ------------------------------------------------------------------
  Tensor neg() const;
  Tensor abs() const;
  Tensor sign() const;
  Tensor square() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor reciprocal() const;
  Tensor exp() const;
  Tensor exp2() const;
  Tensor log() const;
  Tensor log2() const;
  Tensor log10() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor tan() const;
  Tensor asin() const;
  Tensor acos() const;
  Tensor atan() const;
  Tensor sinh() const;
  Tensor cosh() const;
  Tensor tanh() const;
  Tensor asinh() const;
  Tensor acosh() const;
  Tensor atanh() const;
  Tensor erf() const;
  Tensor ceil() const;
  Tensor floor() const;
  Tensor round() const;  // halves to even
  Tensor trunc() const;
  Tensor isnan() const;
  Tensor isinf(bool detect_positive = true, bool detect_negative = true) const;
  Tensor isfinite() const;
  Tensor logical_not() const;
  Tensor bitwise_not(Caller caller = Caller::current()) const;
  Tensor clamp(std::optional<Scalar> min, std::optional<Scalar> max = {},
               Caller caller = Caller::current()) const;
  Tensor clip(std::optional<Scalar> min, std::optional<Scalar> max = {},
              Caller caller = Caller::current()) const;

  Tensor relu() const;
  Tensor sigmoid() const;
  Tensor logsigmoid() const;
  Tensor relu6() const;
  Tensor hardswish() const;
  Tensor hardsigmoid(double alpha = 1.0 / 6, double beta = 0.5) const;
  Tensor hardtanh(double min_val = -1, double max_val = 1) const;
  Tensor leaky_relu(double neg_slope = 0.01) const;
  Tensor quick_gelu() const;
  Tensor gelu(bool exact = false) const;  // by tanh; exact: by erf
  void gelu(const char*) const = delete;  // a text would be true
  Tensor swish() const;
  Tensor silu() const;
  Tensor elu(double alpha = 1) const;
  Tensor celu(double alpha = 1) const;
  Tensor selu(double alpha = 1.67326, double gamma = 1.0507) const;
  Tensor softplus(double beta = 1) const;
  Tensor mish() const;
  Tensor softsign() const;

  // --- elementwise, several operands: broadcast and promoted -------------------------------------
  Tensor add(const Operand& x) const;
  Tensor sub(const Operand& x) const;
  Tensor mul(const Operand& x) const;
  Tensor div(const Operand& x, Rounding rounding = Rounding::None) const;
  Tensor floor_div(const Operand& x) const { return div(x, Rounding::Floor); }
  Tensor mod(const Operand& x) const;   // sign of the divisor
  Tensor fmod(const Operand& x) const;  // sign of the dividend
  // As std::pow, special values too. Integers stay integers, modulo 2^bits: a negative number as
  // their exponent is a UserError, negative elements of a tensor of exponents give the whole part
  // of the result (1, -1 or 0).
  Tensor pow(const Operand& x) const;
  Tensor eq(const Operand& x) const;
  Tensor ne(const Operand& x) const;
  Tensor lt(const Operand& x) const;
  Tensor gt(const Operand& x) const;
  Tensor le(const Operand& x) const;
  Tensor ge(const Operand& x) const;
  Tensor bitwise_and(const Operand& x) const;
  Tensor bitwise_or(const Operand& x) const;
  Tensor bitwise_xor(const Operand& x) const;
  Tensor lshift(const Operand& x) const;
  Tensor rshift(const Operand& x) const;
  Tensor maximum(const Operand& x) const;
  Tensor minimum(const Operand& x) const;
  Tensor copysign(const Operand& x) const;
  Tensor logaddexp(const Operand& x) const;
  Tensor where(const Operand& x, const Operand& y) const;  // this is the condition
  Tensor masked_fill(const Tensor& mask, const Operand& value) const;
  Tensor lerp(const Operand& end, const Operand& weight) const;
  Tensor isclose(const Operand& x, double rtol = 1e-05, double atol = 1e-08,
                 bool equal_nan = false) const;
  bool allclose(const Operand& x, double rtol = 1e-05, double atol = 1e-08,
                bool equal_nan = false) const;

  friend Tensor operator+(const Operand& a, const Operand& b);
  friend Tensor operator-(const Operand& a, const Operand& b);
  friend Tensor operator*(const Operand& a, const Operand& b);
  friend Tensor operator/(const Operand& a, const Operand& b);  // true division, of integers too
  friend Tensor operator%(const Operand& a, const Operand& b);
  friend Tensor div(const Operand& a, const Operand& b, Rounding rounding);
  friend Tensor pow(const Operand& base, const Operand& exponent);
  friend Tensor operator&(const Operand& a, const Operand& b);
  friend Tensor operator|(const Operand& a, const Operand& b);
  friend Tensor operator^(const Operand& a, const Operand& b);
  friend Tensor operator<<(const Operand& a, const Operand& b);
  friend Tensor operator>>(const Operand& a, const Operand& b);
  friend Tensor operator<(const Operand& a, const Operand& b);
  friend Tensor operator>(const Operand& a, const Operand& b);
  friend Tensor operator<=(const Operand& a, const Operand& b);
  friend Tensor operator>=(const Operand& a, const Operand& b);
  friend Tensor operator==(const Operand& a, const Operand& b);
  friend Tensor operator!=(const Operand& a, const Operand& b);
  friend Tensor operator-(const Operand& x);
  friend Tensor operator~(const Operand& x);
  friend Tensor operator!(const Operand& x);
  // These write, as assign() does: all copies of the handle see the new value. The result has the
  // type and the shape of the left side.
  const Tensor& operator+=(const Operand& x) const&;
  Tensor operator+=(const Operand& x) const&&;
  const Tensor& operator-=(const Operand& x) const&;
  Tensor operator-=(const Operand& x) const&&;
  const Tensor& operator*=(const Operand& x) const&;
  Tensor operator*=(const Operand& x) const&&;
  const Tensor& operator/=(const Operand& x) const&;
  Tensor operator/=(const Operand& x) const&&;
  const Tensor& operator%=(const Operand& x) const&;
  Tensor operator%=(const Operand& x) const&&;
  const Tensor& operator&=(const Operand& x) const&;
  Tensor operator&=(const Operand& x) const&&;
  const Tensor& operator|=(const Operand& x) const&;
  Tensor operator|=(const Operand& x) const&&;
  const Tensor& operator^=(const Operand& x) const&;
  Tensor operator^=(const Operand& x) const&&;
  const Tensor& operator<<=(const Operand& x) const&;
  Tensor operator<<=(const Operand& x) const&&;
  const Tensor& operator>>=(const Operand& x) const&;
  Tensor operator>>=(const Operand& x) const&&;

  // --- reductions and scans ----------------------------------------------------------------------
  // Over nothing (an empty dim): 0, 1 for prod, false for any, true for all, NaN for mean, the
  // least value of the type for max and the greatest for min: infinities of floats. The places of
  // a largest and a smallest are mistakes there.
  Tensor sum(const Axes& axis = {}, bool keepdim = false, std::optional<DType> dtype = {},
             Caller caller = Caller::current()) const;
  Tensor prod(const Axes& axis = {}, bool keepdim = false, std::optional<DType> dtype = {},
              Caller caller = Caller::current()) const;
  Tensor max(const Axes& axis = {}, bool keepdim = false, Caller caller = Caller::current()) const;
  Tensor min(const Axes& axis = {}, bool keepdim = false, Caller caller = Caller::current()) const;
  Tensor any(const Axes& axis = {}, bool keepdim = false, Caller caller = Caller::current()) const;
  Tensor all(const Axes& axis = {}, bool keepdim = false, Caller caller = Caller::current()) const;
  Tensor mean(const Axes& axis = {}, bool keepdim = false, Caller caller = Caller::current()) const;
  Tensor var(const Axes& axis = {}, bool keepdim = false, int64_t correction = 1,
             Caller caller = Caller::current()) const;
  Tensor std(const Axes& axis = {}, bool keepdim = false, int64_t correction = 1,
             Caller caller = Caller::current()) const;
  std::pair<Tensor, Tensor> var_mean(const Axes& axis = {}, bool keepdim = false,
                                     int64_t correction = 1,
                                     Caller caller = Caller::current()) const;
  std::pair<Tensor, Tensor> std_mean(const Axes& axis = {}, bool keepdim = false,
                                     int64_t correction = 1,
                                     Caller caller = Caller::current()) const;
  Tensor logsumexp(const Axes& axis = {}, bool keepdim = false,
                   Caller caller = Caller::current()) const;
  Tensor softmax(int64_t axis = -1, std::optional<DType> dtype = {},
                 Caller caller = Caller::current()) const;
  Tensor log_softmax(int64_t axis = -1, std::optional<DType> dtype = {},
                     Caller caller = Caller::current()) const;
  Tensor softmin(int64_t axis = -1, std::optional<DType> dtype = {},
                 Caller caller = Caller::current()) const;
  Tensor normalize(double p = 2, int64_t dim = 1, double eps = 1e-12,
                   Caller caller = Caller::current()) const;
  Tensor argmax(std::optional<int64_t> axis = {}, bool keepdim = false,
                Caller caller = Caller::current()) const;  // i32: of ties and NaNs the first
  Tensor argmin(std::optional<int64_t> axis = {}, bool keepdim = false,
                Caller caller = Caller::current()) const;
  // Totals of numbers that are not negative never fall from one to the next.
  Tensor cumsum(int64_t axis = 0, Caller caller = Caller::current()) const;
  Tensor cumprod(int64_t axis, Caller caller = Caller::current()) const;
  // Values and their places, i32: of equal ones the first, which the gradient goes to.
  std::pair<Tensor, Tensor> cummax(int64_t axis = 0, Caller caller = Caller::current()) const;
  std::pair<Tensor, Tensor> cummin(int64_t axis = 0, Caller caller = Caller::current()) const;
  Tensor logcumsumexp(int64_t axis = 0, Caller caller = Caller::current()) const;

  // --- products ----------------------------------------------------------------------------------
  // dtype: of the accumulator and the result.
  Tensor matmul(const Tensor& x, std::optional<DType> dtype = {},
                Caller caller = Caller::current()) const;
  Tensor dot(const Tensor& x, std::optional<DType> dtype = {},
             Caller caller = Caller::current()) const;
  Tensor linear(const Tensor& weight, const Tensor& bias = {}, std::optional<DType> dtype = {},
                Caller caller = Caller::current()) const;  // weight is [in, out]
  static Tensor einsum(const std::string& formula, const std::vector<Tensor>& operands,
                       std::optional<DType> dtype = {}, Caller caller = Caller::current());
  // x is [n, c, spatial...], weight [out, c / groups, kernel...]; one to three spatial dims.
  Tensor conv2d(const Tensor& weight, const Tensor& bias = {}, const ConvOptions& options = {},
                Caller caller = Caller::current()) const;
  Tensor conv_transpose2d(
      const Tensor& weight, const Tensor& bias = {}, const ConvTransposeOptions& options = {},
      Caller caller = Caller::current()) const;  // weight [c, out / groups, ...]
  // Windows over the last dims, as many as the kernel has; one number is a kernel of two dims.
  Tensor max_pool2d(const Ints& kernel = {2, 2}, const PoolOptions& options = {},
                    Caller caller = Caller::current()) const;
  std::pair<Tensor, Tensor> max_pool2d_with_indices(const Ints& kernel = {2, 2},
                                                    const PoolOptions& options = {},
                                                    Caller caller = Caller::current()) const;
  Tensor max_unpool2d(const Tensor& indices, const Ints& kernel = {2, 2},
                      const PoolOptions& options = {}, std::optional<Ints> output_size = {},
                      Caller caller = Caller::current()) const;
  Tensor avg_pool2d(const Ints& kernel = {2, 2}, const PoolOptions& options = {},
                    Caller caller = Caller::current()) const;
  Tensor interpolate(const Ints& size, Interpolation mode = Interpolation::Linear,
                     bool align_corners = false, Caller caller = Caller::current()) const;
  // A CPU computes QR and SVD, in f64, for matrices of the other devices as well: they are for small
  // ones. Factors that are realized together are computed together. Gradients: of r where there are no
  // fewer rows than columns, of full rank; of q where the matrix is square, too; of s; of u and vt
  // where singular values differ, whole ones of a square matrix alone. Others are UserErrors.
  std::pair<Tensor, Tensor> qr(Caller caller = Caller::current()) const;
  struct Svd;
  Svd svd(bool full_matrices = true, Caller caller = Caller::current()) const;
  Tensor newton_schulz(int64_t steps, const std::vector<double>& coefficients, double eps = 1e-07,
                       Caller caller = Caller::current()) const;

  // --- indices, sorting --------------------------------------------------------------------------
  // Negative indices count from the end in x[...] and setitem alone. What is out of range reads as
  // 0 and is not written: gather, embedding, x[tensor], setitem, scatter.
  Tensor gather(int64_t dim, const Tensor& index, Caller caller = Caller::current()) const;
  // Rows of this [vocabulary, width] table, for indices of any shape: [..., width].
  Tensor embedding(const Tensor& index, Caller caller = Caller::current()) const;
  Tensor scatter(int64_t dim, const Tensor& index, const Operand& src) const;
  // Adds (Sum) or multiplies (Prod) a number there; scatter_reduce does more, and takes tensors.
  Tensor scatter(int64_t dim, const Tensor& index, Scalar src, ScatterReduce reduce,
                 Caller caller = Caller::current()) const;
  Tensor scatter_reduce(int64_t dim, const Tensor& index, const Operand& src, ScatterReduce reduce,
                        bool include_self = true) const;
  Tensor masked_select(const Tensor& mask,
                       Caller caller = Caller::current()) const;  // realizes mask
  Tensor masked_select(const Tensor& mask, int64_t size, Scalar fill_value = 0,
                       Caller caller = Caller::current()) const;
  Tensor nonzero(Caller caller = Caller::current()) const;  // realizes
  Tensor nonzero(int64_t size, Scalar fill_value = 0, Caller caller = Caller::current()) const;
  // Stable. NaN is the largest number: last, or first where descending; so it is to topk.
  std::pair<Tensor, Tensor> sort(int64_t dim = -1, bool descending = false,
                                 Caller caller = Caller::current()) const;
  Tensor argsort(int64_t dim = -1, bool descending = false,
                 Caller caller = Caller::current()) const;
  std::pair<Tensor, Tensor> topk(int64_t k, int64_t dim = -1, bool largest = true,
                                 bool sorted = true, Caller caller = Caller::current()) const;
  Tensor one_hot(int64_t num_classes, Caller caller = Caller::current()) const;  // i32

  // --- layers and losses -------------------------------------------------------------------------
  Tensor layernorm(const Axes& axis = -1, double eps = 1e-05,
                   Caller caller = Caller::current()) const;
  Tensor batchnorm(const Tensor& weight, const Tensor& bias, const Tensor& mean,
                   const Tensor& invstd, const Axes& axis = 1,
                   Caller caller = Caller::current()) const;
  Tensor dropout(double p = 0.5, Caller caller = Caller::current()) const;  // in TrainingMode
  // The mask broadcasts to the scores [.., L, S]. Bool: true where a query attends to a key. Float: it
  // is added to the scores, so that minus infinity hides a key. A query that sees no key gives 0, and
  // no gradient flows from it.
  Tensor scaled_dot_product_attention(const Tensor& key, const Tensor& value,
                                      const Tensor& mask = {}, const AttentionOptions& options = {},
                                      Caller caller = Caller::current()) const;
  Tensor binary_crossentropy(const Tensor& target, Reduction reduction = Reduction::Mean,
                             Caller caller = Caller::current()) const;
  Tensor binary_crossentropy_logits(const Tensor& target, Reduction reduction = Reduction::Mean,
                                    const Tensor& pos_weight = {},
                                    Caller caller = Caller::current()) const;
  // Labels are classes, or ignore_index. Any other label makes the loss NaN.
  Tensor sparse_categorical_crossentropy(const Tensor& labels,
                                         const CrossEntropyOptions& options = {},
                                         Caller caller = Caller::current()) const;
  Tensor cross_entropy(const Tensor& target, const CrossEntropyOptions& options = {},
                       Caller caller = Caller::current()) const;  // indices or probabilities
  Tensor nll_loss(const Tensor& target, const Tensor& weight = {},
                  std::optional<int64_t> ignore_index = {}, Reduction reduction = Reduction::Mean,
                  Caller caller = Caller::current()) const;
  // x.sequential({layer, layer...}): each is called with the result of the one before.
  template <class... Layer>
  Tensor sequential(const Layer&... layers) const {
    Tensor x = *this;
    ((x = layers(x)), ...);
    return x;
  }
  // A list of layers, as many as there are when the program runs.
  template <class Layer>
  Tensor sequential(const std::vector<Layer>& layers) const {
    Tensor x = *this;
    for (const Layer& layer : layers) x = layer(x);
    return x;
  }
  Tensor sequential(const std::vector<std::function<Tensor(const Tensor&)>>& layers) const {
    return sequential<std::function<Tensor(const Tensor&)>>(layers);
  }

  // --- lists without braces: x.reshape(2, 3) is x.reshape({2, 3}) --------------------------------
  template <std::integral... N>
  Tensor reshape(ListItem a, ListItem b, N... more) const& {
    return reshape(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  Tensor reshape(ListItem a, ListItem b, N... more) && {
    return of_temporary(reshape(a, b, more...));
  }
  template <std::integral... N>
  Tensor view(ListItem a, ListItem b, N... more) const& {
    return view(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  Tensor view(ListItem a, ListItem b, N... more) && {
    return of_temporary(view(a, b, more...));
  }
  template <std::integral... N>
  Tensor permute(ListItem a, ListItem b, N... more) const& {
    return permute(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  Tensor permute(ListItem a, ListItem b, N... more) && {
    return of_temporary(permute(a, b, more...));
  }
  template <std::integral... N>
  Tensor expand(ListItem a, ListItem b, N... more) const& {
    return expand(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  Tensor expand(ListItem a, ListItem b, N... more) && {
    return of_temporary(expand(a, b, more...));
  }
  template <std::integral... N>
  Tensor flip(ListItem a, ListItem b, N... more) const& {
    return flip(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  Tensor flip(ListItem a, ListItem b, N... more) && {
    return of_temporary(flip(a, b, more...));
  }
  template <std::integral... N>
  Tensor repeat(ListItem a, ListItem b, N... more) const {
    return repeat(Ints{a.value, b.value, static_cast<int64_t>(more)...}, a.caller);
  }
  template <std::integral... N>
  static Tensor empty(ListItem a, ListItem b, N... more) {
    return empty(Ints{a.value, b.value, static_cast<int64_t>(more)...}, default_float(), a.caller);
  }
  template <std::integral... N>
  static Tensor zeros(ListItem a, ListItem b, N... more) {
    return zeros(Ints{a.value, b.value, static_cast<int64_t>(more)...}, default_float(), a.caller);
  }
  template <std::integral... N>
  static Tensor ones(ListItem a, ListItem b, N... more) {
    return ones(Ints{a.value, b.value, static_cast<int64_t>(more)...}, default_float(), a.caller);
  }
  template <std::integral... N>
  static Tensor rand(ListItem a, ListItem b, N... more) {
    return rand(Ints{a.value, b.value, static_cast<int64_t>(more)...}, default_float(), a.caller);
  }
  template <std::integral... N>
  static Tensor randn(ListItem a, ListItem b, N... more) {
    return randn(Ints{a.value, b.value, static_cast<int64_t>(more)...}, default_float(), a.caller);
  }

  // --- views of temporaries: what nobody else has cannot be written to through them --------------
  Tensor bitcast(DType dtype, Caller caller = Caller::current()) && {
    return of_temporary(bitcast(dtype, caller));
  }
  Tensor detach(Caller = Caller::current()) && { return of_temporary(detach()); }
  Tensor reshape(const Ints& shape, Caller caller = Caller::current()) && {
    return of_temporary(reshape(shape, caller));
  }
  Tensor view(const Ints& shape, Caller caller = Caller::current()) && {
    return of_temporary(view(shape, caller));
  }
  Tensor flatten(int64_t start_dim = 0, int64_t end_dim = -1,
                 Caller caller = Caller::current()) && {
    return of_temporary(flatten(start_dim, end_dim, caller));
  }
  Tensor unflatten(int64_t dim, const Ints& sizes, Caller caller = Caller::current()) && {
    return of_temporary(unflatten(dim, sizes, caller));
  }
  Tensor squeeze(std::optional<int64_t> dim = {}, Caller caller = Caller::current()) && {
    return of_temporary(squeeze(dim, caller));
  }
  Tensor unsqueeze(int64_t dim, Caller caller = Caller::current()) && {
    return of_temporary(unsqueeze(dim, caller));
  }
  Tensor permute(const Ints& order, Caller caller = Caller::current()) && {
    return of_temporary(permute(order, caller));
  }
  Tensor transpose(int64_t dim0 = 1, int64_t dim1 = 0, Caller caller = Caller::current()) && {
    return of_temporary(transpose(dim0, dim1, caller));
  }
  Tensor T(Caller = Caller::current()) && { return of_temporary(T()); }
  Tensor expand(const Ints& shape, Caller caller = Caller::current()) && {
    return of_temporary(expand(shape, caller));
  }
  Tensor shrink(const Pairs& bounds, Caller caller = Caller::current()) && {
    return of_temporary(shrink(bounds, caller));
  }
  Tensor shrink_to(const Ints& shape, Caller caller = Caller::current()) && {
    return of_temporary(shrink_to(shape, caller));
  }
  Tensor flip(const Ints& axes, Caller caller = Caller::current()) && {
    return of_temporary(flip(axes, caller));
  }
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1,
                  Caller caller = Caller::current()) && {
    return of_temporary(diagonal(offset, dim1, dim2, caller));
  }
  Tensor unfold(int64_t dim, int64_t size, int64_t step, Caller caller = Caller::current()) && {
    return of_temporary(unfold(dim, size, step, caller));
  }
  Tensor rearrange(const std::string& formula,
                   const std::vector<std::pair<std::string, int64_t>>& sizes = {},
                   Caller caller = Caller::current()) && {
    return of_temporary(rearrange(formula, sizes, caller));
  }
  Tensor operator[](const Index& index) && { return of_temporary((*this)[index]); }
  Tensor operator[](std::initializer_list<Index> index) && { return of_temporary((*this)[index]); }
  Tensor operator[](const std::vector<Index>& index) && { return of_temporary((*this)[index]); }
  Tensor at(const std::vector<Index>& index) && { return of_temporary(at(index)); }
  std::vector<Tensor> split(int64_t size, int64_t dim = 0, Caller caller = Caller::current()) && {
    return of_temporary(split(size, dim, caller));
  }
  std::vector<Tensor> split(const Dims& sizes, int64_t dim = 0,
                            Caller caller = Caller::current()) && {
    return of_temporary(split(sizes, dim, caller));
  }
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0, Caller caller = Caller::current()) && {
    return of_temporary(chunk(chunks, dim, caller));
  }

 private:
  Tensor of_temporary(Tensor view) const;
  std::vector<Tensor> of_temporary(std::vector<Tensor> views) const;
  static Tensor arange_of(const StatePtr& size, std::optional<DType> dtype, Caller caller);

  StatePtr state_;
};

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim = 0, Caller caller = Caller::current());
Tensor stack(const std::vector<Tensor>& tensors, int64_t dim = 0,  // along a new dim
             Caller caller = Caller::current());

struct Tensor::Svd {
  Tensor u, s, vt;
};

// A tensor that a stream prints, with the line that does.
struct Printed {
  const Tensor& tensor;
  Caller caller;
  Printed(const Tensor& t, Caller c = Caller::current()) : tensor(t), caller(c) {}  // NOLINT
};

// Values as nested lists, long ones abridged, then type and shape. Realizes; of more than 64 MiB
// only what is shown is computed, and the tensor stays as it is. UserError inside of a captured step, which
// has no values yet.
std::ostream& operator<<(std::ostream& out, const Printed& printed);
std::ostream& operator<<(std::ostream& out, const TensorSharding& sharding);

template <class E>
Tensor::Tensor(const std::vector<E>& values, const Ints& shape, Caller caller)
    : Tensor(std::as_bytes(std::span<const E>(values)), shape, dtype_of<E>(), caller) {}
template <>
inline Tensor::Tensor(const std::vector<bool>& values, const Ints& shape, Caller caller) {
  std::vector<uint8_t> bytes(values.begin(), values.end());
  *this = Tensor(std::as_bytes(std::span<const uint8_t>(bytes)), shape, DType::Bool, caller);
}

}  // namespace tinyshard
