// The table of calls. An argument is asked for under its documented name: what nobody asks for is
// told by Case::unread, so that a row that forgets one cannot pass.
#include "tests/golden/calls.h"

#include <algorithm>
#include <cmath>

#include "tests/golden/expression.h"

namespace tinyshard::golden {
namespace {

// --- arguments that are enums, and calls that need more than a line ---

Reduction reduction(const Case& c) {
  constexpr Reduction kAll[] = {Reduction::Mean, Reduction::Sum, Reduction::None};
  return kAll[c.choice("reduction", {"mean", "sum", "none"})];
}

CrossEntropyOptions cross_entropy_options(const Case& c) {
  return {c.maybe_integer("ignore_index"), c.real("label_smoothing", 0), reduction(c)};
}

PoolOptions pool_options(const Case& c) {
  PoolOptions o;
  if (c.has("stride")) o.stride = c.ints("stride");
  o.dilation = c.ints("dilation", 1), o.padding = c.ints("padding", 0);
  o.ceil_mode = c.flag("ceil_mode"), o.count_include_pad = c.flag("count_include_pad", true);
  return o;
}

// (low, high) per dim; `otherwise` says what stands for null.
template <class Otherwise>
Pairs pairs(const json& list, Otherwise otherwise) {
  if (!list.is_array()) throw Refused("pairs are a list: " + list.dump());
  Pairs out;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_null()) {
      out.push_back(otherwise(static_cast<int64_t>(i)));
    } else if (list[i].is_array() && list[i].size() == 2) {
      out.emplace_back(list[i][0].get<int64_t>(), list[i][1].get<int64_t>());
    } else {
      throw Refused("no pair: " + list[i].dump());
    }
  }
  return out;
}

// (before, after) per dim as pairs, or flat from the last dim to the first.
Tensor pad(const Case& c) {
  const json& given = c.argument("padding");
  const auto nothing = [](int64_t) { return std::pair<int64_t, int64_t>(0, 0); };
  Pairs padding;
  const bool flat = given.is_array() && !given.empty() && given[0].is_number();
  if (flat) {
    if (given.size() % 2 != 0) throw Refused("flat padding without a pair: " + given.dump());
    padding.resize(std::max(given.size() / 2, static_cast<size_t>(c.in().ndim())));
    for (size_t i = 0; i < given.size(); i += 2) {
      padding[padding.size() - 1 - i / 2] = {given[i].get<int64_t>(), given[i + 1].get<int64_t>()};
    }
  } else {
    padding = pairs(given, nothing);
  }
  constexpr PadMode kModes[] = {PadMode::Constant, PadMode::Reflect, PadMode::Replicate,
                                PadMode::Circular};
  const size_t mode = c.choice("mode", {"constant", "reflect", "replicate", "circular"});
  return c.in().pad(padding, c.has("value") ? c.scalar("value") : Scalar(0), kModes[mode]);
}

Pairs bounds(const Case& c) {
  return pairs(c.argument("arg"),
               [&](int64_t dim) { return std::pair<int64_t, int64_t>(0, c.in().shape(dim)); });
}

// The first elements of each dim, or zeros behind the last ones; null keeps the size.
Tensor resized(const Case& c, bool grow) {
  const Ints shape = c.shape("shape");
  Pairs out;
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t size = c.in().shape(static_cast<int64_t>(i));
    if (shape[i] < 0 || (grow ? shape[i] < size : shape[i] > size))
      throw Refused("no such size: " + std::to_string(shape[i]));
    out.emplace_back(0, grow ? shape[i] - size : shape[i]);
  }
  return grow ? c.in().pad(out, c.has("value") ? c.scalar("value") : Scalar(0))
              : c.in().shrink(out);
}

