// The table of ops as calls of the public interface. A row's text is what a user would write; the
// printed program and the call beside it must stay the same.
#include "tests/fuzz/calls.h"

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
ConvOptions conv_options(const Step& s) {
  return {.groups = s.n.at(0), .stride = s.n.at(1), .dilation = s.n.at(2), .padding = s.n.at(3)};
}

void add_unary(std::map<std::string, OpCall>& t) {
#define UNARY(op) t[#op] = {[](const Step&, const Tensors& x) { return x[0].op(); }, "$0." #op "()"}
  UNARY(neg);
  UNARY(abs);
  UNARY(sign);
  UNARY(square);
  UNARY(sqrt);
  UNARY(rsqrt);
  UNARY(reciprocal);
  UNARY(exp);
  UNARY(exp2);
  UNARY(log);
  UNARY(log2);
  UNARY(log10);
  UNARY(sin);
  UNARY(cos);
  UNARY(asin);
  UNARY(acos);
  UNARY(atan);
  UNARY(sinh);
  UNARY(cosh);
  UNARY(tanh);
  UNARY(asinh);
  UNARY(acosh);
  UNARY(atanh);
  UNARY(erf);
  UNARY(ceil);
  UNARY(floor);
  UNARY(round);
  UNARY(trunc);
  UNARY(isnan);
  UNARY(isinf);
  UNARY(isfinite);
  UNARY(logical_not);
  UNARY(bitwise_not);
  UNARY(relu);
  UNARY(sigmoid);
  UNARY(logsigmoid);
  UNARY(relu6);
  UNARY(hardswish);
  UNARY(hardsigmoid);
  UNARY(leaky_relu);
  UNARY(quick_gelu);
  UNARY(gelu);
  UNARY(silu);
  UNARY(elu);
  UNARY(celu);
  UNARY(selu);
  UNARY(softplus);
  UNARY(mish);
  UNARY(softsign);
  UNARY(contiguous);
  UNARY(detach);
  UNARY(clone);
  UNARY(T);
  UNARY(flatten);
#undef UNARY
}

void add_binary(std::map<std::string, OpCall>& t) {
#define BINARY(op)                                                         \
  t[#op] = {[](const Step& s, const Tensors& x) {                          \
              return x[0].op(x.size() > 1 ? Operand(x[1]) : number_of(s)); \
            },                                                             \
            "$0." #op "($1)"}
  BINARY(add);
  BINARY(sub);
  BINARY(mul);
  BINARY(div);
  BINARY(floor_div);
  BINARY(mod);
  BINARY(fmod);
  BINARY(pow);
  BINARY(eq);
  BINARY(ne);
  BINARY(lt);
  BINARY(gt);
  BINARY(le);
  BINARY(ge);
  BINARY(bitwise_and);
  BINARY(bitwise_or);
  BINARY(bitwise_xor);
  BINARY(lshift);
  BINARY(rshift);
  BINARY(maximum);
  BINARY(minimum);
  BINARY(copysign);
  BINARY(logaddexp);
#undef BINARY
}

void add_reductions(std::map<std::string, OpCall>& t) {
#define REDUCTION(op)                                                                              \
  t[#op] = {[](const Step& s, const Tensors& x) { return x[0].op(axes_from(s, 1), s.n[0] != 0); }, \
            "$0." #op "(#axes{1}, #b0)"}
  REDUCTION(sum);
  REDUCTION(prod);
  REDUCTION(max);
  REDUCTION(min);
  REDUCTION(any);
  REDUCTION(all);
  REDUCTION(mean);
  REDUCTION(var);
  REDUCTION(std);
  REDUCTION(logsumexp);
#undef REDUCTION
#define ALONG(op) \
  t[#op] = {[](const Step& s, const Tensors& x) { return x[0].op(s.n[0]); }, "$0." #op "(#0)"}
  ALONG(softmax);
  ALONG(softmin);
  ALONG(log_softmax);
  ALONG(layernorm);
  ALONG(cumsum);
  ALONG(cumprod);
  ALONG(logcumsumexp);
  ALONG(triu);
  ALONG(tril);
  ALONG(one_hot);
  ALONG(unsqueeze);
  ALONG(squeeze);
#undef ALONG
#define ROW(name, text, expression) \
  t[name] = {                       \
      []([[maybe_unused]] const Step& s, const Tensors& x) -> Tensor { return expression; }, text}
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
  ROW("gelu_exact", "$0.gelu(true)", x[0].gelu(true));
  ROW("cast", "$0.cast(dtypes::@)", x[0].cast(dtype_from_name(s.text)));
  ROW("bitcast", "$0.bitcast(dtypes::@)", x[0].bitcast(dtype_from_name(s.text)));
  ROW("matmul", "$0.matmul($1)", x[0].matmul(x[1]));
  ROW("dot", "$0.dot($1)", x[0].dot(x[1]));
  ROW("linear", "$0.linear($1, $2)", x[0].linear(x[1], x[2]));
  ROW("einsum", "Tensor::einsum(\"@\", $*)", Tensor::einsum(s.text, x));
  ROW("conv2d", "$0.conv2d($1, {}, {.groups = #0, .stride = #1, .dilation = #2, .padding = #3})",
      x[0].conv2d(x[1], {}, conv_options(s)));
  ROW("max_pool2d", "$0.max_pool2d({#0, #1}, {.stride = #2, .padding = #3})",
      x[0].max_pool2d({s.n[0], s.n[1]}, {.stride = s.n[2], .padding = s.n[3]}));
  ROW("avg_pool2d", "$0.avg_pool2d({#0, #1}, {.stride = #2, .padding = #3})",
      x[0].avg_pool2d({s.n[0], s.n[1]}, {.stride = s.n[2], .padding = s.n[3]}));
  ROW("gather", "$0.gather(#0, $1)", x[0].gather(s.n[0], x[1]));
  ROW("embedding", "$0.embedding($1)", x[0].embedding(x[1]));
  ROW("scatter", "$0.scatter(#0, $1, $2)", x[0].scatter(s.n[0], x[1], x[2]));
  ROW("scatter_reduce", "$0.scatter_reduce(#0, $1, $2, ScatterReduce(#1), #b2)",
      x[0].scatter_reduce(s.n[0], x[1], x[2], ScatterReduce(s.n[1]), s.n[2] != 0));
  ROW("assign", "$0.assign($1)", x[0].assign(x[1]));
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
#undef ROW

}  // namespace

const std::map<std::string, OpCall>& calls() {
  static const std::map<std::string, OpCall> table = [] {
    std::map<std::string, OpCall> t;
    add_unary(t);
    add_binary(t);
    add_reductions(t);
    add_movement(t);
    add_others(t);
    return t;
  }();
  return table;
}

}  // namespace fuzz
