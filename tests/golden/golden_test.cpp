// Every recorded case of the Tensor API, one test each: a table says which call an op is. Cases of
// layers and optimizers run in tests/core/nn; the lists below name what does not run, and why.
#include <cmath>
#include <functional>
#include <iostream>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "tests/golden/golden_case.h"

namespace tinyshard::golden {
namespace {

using Tensors = std::vector<Tensor>;
using Run = std::function<Tensors(const Case&)>;

// --- what does not run ---------------------------------------------------------------------------

// Ops without a call yet.
const std::set<std::string> kNotCovered = {};

// A wrong name of an option is a value of no enum, and nothing converts to one; a text is no bool.
// So the compiler refuses the calls of these cases, as it takes those with an option that exists.
template <class T, class Option>
concept Gelu = requires(T x, Option o) { x.gelu(o); };
template <class T, class Option>
concept Div = requires(T x, Option o) { x.div(x, o); };
template <class T, class Option>
concept Meshgrid = requires(Option o) { T::meshgrid({}, o); };
template <class T, class Option>
concept Interpolate = requires(T x, Option o) { x.interpolate({2, 2}, o); };
template <class T, class Source>
concept ScatterWith = requires(T x, Source s) { x.scatter(0, x, s, ScatterReduce::Sum); };
template <class T, class Option>
concept Scattered = requires(T x, Option o) { x.scatter_reduce(0, x, x, o); };
template <class T, class Option>
concept Crossentropy = requires(T x, Option o) { x.binary_crossentropy(x, o); };
template <class T, class Option>
concept NllLoss = requires(T x, Option o) { x.nll_loss(x, x, std::nullopt, o); };

using Text = const char*;
static_assert(Gelu<Tensor, bool> && !Gelu<Tensor, Text>);
static_assert(Div<Tensor, Rounding> && !Div<Tensor, Text>);
static_assert(Meshgrid<Tensor, bool> && !Meshgrid<Tensor, Text>);
static_assert(Interpolate<Tensor, Interpolation> && !Interpolate<Tensor, Text>);
static_assert(ScatterWith<Tensor, double> && !ScatterWith<Tensor, Tensor>);
static_assert(Scattered<Tensor, ScatterReduce> && !Scattered<Tensor, Text>);
static_assert(Crossentropy<Tensor, Reduction> && !Crossentropy<Tensor, Text>);
static_assert(NllLoss<Tensor, Reduction> && !NllLoss<Tensor, Text>);

const std::set<std::string> kRefusedByTheCompiler = {
    "gelu/bad_approximate",
    "div/bad_rounding_mode",
    "meshgrid/bad_indexing",
    "interpolate/bad_mode",
    "scatter/tensor_src_reduce",
    "scatter_reduce/bad_reduce",
    "binary_crossentropy/bad_reduction",
    "nll_loss/bad_reduction",
};

bool is_nn(const json& c) { return c.at("op").get<std::string>().starts_with("nn."); }
bool runs(const json& c) {
  return !is_nn(c) && !kNotCovered.contains(c.at("op")) &&
         !kRefusedByTheCompiler.contains(c.at("name"));
}

// --- arguments that are enums
// ----------------------------------------------------------------------

Reduction reduction(const Case& c) {
  std::string text = c.text("reduction", "mean");
  return text == "mean" ? Reduction::Mean : text == "sum" ? Reduction::Sum : Reduction::None;
}

CrossEntropyOptions cross_entropy_options(const Case& c) {
  return {c.integer("ignore_index", -1), c.real("label_smoothing", 0), reduction(c)};
}

PoolOptions pool_options(const Case& c) {
  PoolOptions o;
  if (c.has("stride")) o.stride = c.ints("stride");
  o.dilation = c.ints("dilation", 1), o.padding = c.ints("padding", 0);
  o.ceil_mode = c.flag("ceil_mode"), o.count_include_pad = c.flag("count_include_pad", true);
  return o;
}

// (before, after) per dim from pairs, or flat from the last dim to the first.
Tensor pad(const Case& c) {
  const json& given = c.argument("padding");
  int64_t rank = c.in().ndim();
  Pairs padding(static_cast<size_t>(rank), {0, 0});
  if (given[0].is_array() || given[0].is_null()) {
    for (size_t i = 0; i < given.size(); ++i) {
      if (!given[i].is_null())
        padding[i] = {given[i][0].get<int64_t>(), given[i][1].get<int64_t>()};
    }
  } else {
    for (size_t i = 0; i + 1 < given.size(); i += 2) {
      padding[padding.size() - 1 - i / 2] = {given[i].get<int64_t>(), given[i + 1].get<int64_t>()};
    }
  }
  std::string mode = c.text("mode", "constant");
  return c.in().pad(padding, c.has("value") ? c.scalar("value") : Scalar(0),
                    mode == "reflect"     ? PadMode::Reflect
                    : mode == "replicate" ? PadMode::Replicate
                    : mode == "circular"  ? PadMode::Circular
                                          : PadMode::Constant);
}

Pairs bounds(const Case& c) {
  Pairs out;
  const json& given = c.argument("arg");
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].is_null()) {
      out.emplace_back(0, c.in().shape(static_cast<int64_t>(i)));
    } else {
      out.emplace_back(given[i][0].get<int64_t>(), given[i][1].get<int64_t>());
    }
  }
  return out;
}

