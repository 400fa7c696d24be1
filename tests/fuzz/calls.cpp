// The table of ops as calls of the public interface. Rows of regular methods come from the table of
// methods (core/tensor/methods.inc). A row's text is what a user would write; the printed program and
// the call beside it must stay the same.
#include "tests/fuzz/calls.h"

#include <algorithm>

#include "tests/fuzz/views.h"

namespace fuzz {
namespace {

using namespace tinyshard;

Operand number_of(const Step& s) {
  return s.n.empty() || !s.n[0] ? Operand(s.d.at(0)) : Operand(int64_t(s.d.at(0)));
}

Dims from(const Step& s, size_t first) { return {s.n.begin() + int64_t(first), s.n.end()}; }
Axes axes_from(const Step& s, size_t first) {
  return s.n.size() <= first ? Axes() : Axes(from(s, first));
}
Pairs pairs_from(const Step& s, size_t first) {
  Pairs out;
  for (size_t i = first; i + 1 < s.n.size(); i += 2) out.emplace_back(s.n[i], s.n[i + 1]);
  return out;
}
// A single number stands for all dims.
Ints one_or_more(const Step& s, size_t first) {
  return s.n.size() == first + 1 ? Ints(s.n[first]) : Ints(from(s, first));
}
ConvOptions conv_options(const Step& s) {
  return {.groups = s.n.at(0),
          .stride = s.n.at(1),
          .dilation = s.n.at(2),
          .padding = one_or_more(s, 3)};
}
PoolOptions pool_options(const Step& s) {
  return {.stride = s.n.at(0),
          .dilation = s.n.at(1),
          .padding = s.n.at(2),
          .ceil_mode = s.n.at(3) != 0,
          .count_include_pad = s.n.at(4) != 0};
}
constexpr const char* kPoolText =
    "(#{5}, {.stride = #0, .dilation = #1, .padding = #2, .ceil_mode = #b3, "
    ".count_include_pad = #b4})";
CrossEntropyOptions loss_options(const Step& s) {
  return {.ignore_index = s.n.size() > 1 && s.n[1] ? std::optional(s.n[2]) : std::nullopt,
          .label_smoothing = s.d.at(0),
          .reduction = Reduction(s.n[0])};
}
constexpr const char* kLossText =
    "($1, {.ignore_index = #ignored, .label_smoothing = %0, .reduction = Reduction(#0)})";
Tensor given(const Tensors& x, size_t i) { return i < x.size() ? x[i] : Tensor(); }
DType type_of(const Step& s) { return dtype_from_name(s.text); }

// Step::text has no blanks.
std::string formula(const Step& s) {
  std::string text = s.text;
  std::ranges::replace(text, '_', ' ');
  return text;
}

// Makes the rows of regular kinds, by the table of methods.
void add_regular(std::map<std::string, OpCall>& t) {
#define METHOD(area, name, kind, ...) METHOD_##kind(name)
#define METHOD_Other(op)
#define METHOD_Unary(op) \
  t[#op] = {[](const Step&, const Tensors& x) { return x[0].op(); }, "$0." #op "()"};
#define METHOD_Binary(op)                                                  \
  t[#op] = {[](const Step& s, const Tensors& x) {                          \
              return x[0].op(x.size() > 1 ? Operand(x[1]) : number_of(s)); \
            },                                                             \
            "$0." #op "($1)"};
#define METHOD_Reduction(op)                                                                       \
  t[#op] = {[](const Step& s, const Tensors& x) { return x[0].op(axes_from(s, 1), s.n[0] != 0); }, \
            "$0." #op "(#axes{1}, #b0)"};
#define METHOD_Along(op) \
  t[#op] = {[](const Step& s, const Tensors& x) { return x[0].op(s.n[0]); }, "$0." #op "(#0)"};
#include "core/tensor/methods.inc"
#undef METHOD_Along
#undef METHOD_Reduction
#undef METHOD_Binary
#undef METHOD_Unary
#undef METHOD_Other
#undef METHOD
}

bool swapped(const Step& s) { return s.n.size() > 1 && s.n[1] != 0; }

void add_operators(std::map<std::string, OpCall>& t) {
#define OPERATOR(symbol)                                                              \
  t["operator" #symbol] = {[](const Step& s, const Tensors& x) -> Tensor {            \
                             Operand y = x.size() > 1 ? Operand(x[1]) : number_of(s); \
                             return swapped(s) ? y symbol x[0] : x[0] symbol y;       \
                           },                                                         \
                           "$0 " #symbol " $1", "$1 " #symbol " $0"}
  OPERATOR(+);
  OPERATOR(-);
  OPERATOR(*);
  OPERATOR(/);
  OPERATOR(%);
  OPERATOR(&);
  OPERATOR(|);
  OPERATOR(^);
  OPERATOR(==);
  OPERATOR(!=);
  OPERATOR(<);
  OPERATOR(>);
  OPERATOR(<=);
  OPERATOR(>=);
#undef OPERATOR
  // A shift begins with a tensor.
  t["operator<<"] = {
      [](const Step& s, const Tensors& x) { return swapped(s) ? x[1] << x[0] : x[0] << x[1]; },
      "$0 << $1", "$1 << $0"};
  t["operator>>"] = {
      [](const Step& s, const Tensors& x) { return swapped(s) ? x[1] >> x[0] : x[0] >> x[1]; },
      "$0 >> $1", "$1 >> $0"};
}

void add_reductions(std::map<std::string, OpCall>& t) {
#define ROW(name, text, ...)                                                                   \
  t[name] = {[]([[maybe_unused]] const Step& s, [[maybe_unused]] const Tensors& x) -> Tensor { \
               return __VA_ARGS__;                                                             \
             },                                                                                \
             text}
#define MOMENTS(op)                                          \
  ROW(#op "_first", "$0." #op "(#axes{2}, #b0, #1).first",   \
      x[0].op(axes_from(s, 2), s.n[0] != 0, s.n[1]).first);  \
  ROW(#op "_second", "$0." #op "(#axes{2}, #b0, #1).second", \
      x[0].op(axes_from(s, 2), s.n[0] != 0, s.n[1]).second)
  MOMENTS(var_mean);
  MOMENTS(std_mean);
#undef MOMENTS
  ROW("sum_as", "$0.sum(#axes{1}, #b0, dtypes::@)",
      x[0].sum(axes_from(s, 1), s.n[0] != 0, type_of(s)));
  ROW("prod_as", "$0.prod(#axes{1}, #b0, dtypes::@)",
      x[0].prod(axes_from(s, 1), s.n[0] != 0, type_of(s)));
  ROW("softmax_as", "$0.softmax(#0, dtypes::@)", x[0].softmax(s.n[0], type_of(s)));
  ROW("log_softmax_as", "$0.log_softmax(#0, dtypes::@)", x[0].log_softmax(s.n[0], type_of(s)));
  ROW("normalize", "$0.normalize(%0, #0)", x[0].normalize(s.d[0], s.n[0]));
  ROW("layernorm_dims", "$0.layernorm(#axes{0}, %0)", x[0].layernorm(axes_from(s, 0), s.d[0]));
  ROW("argsort", "$0.argsort(#0, #b1)", x[0].argsort(s.n[0], s.n[1] != 0));
  ROW("cummax", "$0.cummax(#0).first", x[0].cummax(s.n[0]).first);
  ROW("cummin", "$0.cummin(#0).first", x[0].cummin(s.n[0]).first);
  ROW("cummax_places", "$0.cummax(#0).second", x[0].cummax(s.n[0]).second);
  ROW("cummin_places", "$0.cummin(#0).second", x[0].cummin(s.n[0]).second);
  ROW("sort_values", "$0.sort(#0, #b1).first", x[0].sort(s.n[0], s.n[1] != 0).first);
  ROW("sort_order", "$0.sort(#0, #b1).second", x[0].sort(s.n[0], s.n[1] != 0).second);
  ROW("topk_values", "$0.topk(#2, #0, #b1).first", x[0].topk(s.n[2], s.n[0], s.n[1] != 0).first);
  ROW("topk_order", "$0.topk(#2, #0, #b1).second", x[0].topk(s.n[2], s.n[0], s.n[1] != 0).second);
  ROW("argmax", "$0.argmax(#opt2, #b1)",
      s.n[0] ? x[0].argmax({}, s.n[1] != 0) : x[0].argmax(s.n[2], s.n[1] != 0));
  ROW("argmin", "$0.argmin(#opt2, #b1)",
      s.n[0] ? x[0].argmin({}, s.n[1] != 0) : x[0].argmin(s.n[2], s.n[1] != 0));
}

void add_movement(std::map<std::string, OpCall>& t) {
  ROW("reshape", "$0.reshape(#{0})", x[0].reshape(from(s, 0)));
  ROW("permute", "$0.permute(#{0})", x[0].permute(from(s, 0)));
  ROW("expand", "$0.expand(#{0})", x[0].expand(from(s, 0)));
  ROW("flip", "$0.flip(#{0})", x[0].flip(from(s, 0)));
  ROW("transpose", "$0.transpose(#0, #1)", x[0].transpose(s.n[0], s.n[1]));
  ROW("roll", "$0.roll(#0, #1)", x[0].roll(s.n[0], s.n[1]));
  ROW("repeat", "$0.repeat(#{0})", x[0].repeat(from(s, 0)));
  ROW("repeat_interleave", "$0.repeat_interleave(#0, #1)", x[0].repeat_interleave(s.n[0], s.n[1]));
  ROW("unfold", "$0.unfold(#0, #1, #2)", x[0].unfold(s.n[0], s.n[1], s.n[2]));
  ROW("diagonal", "$0.diagonal(#0, #1, #2)", x[0].diagonal(s.n[0], s.n[1], s.n[2]));
  ROW("shrink", "$0.shrink(#pairs{0})", x[0].shrink(pairs_from(s, 0)));
  ROW("pad", "$0.pad(#pairs{1}, %0, PadMode(#0))",
      x[0].pad(pairs_from(s, 1), s.d[0], PadMode(s.n[0])));
  ROW("part", "$0.split(#0, #1).at(#2)", x[0].split(s.n[0], s.n[1]).at(size_t(s.n[2])));
  ROW("view", "$0.view(#{0})", x[0].view(from(s, 0)));
  ROW("unflatten", "$0.unflatten(#0, #{1})", x[0].unflatten(s.n[0], from(s, 1)));
  ROW("flatten_dims", "$0.flatten(#0, #1)", x[0].flatten(s.n[0], s.n[1]));
  ROW("squeeze_all", "$0.squeeze()", x[0].squeeze());
  ROW("new_axis", "$0[{kEllipsis, kNewAxis}]", (x[0][{kEllipsis, kNewAxis}]));
  ROW("rearrange", "$0.rearrange(\"@\")", x[0].rearrange(formula(s)));
  ROW("chunk", "$0.chunk(#0, #1).at(#2)", x[0].chunk(s.n[0], s.n[1]).at(size_t(s.n[2])));
  ROW("part_of_sizes", "$0.split(Dims#{2}, #0).at(#1)",
      x[0].split(from(s, 2), s.n[0]).at(size_t(s.n[1])));
  ROW("cat_method", "$0.cat($-, #0)", x[0].cat(Tensors(x.begin() + 1, x.end()), s.n[0]));
  ROW("stack_method", "$0.stack($-, #0)", x[0].stack(Tensors(x.begin() + 1, x.end()), s.n[0]));
  ROW("meshgrid", "Tensor::meshgrid($*, #b1).at(#0)",
      Tensor::meshgrid(x, s.n[1] != 0).at(size_t(s.n[0])));
  ROW("take_pairs", "$0.at({$1, $2})", x[0].at({x[1], x[2]}));
  ROW("cat", "cat($*, #0)", cat(x, s.n[0]));
  ROW("stack", "stack($*, #0)", stack(x, s.n[0]));
  t["pick"] = {[](const Step& s, const Tensors& x) {
                 std::vector<Index> index(size_t(s.n[0]), Index(Slice()));
                 index.emplace_back(s.n[1]);
                 return x[0].at(index);
               },
               "$0.at(#before0#1})"};
  t["take"] = {[](const Step& s, const Tensors& x) {
                 std::vector<Index> index(size_t(s.n[0]), Index(Slice()));
                 index.emplace_back(x[1]);
                 return x[0].at(index);
               },
               "$0.at(#before0$1})"};
  t["slices"] = {[](const Step& s, const Tensors& x) {
                   std::vector<Index> index;
                   for (size_t i = 0; i + 2 < s.n.size(); i += 3) {
                     auto end = [&](int64_t at) {
                       return at == -1000 ? std::optional<int64_t>() : std::optional(at);
                     };
                     index.emplace_back(Slice(end(s.n[i]), end(s.n[i + 1]), s.n[i + 2]));
                   }
                   return x[0].at(index);
                 },
                 "$0.at(#slices)"};
}

void add_others(std::map<std::string, OpCall>& t) {
  ROW("where", "$0.where($1, $2)", x[0].where(x[1], x[2]));
  ROW("masked_fill", "$0.masked_fill($1, $2)", x[0].masked_fill(x[1], number_of(s)));
  ROW("lerp", "$0.lerp($1, $2)", x[0].lerp(x[1], x[2]));
  ROW("clamp", "$0.clamp(%0, %1)", x[0].clamp(s.d[0], s.d[1]));
  ROW("clamp_whole", "$0.clamp(#0, #1)", x[0].clamp(s.n[0], s.n[1]));
  ROW("clip", "$0.clip(%0, %1)", x[0].clip(s.d[0], s.d[1]));
  ROW("clip_low", "$0.clip(%0)", x[0].clip(s.d[0]));
  ROW("hardtanh", "$0.hardtanh(%0, %1)", x[0].hardtanh(s.d[0], s.d[1]));
  ROW("leaky_relu_by", "$0.leaky_relu(%0)", x[0].leaky_relu(s.d[0]));
  ROW("elu_by", "$0.elu(%0)", x[0].elu(s.d[0]));
  ROW("celu_by", "$0.celu(%0)", x[0].celu(s.d[0]));
  ROW("selu_by", "$0.selu(%0, %1)", x[0].selu(s.d[0], s.d[1]));
  ROW("softplus_by", "$0.softplus(%0)", x[0].softplus(s.d[0]));
  ROW("hardsigmoid_by", "$0.hardsigmoid(%0, %1)", x[0].hardsigmoid(s.d[0], s.d[1]));
  ROW("isinf_side", "$0.isinf(#b0, #b1)", x[0].isinf(s.n[0] != 0, s.n[1] != 0));
  ROW("isclose", "$0.isclose($1, 1e-05, 1e-08, #b0)",
      x[0].isclose(x[1], 1e-05, 1e-08, s.n[0] != 0));
  ROW("div_trunc", "$0.div($1, Rounding::Trunc)", x[0].div(x[1], Rounding::Trunc));
  ROW("div_of", "div($0, $1, Rounding::Trunc)", div(x[0], x[1], Rounding::Trunc));
  ROW("pow_of", "pow($0, $1)", pow(x[0], x[1]));
  ROW("gelu_exact", "$0.gelu(true)", x[0].gelu(true));
  ROW("full_like", "$0.full_like(#value)", x[0].full_like(int64_t(s.d[0])));
  ROW("arange", "Tensor::arange(#0, #1, #2, dtypes::@)",
      Tensor::arange(s.n[0], s.n[1], s.n[2], type_of(s)));
  ROW("linspace", "Tensor::linspace(%0, %1, #0, dtypes::@)",
      Tensor::linspace(s.d[0], s.d[1], s.n[0], type_of(s)));
  ROW("eye", "Tensor::eye(#0, #1, dtypes::@)", Tensor::eye(s.n[0], s.n[1], type_of(s)));
  ROW("cast", "$0.cast(dtypes::@)", x[0].cast(type_of(s)));
  ROW("through_float8", "$0.cast(dtypes::@).cast($0.dtype())",
      x[0].cast(type_of(s)).cast(x[0].dtype()));
  ROW("stored_as_float8", "$0.cast(dtypes::@).contiguous().cast($0.dtype())",
      x[0].cast(type_of(s)).contiguous().cast(x[0].dtype()));
  ROW("bitcast", "$0.bitcast(dtypes::@)", x[0].bitcast(type_of(s)));
}

void add_products(std::map<std::string, OpCall>& t) {
  ROW("matmul", "$0.matmul($1)", x[0].matmul(x[1]));
  ROW("matmul_as", "$0.matmul($1, dtypes::@)", x[0].matmul(x[1], type_of(s)));
  ROW("dot", "$0.dot($1)", x[0].dot(x[1]));
  ROW("linear", "$0.linear($1, ?2)", x[0].linear(x[1], given(x, 2)));
  ROW("einsum", "Tensor::einsum(\"@\", $*)", Tensor::einsum(s.text, x));
  ROW("conv2d",
      "$0.conv2d($1, ?2, {.groups = #0, .stride = #1, .dilation = #2, .padding = #some{3}})",
      x[0].conv2d(x[1], given(x, 2), conv_options(s)));
  ROW("conv_transpose2d",
      "$0.conv_transpose2d($1, ?2, {.groups = #0, .stride = #1, .dilation = #2, .padding = #3, "
      ".output_padding = #4})",
      x[0].conv_transpose2d(x[1], given(x, 2),
                            {.groups = s.n[0],
                             .stride = s.n[1],
                             .dilation = s.n[2],
                             .padding = s.n[3],
                             .output_padding = s.n[4]}));
  ROW("max_pool2d", std::string("$0.max_pool2d") + kPoolText,
      x[0].max_pool2d(from(s, 5), pool_options(s)));
  ROW("avg_pool2d", std::string("$0.avg_pool2d") + kPoolText,
      x[0].avg_pool2d(from(s, 5), pool_options(s)));
  ROW("max_pool_values", std::string("$0.max_pool2d_with_indices") + kPoolText + ".first",
      x[0].max_pool2d_with_indices(from(s, 5), pool_options(s)).first);
  ROW("max_pool_places", std::string("$0.max_pool2d_with_indices") + kPoolText + ".second",
      x[0].max_pool2d_with_indices(from(s, 5), pool_options(s)).second);
  ROW("max_unpool2d", "$0.max_unpool2d($1, {#0, #0}, {}, Ints{#1, #2})",
      x[0].max_unpool2d(x[1], {s.n[0], s.n[0]}, {}, Ints{s.n[1], s.n[2]}));
  ROW("interpolate", "$0.interpolate(#{2}, Interpolation(#0), #b1)",
      x[0].interpolate(from(s, 2), Interpolation(s.n[0]), s.n[1] != 0));
}

void add_layers(std::map<std::string, OpCall>& t) {
  ROW("attention",
      "$0.scaled_dot_product_attention($1, $2, ?3, {.is_causal = #b0, .enable_gqa = #b1})",
      x[0].scaled_dot_product_attention(x[1], x[2], given(x, 3),
                                        {.is_causal = s.n[0] != 0, .enable_gqa = s.n[1] != 0}));
  ROW("batchnorm", "$0.batchnorm($1, $2, $3, $4)", x[0].batchnorm(x[1], x[2], x[3], x[4]));
  ROW("binary_crossentropy", "$0.binary_crossentropy($1, Reduction(#0))",
      x[0].binary_crossentropy(x[1], Reduction(s.n[0])));
  ROW("binary_crossentropy_logits", "$0.binary_crossentropy_logits($1, Reduction(#0), ?2)",
      x[0].binary_crossentropy_logits(x[1], Reduction(s.n[0]), given(x, 2)));
  ROW("cross_entropy", std::string("$0.cross_entropy") + kLossText,
      x[0].cross_entropy(x[1], loss_options(s)));
  ROW("cross_entropy_probabilities", std::string("$0.cross_entropy") + kLossText,
      x[0].cross_entropy(x[1], loss_options(s)));
  ROW("sparse_categorical_crossentropy",
      std::string("$0.sparse_categorical_crossentropy") + kLossText,
      x[0].sparse_categorical_crossentropy(x[1], loss_options(s)));
  ROW("nll_loss", "$0.nll_loss($1, ?2, #label, Reduction(#0))",
      x[0].nll_loss(x[1], given(x, 2), s.n[1] ? std::optional(s.n[2]) : std::nullopt,
                    Reduction(s.n[0])));
}

// Products of factors, and what makes them factors: any of several are right.
void add_decompositions(std::map<std::string, OpCall>& t) {
  ROW("newton_schulz", "$0.newton_schulz(#0, {%0, %1})", x[0].newton_schulz(s.n[0], s.d));
#define FACTORS(name, what, of, ...)                             \
  ROW(name, "[](auto f) { return " #__VA_ARGS__ "; }(" what ")", \
      [](auto f) { return __VA_ARGS__; }(of))
#define QR(name, ...) FACTORS(name, "$0.qr()", x[0].qr(), __VA_ARGS__)
#define SVD(name, ...) FACTORS(name, "$0.svd(#b0)", x[0].svd(s.n[0] != 0), __VA_ARGS__)
  QR("qr_product", f.first.matmul(f.second));
  QR("qr_orthogonal", f.first.transpose(-2, -1).matmul(f.first));
  QR("qr_triangle", f.second.tril(-1));
  SVD("svd_product", f.u[{kEllipsis, Slice(0, f.s.shape(-1))}]
                         .mul(f.s.unsqueeze(-2))
                         .matmul(f.vt[{kEllipsis, Slice(0, f.s.shape(-1)), Slice()}]));
  SVD("svd_orthogonal", f.u.transpose(-2, -1).matmul(f.u));
  SVD("svd_values", f.s);
#undef SVD
#undef QR
#undef FACTORS
}

void add_indexing(std::map<std::string, OpCall>& t) {
  ROW("gather", "$0.gather(#0, $1)", x[0].gather(s.n[0], x[1]));
  ROW("embedding", "$0.embedding($1)", x[0].embedding(x[1]));
  ROW("scatter", "$0.scatter(#0, $1, $2)", x[0].scatter(s.n[0], x[1], x[2]));
  ROW("scatter_reduce", "$0.scatter_reduce(#0, $1, $2, ScatterReduce(#1), #b2)",
      x[0].scatter_reduce(s.n[0], x[1], x[2], ScatterReduce(s.n[1]), s.n[2] != 0));
  ROW("scatter_number", "$0.scatter(#1, $1, $2)", x[0].scatter(s.n[1], x[1], number_of(s)));
  ROW("masked_select", "$0.masked_select($1)", x[0].masked_select(x[1]));
  ROW("masked_select_sized", "$0.masked_select($1, #0, #1)",
      x[0].masked_select(x[1], s.n[0], s.n[1]));
  ROW("nonzero_sized", "$0.nonzero(#0, #1)", x[0].nonzero(s.n[0], s.n[1]));
}

// The view at the end of the links; those on the way have no handle any more.
Tensor viewed(const Step& s, const Tensors& x) {
  Tensor v = x[0];
  for (size_t i = 0; i + kLinkSize <= s.n.size(); i += kLinkSize) {
    const int64_t* n = &s.n[i];
    std::vector<Index> index(static_cast<size_t>(n[1]), Index(Slice()));
    switch (Link(n[0])) {
      case Link::Number:
        index.emplace_back(n[2]);
        v = v[index];
        break;
      case Link::Variable:
        index.emplace_back(x.at(2));
        v = v[index];
        break;
      case Link::Slice:
        index.emplace_back(Slice(n[2], n[3], n[4]));
        v = v[index];
        break;
      case Link::Flip:
        v = v.flip(n[1]);
        break;
      case Link::Transpose:
        v = v.transpose(n[1], n[2]);
        break;
      case Link::Flatten:
        v = v.reshape(-1);
        break;
      case Link::Unsqueeze:
        v = v.unsqueeze(n[1]);
        break;
    }
  }
  return v;
}

void add_statements(std::map<std::string, OpCall>& t) {
  ROW("view_assign", "$0#views = $1", (viewed(s, x).assign(x[1]), x[0]));
  ROW("view_add_assign", "$0#views += $1", (viewed(s, x) += x[1], x[0]));
  ROW("view_sub_assign", "$0#views -= $1", (viewed(s, x) -= x[1], x[0]));
  ROW("view_mul_assign", "$0#views *= $1", (viewed(s, x) *= x[1], x[0]));
  ROW("sub_assign", "$0 -= $1", (x[0] -= x[1], x[0]));
  ROW("mul_assign", "$0 *= $1", (x[0] *= x[1], x[0]));
  ROW("div_assign", "$0 /= $1", (x[0] /= x[1], x[0]));
  ROW("setitem_number", "$0.setitem({#1}, $1)", (x[0].setitem({s.n[1]}, number_of(s)), x[0]));
  ROW("assign", "$0.assign($1)", x[0].assign(x[1]));
  ROW("scatter_assign", "$0.assign($0.scatter(#0, $1, $2))",
      x[0].assign(x[0].scatter(s.n[0], x[1], x[2])));
  ROW("scatter_reduce_assign", "$0.assign($0.scatter_reduce(#0, $1, $2, ScatterReduce(#1), #b2))",
      x[0].assign(x[0].scatter_reduce(s.n[0], x[1], x[2], ScatterReduce(s.n[1]), s.n[2] != 0)));
  ROW("add_assign", "$0 += $1", (x[0] += x[1], x[0]));
  ROW("realize", "$0.realize()", x[0].realize());
  t["setitem"] = {[](const Step& s, const Tensors& x) {
                    std::vector<Index> index(size_t(s.n[0]), Index(Slice()));
                    index.emplace_back(Slice(s.n[1], s.n[2]));
                    x[0].setitem(index, x[1]);
                    return x[0];
                  },
                  "$0.setitem(#before0Slice(#1, #2)}, $1)"};
}

std::vector<Tensor> copies(const Step& s, const Tensors& x) {
  return std::vector<Tensor>(size_t(s.n[0]), x[0]);
}

// Adds ops that compare a value with itself, wherever and however often it is computed.
void add_identities(std::map<std::string, OpCall>& t) {
  ROW("max_is_attained", "($0 == $0.max(#axes{0}, true)).any(#axes{0})",
      (x[0] == x[0].max(axes_from(s, 0), true)).any(axes_from(s, 0)));
  ROW("each_has_an_equal", "($0.unsqueeze(0) == $0.unsqueeze(1)).any(0)",
      (x[0].unsqueeze(0) == x[0].unsqueeze(1)).any(0));
  ROW("row_sums_agree",
      "[](Tensor y) { return y == y[{Slice(0, 1)}]; }(stack(std::vector<Tensor>(#0, $0), "
      "0).contiguous().sum(#1))",
      [](const Tensor& y) {
        return y == y[{Slice(0, 1)}];
      }(stack(copies(s, x), 0).contiguous().sum(s.n[1])));
  ROW("column_sums_agree",
      "[](Tensor y) { return y == y[{kEllipsis, Slice(0, 1)}]; }(stack(std::vector<Tensor>(#0, "
      "$0), -1).contiguous().sum(#1))",
      [](const Tensor& y) {
        return y == y[{kEllipsis, Slice(0, 1)}];
      }(stack(copies(s, x), -1).contiguous().sum(s.n[1])));
  ROW("row_products_agree",
      "[](Tensor y) { return y == y[{Slice(0, 1)}]; }(stack(std::vector<Tensor>(#0, $0), "
      "0).flatten(0, 1).matmul($1).unflatten(0, {#0, -1}))",
      [](const Tensor& y) {
        return y == y[{Slice(0, 1)}];
      }(stack(copies(s, x), 0).flatten(0, 1).matmul(x[1]).unflatten(0, {s.n[0], -1})));
}
#undef ROW

}  // namespace

const std::map<std::string, OpCall>& calls() {
  static const std::map<std::string, OpCall> table = [] {
    std::map<std::string, OpCall> t;
    add_regular(t);
    add_operators(t);
    add_reductions(t);
    add_movement(t);
    add_others(t);
    add_products(t);
    add_layers(t);
    add_decompositions(t);
    add_indexing(t);
    add_statements(t);
    add_identities(t);
    return t;
  }();
  return table;
}

}  // namespace fuzz