Tensors split(const Case& c) {
  if (c.argument("sizes").is_array())
    return c.in().split(c.ints("sizes").values, c.integer("dim", 0));
  return c.in().split(c.integer("sizes"), c.integer("dim", 0));
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

Tensor conv2d(const Case& c) {
  return c.in().conv2d(c.in(1), c.optional_in(2),
                       {c.integer("groups", 1), c.ints("stride", 1), c.ints("dilation", 1),
                        c.ints("padding", 0), c.maybe_dtype("dtype")});
}

// Selects as many elements as there are, or a given number of them.
Tensor masked_select(const Case& c) {
  if (!c.has("size")) return c.in().masked_select(c.in(1));
  return c.in().masked_select(c.in(1), c.integer("size"),
                              c.has("fill_value") ? c.scalar("fill_value") : Scalar(0));
}

Tensor nonzero(const Case& c) {
  if (!c.has("size")) return c.in().nonzero();
  return c.in().nonzero(c.integer("size"),
                        c.has("fill_value") ? c.scalar("fill_value") : Scalar(0));
}

Tensor interpolate(const Case& c) {
  constexpr Interpolation kModes[] = {Interpolation::Linear, Interpolation::Nearest,
                                      Interpolation::NearestExact};
  return c.in().interpolate(c.ints("size"),
                            kModes[c.choice("mode", {"linear", "nearest", "nearest-exact"})],
                            c.flag("align_corners"));
}

Tensor scatter(const Case& c) {
  const int64_t dim = c.integer("dim");
  const Operand src = c.operand(2, "src");
  if (!c.has("reduce")) return c.in().scatter(dim, c.in(1), src);
  if (src.tensor != nullptr) throw Refused("scatter with a reduction takes a number");
  constexpr ScatterReduce kAll[] = {ScatterReduce::Sum, ScatterReduce::Prod};
  return c.in().scatter(dim, c.in(1), src.scalar, kAll[c.choice("reduce", {"add", "multiply"})]);
}

Tensor scatter_reduce(const Case& c) {
  constexpr ScatterReduce kAll[] = {ScatterReduce::Sum, ScatterReduce::Prod, ScatterReduce::Mean,
                                    ScatterReduce::Amax, ScatterReduce::Amin};
  c.argument("reduce");  // has no default
  return c.in().scatter_reduce(c.integer("dim"), c.in(1), c.operand(2, "src"),
                               kAll[c.choice("reduce", {"sum", "prod", "mean", "amax", "amin"})],
                               c.flag("include_self", true));
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

Rounding rounding(const Case& c) {
  if (!c.has("rounding_mode")) return Rounding::None;
  constexpr Rounding kAll[] = {Rounding::Trunc, Rounding::Floor};
  return kAll[c.choice("rounding_mode", {"trunc", "floor"})];
}

// A number as a tensor of the type that it takes beside x, for calls whose first side is a tensor.
Tensor like(const Operand& x, const Tensor& other) {
  return x.tensor != nullptr ? *x.tensor : other.full_like(x.scalar);
}

Tensors pair(const std::pair<Tensor, Tensor>& p) { return {p.first, p.second}; }

// --- the table ---

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

}  // namespace

const std::map<std::string, Run>& calls() {
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
      {"gelu", one([](const Case& c) { return c.in().gelu(c.choice("approximate", {"tanh", "none"}) == 1); })},
      {"quick_gelu", unary(&Tensor::quick_gelu)},
      {"clamp", one([](const Case& c) { return c.in().clamp(c.maybe_scalar("min_"), c.maybe_scalar("max_")); })},
      {"clip", one([](const Case& c) { return c.in().clip(c.maybe_scalar("min_"), c.maybe_scalar("max_")); })},
      // several operands
      {"add", reversible([](const auto& a, const auto& b, const Case&) { return a + b; })},
      {"sub", reversible([](const auto& a, const auto& b, const Case&) { return a - b; })},
      {"mul", reversible([](const auto& a, const auto& b, const Case&) { return a * b; })},
      {"div", reversible([](const auto& a, const auto& b, const Case& c) { return div(a, b, rounding(c)); })},
      {"mod", reversible([](const auto& a, const auto& b, const Case&) { return a % b; })},
      {"fmod", binary(&Tensor::fmod)},
      {"pow", reversible([](const auto& a, const auto& b, const Case&) { return pow(a, b); })},
      {"maximum", binary(&Tensor::maximum)},
      {"minimum", binary(&Tensor::minimum)},
      {"bitwise_and", reversible([](const auto& a, const auto& b, const Case&) { return a & b; })},
      {"bitwise_or", reversible([](const auto& a, const auto& b, const Case&) { return a | b; })},
      {"bitwise_xor", reversible([](const auto& a, const auto& b, const Case&) { return a ^ b; })},
      {"lshift", one([](const Case& c) {
         const Operand x = c.operand(1, "x");
         return c.flag("reverse") ? like(x, c.in()) << c.in() : c.in() << x;
       })},
      {"rshift", one([](const Case& c) {
         const Operand x = c.operand(1, "x");
         return c.flag("reverse") ? like(x, c.in()) >> c.in() : c.in() >> x;
       })},
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
      {"reshape", one([](const Case& c) { return c.in().reshape(c.shape("shape")); })},
      {"view", one([](const Case& c) { return c.in().view(c.shape("shape")); })},
      {"flatten", one([](const Case& c) { return c.in().flatten(c.integer("start_dim", 0), c.integer("end_dim", -1)); })},
      {"unflatten", one([](const Case& c) { return c.in().unflatten(c.integer("dim"), c.ints("sizes")); })},
      {"permute", one([](const Case& c) { return c.in().permute(c.ints("order")); })},
      {"transpose", one([](const Case& c) { return c.in().transpose(c.integer("dim0", 1), c.integer("dim1", 0)); })},
      {"T", unary(&Tensor::T)},
      {"expand", one([](const Case& c) { return c.in().expand(c.ints("shape")); })},
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
      {"chunk", [](const Case& c) { return c.in().chunk(c.integer("chunks"), c.integer("dim", 0)); }},
      {"unfold", one([](const Case& c) { return c.in().unfold(c.integer("dim"), c.integer("size"), c.integer("step")); })},
      {"meshgrid", [](const Case& c) { return Tensor::meshgrid(c.list(), c.choice("indexing", {"ij", "xy"}) == 1); }},
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
      {"const_like", one([](const Case& c) { return c.in().full_like(c.scalar("b"), c.maybe_dtype("dtype")); })},
      {"shrink_to", one([](const Case& c) { return resized(c, false); })},
      {"pad_to", one([](const Case& c) { return resized(c, true); })},
      {"full_like", one([](const Case& c) { return c.in().full_like(c.scalar("fill_value"), c.maybe_dtype("dtype")); })},
      {"zeros_like", one([](const Case& c) { return c.in().zeros_like(c.maybe_dtype("dtype")); })},
      {"ones_like", one([](const Case& c) { return c.in().ones_like(c.maybe_dtype("dtype")); })},
      {"one_hot", one([](const Case& c) { return c.in().one_hot(c.integer("num_classes")); })},
      // storage and gradients
      {"assign", one([](const Case& c) { return c.in().clone().assign(c.operand(1, "x")); })},
      {"replace", one([](const Case& c) { return c.in().clone().replace(c.in(1)); })},
      {"contiguous", unary(&Tensor::contiguous)},
      {"detach", unary(&Tensor::detach)},
      {"clone", unary(&Tensor::clone)},
      {"contiguous_backward", unary(&Tensor::contiguous_backward)},
      {"realize", one([](const Case& c) { return c.in().realize(); })},
      {"gradient", [](const Case& c) { return evaluate(c); }},
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
      {"normalize", one([](const Case& c) { return c.in().normalize(c.real("p", 2), c.integer("dim", 1), c.real("eps", 1e-12)); })},
      {"argmax", one([](const Case& c) { return c.in().argmax(c.maybe_integer("axis"), c.flag("keepdim")); })},
      {"argmin", one([](const Case& c) { return c.in().argmin(c.maybe_integer("axis"), c.flag("keepdim")); })},
      {"cumsum", one([](const Case& c) { return c.in().cumsum(c.integer("axis", 0)); })},
      {"cumprod", one([](const Case& c) { return c.in().cumprod(c.integer("axis")); })},
      {"cummax", [](const Case& c) { return pair(c.in().cummax(c.integer("axis", 0))); }},
      {"cummin", [](const Case& c) { return pair(c.in().cummin(c.integer("axis", 0))); }},
      {"logcumsumexp", one([](const Case& c) { return c.in().logcumsumexp(c.integer("axis", 0)); })},
      // products
      {"matmul", one([](const Case& c) { return c.flag("reverse") ? c.in(1).matmul(c.in(), c.maybe_dtype("dtype")) : c.in().matmul(c.in(1), c.maybe_dtype("dtype")); })},
      {"dot", one([](const Case& c) { return c.in().dot(c.in(1), c.maybe_dtype("dtype")); })},
      {"linear", one([](const Case& c) { return c.in().linear(c.in(1), c.optional_in(2), c.maybe_dtype("dtype")); })},
      {"image_dot", one([](const Case& c) { return c.in().dot(c.in(1), c.maybe_dtype("dtype")); })},
      {"newton_schulz", one([](const Case& c) {
         return c.in().newton_schulz(c.integer("steps"), c.argument("params").get<std::vector<double>>(), c.real("eps", 1e-7));
       })},
      {"embedding", one([](const Case& c) { return c.in().embedding(c.in(1)); })},
      {"einsum", one([](const Case& c) { return Tensor::einsum(c.text("formula"), c.list(), c.maybe_dtype("dtype")); })},
      {"conv2d", one(conv2d)},
      {"image_conv2d", one(conv2d)},
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
      {"masked_select", one([](const Case& c) { return masked_select(c); })},
      {"nonzero", one([](const Case& c) { return nonzero(c); })},
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

// --- plain values ---

namespace {

json real_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// Row-major elements as nested lists.
json nested(const json& values, const Dims& shape, size_t dim, size_t& next) {
  if (dim == shape.size()) return values[next++];
  json list = json::array();
  for (int64_t i = 0; i < shape[dim]; ++i) list.push_back(nested(values, shape, dim + 1, next));
  return list;
}

json elements(const Tensor& x) {
  json out = json::array();
  if (x.dtype() == DType::U64) {
    for (const uint64_t value : x.to_vector<uint64_t>()) out.push_back(value);
  } else if (is_int(x.dtype())) {
    for (const int64_t value : x.to_vector<int64_t>()) out.push_back(value);
  } else if (x.dtype() == DType::Bool) {
    for (const int value : x.to_vector<int>()) out.push_back(value != 0);
  } else {
    for (const double value : x.to_vector<double>()) out.push_back(real_number(value));
  }
  return out;
}

json item(const Tensor& x) {
  if (x.dtype() == DType::U64) return x.item<uint64_t>();
  if (is_int(x.dtype())) return x.item<int64_t>();
  if (x.dtype() == DType::Bool) return x.item<bool>();
  return real_number(x.item<double>());
}

}  // namespace

bool gives_value(const std::string& op) {
  constexpr const char* kOps[] = {"ndim",   "numel", "element_size", "nbytes", "is_floating_point",
                                  "size",   "shape", "dtype",        "len",    "item",
                                  "tolist", "numpy", "data"};
  return std::find(std::begin(kOps), std::end(kOps), op) != std::end(kOps);
}

json value_of(const Case& c) {
  const Tensor& x = c.in();
  const std::string& op = c.op();
  if (op == "ndim") return x.ndim();
  if (op == "numel") return x.numel();
  if (op == "element_size") return x.element_size();
  if (op == "nbytes") return x.nbytes();
  if (op == "is_floating_point") return x.is_floating_point();
  if (op == "dtype") return std::string(name(x.dtype()));
  if (op == "len") return x.size(0);
  if (op == "size" && c.has("dim")) return x.size(c.integer("dim"));
  if (op == "size" || op == "shape") return x.shape();
  if (op == "item") return item(x);
  size_t next = 0;
  return nested(elements(x), x.shape(), 0, next);
}

}  // namespace tinyshard::golden