Ints shape_with_kept(const Case& c) { return c.ints("shape"); }  // null is -1: expand keeps those

Tensors split(const Case& c) {
  if (c.argument("sizes").is_array()) return c.in().split(c.ints("sizes").values, c.integer("dim"));
  return c.in().split(c.integer("sizes"), c.integer("dim"));
}

Tensors max_pool(const Case& c) {
  Ints kernel = c.ints("kernel_size", {2, 2});
  if (!c.flag("return_indices")) return {c.in().max_pool2d(kernel, pool_options(c))};
  auto [values, indices] = c.in().max_pool2d_with_indices(kernel, pool_options(c));
  return {values, indices};
}

Tensor arange(const Case& c) {
  if (!c.has("stop")) return Tensor::arange(c.scalar("start"), c.maybe_dtype("dtype"));
  return Tensor::arange(c.scalar("start"), c.scalar("stop"),
                        c.has("step") ? c.scalar("step") : Scalar(1), c.maybe_dtype("dtype"));
}

Tensor full(const Case& c) {
  if (c.has("dtype"))
    return Tensor::full(c.ints("shape"), c.scalar("fill_value"), c.dtype("dtype", DType::F32));
  return Tensor::full(c.ints("shape"), c.scalar("fill_value"));
}

Tensor interpolate(const Case& c) {
  std::string mode = c.text("mode", "linear");
  return c.in().interpolate(c.ints("size"),
                            mode == "nearest"         ? Interpolation::Nearest
                            : mode == "nearest-exact" ? Interpolation::NearestExact
                                                      : Interpolation::Linear,
                            c.flag("align_corners"));
}

Tensor scatter(const Case& c) {
  std::string reduce = c.text("reduce");
  int64_t dim = c.integer("dim");
  Operand src = c.operand(2, "src");
  if (reduce.empty()) return c.in().scatter(dim, c.in(1), src);
  return c.in().scatter(dim, c.in(1), src.scalar,
                        reduce == "add"        ? ScatterReduce::Sum
                        : reduce == "multiply" ? ScatterReduce::Prod
                                               : ScatterReduce::Mean);
}

Tensor scatter_reduce(const Case& c) {
  static const std::map<std::string, ScatterReduce> kNames = {{"sum", ScatterReduce::Sum},
                                                              {"prod", ScatterReduce::Prod},
                                                              {"mean", ScatterReduce::Mean},
                                                              {"amax", ScatterReduce::Amax},
                                                              {"amin", ScatterReduce::Amin}};
  return c.in().scatter_reduce(c.integer("dim"), c.in(1), c.operand(2, "src"),
                               kNames.at(c.text("reduce")), c.flag("include_self", true));
}

Tensor rearrange(const Case& c) {
  std::vector<std::pair<std::string, int64_t>> sizes;
  if (c.has("sizes")) {
    for (const auto& [key, value] : c.argument("sizes").items())
      sizes.emplace_back(key, value.get<int64_t>());
  }
  return c.in().rearrange(c.text("formula"), sizes);
}

Tensor setitem(const Case& c) {
  Tensor x = c.in().clone();
  x.setitem(c.index(), c.operand(1, "value"));
  return x;
}

// The two expressions that are recorded.
Tensor expression(const Case& c) {
  const Tensor& x = c.in();
  if (c.text("expr") == "((x*x).sum()*x).sum()") return ((x * x).sum() * x).sum();
  return (x.permute({1, 0}).flip(0).reshape({2, 6}).shrink({{0, 2}, {1, 4}}) * 3.0).sum(1);
}

Rounding rounding(const Case& c) {
  std::string mode = c.text("rounding_mode");
  return mode == "trunc" ? Rounding::Trunc : mode == "floor" ? Rounding::Floor : Rounding::None;
}

Tensors pair(const std::pair<Tensor, Tensor>& p) { return {p.first, p.second}; }

// --- the table
// -------------------------------------------------------------------------------------

template <class F>
Run one(F f) {
  return [f](const Case& c) -> Tensors { return {f(c)}; };
}
Run unary(Tensor (Tensor::*method)() const) {
  return one([method](const Case& c) { return (c.in().*method)(); });
}
Run binary(Tensor (Tensor::*method)(const Operand&) const) {
  return one([method](const Case& c) { return (c.in().*method)(c.operand(1, "x")); });
}
template <class F>
Run reversible(F f) {
  return one([f](const Case& c) {
    Operand x = c.operand(1, "x");
    return c.flag("reverse") ? f(x, c.in(), c) : f(c.in(), x, c);
  });
}
Run reduction_of(Tensor (Tensor::*method)(const Axes&, bool, Caller) const) {
  return one([method](const Case& c) {
    return (c.in().*method)(c.axes("axis"), c.flag("keepdim"), Caller::current());
  });
}
Run along(Tensor (Tensor::*method)(int64_t, std::optional<DType>, Caller) const) {
  return one([method](const Case& c) {
    return (c.in().*method)(c.integer("axis", -1), c.maybe_dtype("dtype"), Caller::current());
  });
}

const std::map<std::string, Run>& table() {
  static const std::map<std::string, Run> rows = {
      // one operand
      {"neg", unary(&Tensor::neg)},
      {"log", unary(&Tensor::log)},
      {"log2", unary(&Tensor::log2)},
      {"log10", unary(&Tensor::log10)},
      {"exp", unary(&Tensor::exp)},
      {"exp2", unary(&Tensor::exp2)},
      {"sqrt", unary(&Tensor::sqrt)},
      {"rsqrt", unary(&Tensor::rsqrt)},
      {"sin", unary(&Tensor::sin)},
      {"cos", unary(&Tensor::cos)},
      {"tan", unary(&Tensor::tan)},
      {"asin", unary(&Tensor::asin)},
      {"acos", unary(&Tensor::acos)},
      {"atan", unary(&Tensor::atan)},
      {"sinh", unary(&Tensor::sinh)},
      {"cosh", unary(&Tensor::cosh)},
      {"tanh", unary(&Tensor::tanh)},
      {"asinh", unary(&Tensor::asinh)},
      {"acosh", unary(&Tensor::acosh)},
      {"atanh", unary(&Tensor::atanh)},
      {"erf", unary(&Tensor::erf)},
      {"square", unary(&Tensor::square)},
      {"abs", unary(&Tensor::abs)},
      {"sign", unary(&Tensor::sign)},
      {"reciprocal", unary(&Tensor::reciprocal)},
      {"trunc", unary(&Tensor::trunc)},
      {"ceil", unary(&Tensor::ceil)},
      {"floor", unary(&Tensor::floor)},
      {"round", unary(&Tensor::round)},
      {"isnan", unary(&Tensor::isnan)},
      {"isfinite", unary(&Tensor::isfinite)},
      {"isinf", one([](const Case& c) { return c.in().isinf(c.flag("detect_positive", true), c.flag("detect_negative", true)); })},
      {"logical_not", unary(&Tensor::logical_not)},
      {"bitwise_not", one([](const Case& c) { return c.in().bitwise_not(); })},
      {"relu", unary(&Tensor::relu)},
      {"relu6", unary(&Tensor::relu6)},
      {"sigmoid", unary(&Tensor::sigmoid)},
      {"logsigmoid", unary(&Tensor::logsigmoid)},
      {"hardsigmoid", one([](const Case& c) { return c.in().hardsigmoid(c.real("alpha", 1.0 / 6), c.real("beta", 0.5)); })},
      {"hardswish", unary(&Tensor::hardswish)},
      {"hardtanh", one([](const Case& c) { return c.in().hardtanh(c.real("min_val", -1), c.real("max_val", 1)); })},
      {"elu", one([](const Case& c) { return c.in().elu(c.real("alpha", 1)); })},
      {"celu", one([](const Case& c) { return c.in().celu(c.real("alpha", 1)); })},
      {"selu", one([](const Case& c) { return c.in().selu(c.real("alpha", 1.67326), c.real("gamma", 1.0507)); })},
      {"swish", unary(&Tensor::swish)},
      {"silu", unary(&Tensor::silu)},
      {"leaky_relu", one([](const Case& c) { return c.in().leaky_relu(c.real("neg_slope", 0.01)); })},
      {"mish", unary(&Tensor::mish)},
      {"softplus", one([](const Case& c) { return c.in().softplus(c.real("beta", 1)); })},
      {"softsign", unary(&Tensor::softsign)},
      {"gelu", one([](const Case& c) { return c.in().gelu(c.text("approximate", "tanh") == "none"); })},
      {"quick_gelu", unary(&Tensor::quick_gelu)},
      {"clamp", one([](const Case& c) { return c.in().clamp(c.maybe_scalar("min_"), c.maybe_scalar("max_")); })},
      {"clip", one([](const Case& c) { return c.in().clip(c.maybe_scalar("min_"), c.maybe_scalar("max_")); })},
      // several operands
      {"add", reversible([](const auto& a, const auto& b, const Case&) { return a + b; })},
      {"sub", reversible([](const auto& a, const auto& b, const Case&) { return a - b; })},
      {"mul", reversible([](const auto& a, const auto& b, const Case&) { return a * b; })},
      {"div", reversible([](const auto& a, const auto& b, const Case& c) { return div(a, b, rounding(c)); })},
      {"mod", binary(&Tensor::mod)},
      {"fmod", binary(&Tensor::fmod)},
      {"pow", reversible([](const auto& a, const auto& b, const Case&) { return pow(a, b); })},
      {"maximum", binary(&Tensor::maximum)},
      {"minimum", binary(&Tensor::minimum)},
      {"bitwise_and", binary(&Tensor::bitwise_and)},
      {"bitwise_or", binary(&Tensor::bitwise_or)},
      {"bitwise_xor", binary(&Tensor::bitwise_xor)},
      {"lshift", binary(&Tensor::lshift)},
      {"rshift", binary(&Tensor::rshift)},
      {"lt", binary(&Tensor::lt)},
      {"gt", binary(&Tensor::gt)},
      {"le", binary(&Tensor::le)},
      {"ge", binary(&Tensor::ge)},
      {"eq", binary(&Tensor::eq)},
      {"ne", binary(&Tensor::ne)},
      {"where", one([](const Case& c) { return c.in().where(c.operand(1, "x"), c.operand(2, "y")); })},
      {"lerp", one([](const Case& c) { return c.in().lerp(c.operand(1, "end"), c.operand(2, "weight")); })},
      {"copysign", one([](const Case& c) { return c.in().copysign(c.operand(1, "other")); })},
      {"logaddexp", one([](const Case& c) { return c.in().logaddexp(c.operand(1, "other")); })},
      {"isclose", one([](const Case& c) { return c.in().isclose(c.operand(1, "other"), c.real("rtol", 1e-5), c.real("atol", 1e-8), c.flag("equal_nan")); })},
      {"allclose", one([](const Case& c) { return Tensor(Scalar(c.in().allclose(c.operand(1, "other"), c.real("rtol", 1e-5), c.real("atol", 1e-8), c.flag("equal_nan")))); })},
      {"masked_fill", one([](const Case& c) { return c.in().masked_fill(c.in(1), c.operand(2, "value")); })},
      // types
      {"cast", one([](const Case& c) { return c.in().cast(c.dtype("dtype", DType::F32)); })},
      {"bitcast", one([](const Case& c) { return c.in().bitcast(c.dtype("dtype", DType::F32)); })},
      {"float", unary(&Tensor::to_float)},
      {"half", unary(&Tensor::to_half)},
      {"double", unary(&Tensor::to_double)},
      {"bfloat16", unary(&Tensor::to_bfloat16)},
      {"int", unary(&Tensor::to_int)},
      {"long", unary(&Tensor::to_long)},
      {"short", unary(&Tensor::to_short)},
      {"bool", unary(&Tensor::to_bool)},
      // movement
      {"reshape", one([](const Case& c) { return c.in().reshape(c.ints("shape")); })},
      {"view", one([](const Case& c) { return c.in().view(c.ints("shape")); })},
      {"flatten", one([](const Case& c) { return c.in().flatten(c.integer("start_dim", 0), c.integer("end_dim", -1)); })},
      {"unflatten", one([](const Case& c) { return c.in().unflatten(c.integer("dim"), c.ints("sizes")); })},
      {"permute", one([](const Case& c) { return c.in().permute(c.ints("order")); })},
      {"transpose", one([](const Case& c) { return c.in().transpose(c.integer("dim0", 1), c.integer("dim1", 0)); })},
      {"T", unary(&Tensor::T)},
      {"expand", one([](const Case& c) { return c.in().expand(shape_with_kept(c)); })},
      {"flip", one([](const Case& c) { return c.in().flip(c.ints("axis")); })},
      {"shrink", one([](const Case& c) { return c.in().shrink(bounds(c)); })},
      {"pad", one(pad)},
      {"squeeze", one([](const Case& c) { return c.in().squeeze(c.maybe_integer("dim")); })},
      {"unsqueeze", one([](const Case& c) { return c.in().unsqueeze(c.integer("dim")); })},
      {"cat", one([](const Case& c) { return cat(c.list(), c.integer("dim", 0)); })},
      {"stack", one([](const Case& c) { return stack(c.list(), c.integer("dim", 0)); })},
      {"repeat", one([](const Case& c) { return c.in().repeat(c.ints("repeats")); })},
      {"repeat_interleave", one([](const Case& c) { return c.in().repeat_interleave(c.integer("repeats"), c.maybe_integer("dim")); })},
      {"split", split},
      {"chunk", [](const Case& c) { return c.in().chunk(c.integer("chunks"), c.integer("dim")); }},
      {"unfold", one([](const Case& c) { return c.in().unfold(c.integer("dim"), c.integer("size"), c.integer("step")); })},
      {"meshgrid", [](const Case& c) { return Tensor::meshgrid(c.list(), c.text("indexing", "ij") == "xy"); }},
      {"roll", one([](const Case& c) { return c.in().roll(c.ints("shifts"), c.axes("dims")); })},
      {"diag", one([](const Case& c) { return c.in().diag(); })},
      {"diagonal", one([](const Case& c) { return c.in().diagonal(c.integer("offset", 0), c.integer("dim1", 0), c.integer("dim2", 1)); })},
      {"rearrange", one(rearrange)},
      {"triu", one([](const Case& c) { return c.in().triu(c.integer("diagonal", 0)); })},
      {"tril", one([](const Case& c) { return c.in().tril(c.integer("diagonal", 0)); })},
      {"gather", one([](const Case& c) { return c.in().gather(c.integer("dim"), c.in(1)); })},
      {"getitem", one([](const Case& c) { return c.in().at(c.index()); })},
      {"setitem", one(setitem)},
      // creation
      {"arange", one(arange)},
      {"linspace", one([](const Case& c) { return Tensor::linspace(c.scalar("start"), c.scalar("stop"), c.integer("steps"), c.maybe_dtype("dtype")); })},
      {"eye", one([](const Case& c) { return Tensor::eye(c.integer("n"), c.maybe_integer("m"), c.dtype("dtype", DType::F32)); })},
      {"zeros", one([](const Case& c) { return Tensor::zeros(c.ints("shape"), c.dtype("dtype", DType::F32)); })},
      {"ones", one([](const Case& c) { return Tensor::ones(c.ints("shape"), c.dtype("dtype", DType::F32)); })},
      {"full", one(full)},
      {"full_like", one([](const Case& c) { return c.in().full_like(c.scalar("fill_value"), c.maybe_dtype("dtype")); })},
      {"zeros_like", one([](const Case& c) { return c.in().zeros_like(); })},
      {"ones_like", one([](const Case& c) { return c.in().ones_like(); })},
      {"one_hot", one([](const Case& c) { return c.in().one_hot(c.integer("num_classes")); })},
      // storage and gradients
      {"contiguous", unary(&Tensor::contiguous)},
      {"detach", unary(&Tensor::detach)},
      {"clone", unary(&Tensor::clone)},
      {"contiguous_backward", unary(&Tensor::contiguous_backward)},
      {"realize", one([](const Case& c) { return c.in().realize(); })},
      {"gradient", one(expression)},
      // reductions and scans
      {"sum", one([](const Case& c) { return c.in().sum(c.axes("axis"), c.flag("keepdim"), c.maybe_dtype("dtype")); })},
      {"prod", one([](const Case& c) { return c.in().prod(c.axes("axis"), c.flag("keepdim"), c.maybe_dtype("dtype")); })},
      {"max", reduction_of(&Tensor::max)},
      {"min", reduction_of(&Tensor::min)},
      {"mean", reduction_of(&Tensor::mean)},
      {"any", reduction_of(&Tensor::any)},
      {"all", reduction_of(&Tensor::all)},
      {"logsumexp", reduction_of(&Tensor::logsumexp)},
      {"var", one([](const Case& c) { return c.in().var(c.axes("axis"), c.flag("keepdim"), c.integer("correction", 1)); })},
      {"std", one([](const Case& c) { return c.in().std(c.axes("axis"), c.flag("keepdim"), c.integer("correction", 1)); })},
      {"var_mean", [](const Case& c) { return pair(c.in().var_mean(c.axes("axis"), c.flag("keepdim"), c.integer("correction", 1))); }},
      {"std_mean", [](const Case& c) { return pair(c.in().std_mean(c.axes("axis"), c.flag("keepdim"), c.integer("correction", 1))); }},
      {"softmax", along(&Tensor::softmax)},
      {"log_softmax", along(&Tensor::log_softmax)},
      {"softmin", along(&Tensor::softmin)},
      {"normalize", one([](const Case& c) { return c.in().normalize(c.real("p", 2), c.integer("dim", 1)); })},
      {"argmax", one([](const Case& c) { return c.in().argmax(c.maybe_integer("axis"), c.flag("keepdim")); })},
      {"argmin", one([](const Case& c) { return c.in().argmin(c.maybe_integer("axis"), c.flag("keepdim")); })},
      {"cumsum", one([](const Case& c) { return c.in().cumsum(c.integer("axis", 0)); })},
      {"cumprod", one([](const Case& c) { return c.in().cumprod(c.integer("axis", 0)); })},
      {"cummax", [](const Case& c) { return pair(c.in().cummax(c.integer("axis", 0))); }},
      {"cummin", [](const Case& c) { return pair(c.in().cummin(c.integer("axis", 0))); }},
      {"logcumsumexp", one([](const Case& c) { return c.in().logcumsumexp(c.integer("axis", 0)); })},
      // products
      {"matmul", one([](const Case& c) { return c.flag("reverse") ? c.in(1).matmul(c.in()) : c.in().matmul(c.in(1), c.maybe_dtype("dtype")); })},
      {"dot", one([](const Case& c) { return c.in().dot(c.in(1), c.maybe_dtype("dtype")); })},
      {"linear", one([](const Case& c) { return c.in().linear(c.in(1), c.optional_in(2), c.maybe_dtype("dtype")); })},
      {"einsum", one([](const Case& c) { return Tensor::einsum(c.text("formula"), c.list(), c.maybe_dtype("dtype")); })},
      {"conv2d", one([](const Case& c) {
         return c.in().conv2d(c.in(1), c.optional_in(2),
                              {c.integer("groups", 1), c.ints("stride", 1), c.ints("dilation", 1), c.ints("padding", 0), c.maybe_dtype("dtype")});
       })},
      {"conv_transpose2d", one([](const Case& c) {
         return c.in().conv_transpose2d(c.in(1), c.optional_in(2),
                                        {c.integer("groups", 1), c.ints("stride", 1), c.ints("dilation", 1), c.ints("padding", 0),
                                         c.ints("output_padding", 0)});
       })},
      {"max_pool2d", max_pool},
      {"avg_pool2d", one([](const Case& c) { return c.in().avg_pool2d(c.ints("kernel_size", {2, 2}), pool_options(c)); })},
      {"max_unpool2d", one([](const Case& c) { return c.in().max_unpool2d(c.in(1), c.ints("kernel_size", {2, 2}), pool_options(c),
                                     c.has("output_size") ? std::optional(c.ints("output_size")) : std::nullopt); })},
      {"interpolate", one(interpolate)},
      {"qr", [](const Case& c) { return pair(c.in().qr()); }},
      {"svd", [](const Case& c) {
         auto [u, s, vt] = c.in().svd(c.flag("full_matrices", true));
         return Tensors{u, s, vt};
       }},
      // indices, sorting
      {"scatter", one(scatter)},
      {"scatter_reduce", one(scatter_reduce)},
      {"masked_select", one([](const Case& c) { return c.in().masked_select(c.in(1)); })},
      {"nonzero", one([](const Case& c) { return c.in().nonzero(); })},
      {"sort", [](const Case& c) { return pair(c.in().sort(c.integer("dim", -1), c.flag("descending"))); }},
      {"argsort", one([](const Case& c) { return c.in().argsort(c.integer("dim", -1), c.flag("descending")); })},
      {"topk", [](const Case& c) { return pair(c.in().topk(c.integer("k"), c.integer("dim", -1), c.flag("largest", true), c.flag("sorted_", true))); }},
      {"multinomial", one([](const Case& c) { return c.in().multinomial(c.integer("num_samples", 1), c.flag("replacement")); })},
      // layers and losses
      {"layernorm", one([](const Case& c) { return c.in().layernorm(c.has("axis") ? c.axes("axis") : Axes(-1), c.real("eps", 1e-5)); })},
      {"batchnorm", one([](const Case& c) {
         return c.in().batchnorm(c.optional_in(1), c.optional_in(2), c.in(3), c.in(4), c.has("axis") ? c.axes("axis") : Axes(1));
       })},
      {"dropout", one([](const Case& c) { return c.in().dropout(c.real("p", 0.5)); })},
      {"scaled_dot_product_attention", one([](const Case& c) {
         return c.in().scaled_dot_product_attention(c.in(1), c.in(2), c.optional_in(3),
                                                    {c.real("dropout_p", 0), c.flag("is_causal"), c.flag("enable_gqa")});
       })},
      {"binary_crossentropy", one([](const Case& c) { return c.in().binary_crossentropy(c.in(1), reduction(c)); })},
      {"binary_crossentropy_logits", one([](const Case& c) { return c.in().binary_crossentropy_logits(c.in(1), reduction(c), c.optional_in(2)); })},
      {"cross_entropy", one([](const Case& c) { return c.in().cross_entropy(c.in(1), cross_entropy_options(c)); })},
      {"sparse_categorical_crossentropy", one([](const Case& c) { return c.in().sparse_categorical_crossentropy(c.in(1), cross_entropy_options(c)); })},
      {"nll_loss", one([](const Case& c) { return c.in().nll_loss(c.in(1), c.optional_in(2), c.maybe_integer("ignore_index"), reduction(c)); })},
  };
  return rows;
}

// --- plain values
// ----------------------------------------------------------------------------------

json nested(const std::vector<double>& values, const Dims& shape, size_t dim, size_t& next) {
  if (dim == shape.size()) return values[next++];
  json list = json::array();
  for (int64_t i = 0; i < shape[dim]; ++i) list.push_back(nested(values, shape, dim + 1, next));
  return list;
}

bool same_value(const json& a, const json& b) {
  if (a.is_array()) {
    if (!b.is_array() || a.size() != b.size()) return false;
    for (size_t i = 0; i < a.size(); ++i) {
      if (!same_value(a[i], b[i])) return false;
    }
    return true;
  }
  auto number = [](const json& v) {
    return v.is_boolean() ? double(v.get<bool>()) : v.get<double>();
  };
  return number(a) == number(b);
}

json value_of(const Case& c) {
  const Tensor& x = c.in();
  std::string op = c.op();
  if (op == "ndim") return x.ndim();
  if (op == "numel") return x.numel();
  if (op == "element_size") return x.element_size();
  if (op == "nbytes") return x.nbytes();
  if (op == "is_floating_point") return x.is_floating_point();
  if (op == "size") return x.size(c.integer("dim"));
  if (op == "item") return x.item<double>();
  if (op == "tolist") {
    size_t next = 0;
    return nested(x.to_vector<double>(), x.shape(), 0, next);
  }
  return nullptr;
}

// --- decompositions
// --------------------------------------------------------------------------------

void expect_near(const Tensor& a, const Tensor& b, double tolerance, const char* what) {
  ASSERT_EQ(a.shape(), b.shape()) << what;
  std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(x[i], y[i], tolerance) << what << ", element " << i;
}

void expect_orthonormal_columns(const Tensor& q, double tolerance, const char* what) {
  Tensor gram = q.transpose(-2, -1).matmul(q);
  expect_near(gram, Tensor::eye(q.shape(-1)).expand(gram.shape()), tolerance, what);
}

void check_decomposition(const Case& c, const Tensors& parts) {
  double tolerance = c.all().at("atol").get<double>();
  const json& shapes = c.all().at("shapes");
  for (size_t i = 0; i < parts.size(); ++i) ASSERT_EQ(parts[i].shape(), shapes[i].get<Dims>());
  const Tensor& x = c.in();
  if (c.op() == "qr") {
    expect_near(parts[0].matmul(parts[1]), x, tolerance, "Q R");
    expect_orthonormal_columns(parts[0], tolerance, "Q");
    expect_near(parts[1], parts[1].triu(), tolerance, "R");
    return;
  }
  int64_t k = parts[1].shape(-1);
  Tensor u = parts[0][{kEllipsis, Slice({}, k)}], vt = parts[2][{kEllipsis, Slice({}, k), Slice()}];
  expect_near((u * parts[1].unsqueeze(-2)).matmul(vt), x, tolerance, "U S V");
  expect_orthonormal_columns(parts[0], tolerance, "U");
  expect_orthonormal_columns(parts[2].transpose(-2, -1), tolerance, "V");
  expect_near(parts[1], stored(c.all().at("outputs")[1]), tolerance, "S");
}

// --- the tests
// -------------------------------------------------------------------------------------

class Golden : public ::testing::TestWithParam<size_t> {};

TEST_P(Golden, Case) {
  const json& description = cases()[GetParam()];
  SCOPED_TRACE(description.at("name").get<std::string>() + " " + description.at("args").dump());
  Case c(description);
  TrainingMode mode(description.value("training", false));
  if (description.contains("value")) {
    EXPECT_TRUE(same_value(value_of(c), description.at("value"))) << value_of(c);
    return;
  }
  auto row = table().find(c.op());
  ASSERT_NE(row, table().end()) << "no row in the table for " << c.op();
  if (c.expects_error()) {
    try {
      Tensor::realize(row->second(c));
      FAIL() << "no error, though " << description.at("error");
    } catch (const UserError& error) {
      EXPECT_GT(std::string(error.what()).size(), 20u);
    }
    return;
  }
  Tensors outputs = row->second(c);
  EXPECT_EQ(c.unread(), std::vector<std::string>()) << "arguments that the call leaves out";
  if (description.at("check") == "reconstruct") return check_decomposition(c, outputs);
  c.compare_gradients(outputs);  // before the outputs: reading a tensor ends its history
  c.compare(outputs);
}

std::vector<size_t> running() {
  std::vector<size_t> out;
  for (size_t i = 0; i < cases().size(); ++i) {
    if (runs(cases()[i])) out.push_back(i);
  }
  return out;
}

std::string test_name(const ::testing::TestParamInfo<size_t>& info) {
  std::string text = cases()[info.param].at("name");
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  }
  return text;
}

INSTANTIATE_TEST_SUITE_P(Tensor, Golden, ::testing::ValuesIn(running()), test_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Golden);

TEST(GoldenData, IsThere) {
  if (cases().empty()) GTEST_SKIP() << "no recorded cases in " << folder();
  size_t elsewhere = 0, not_covered = 0, refused = 0;
  for (const json& c : cases()) {
    elsewhere += is_nn(c);
    not_covered += kNotCovered.contains(c.at("op"));
    refused += kRefusedByTheCompiler.contains(c.at("name"));
  }
  std::cout << "golden: " << cases().size() << " cases; " << running().size() << " run here, "
            << elsewhere << " in the tests of nn, " << not_covered << " of ops without a call, "
            << refused << " that the compiler refuses\n";
  for (const std::string& op : kNotCovered) std::cout << "golden: no call for " << op << '\n';
}

}  // namespace
}  // namespace tinyshard::golden
