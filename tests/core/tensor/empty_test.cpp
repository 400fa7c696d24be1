// Tensors without elements through every op, on one device and divided over meshes of two and four,
// computed and not. What comes out is known without computing: shapes follow numpy's rules, and
// elements that are made of nothing all have one value.
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/tensor.h"
#include "core/uop/uop.h"
#include "tests/devices.h"

namespace tinyshard::empty_test {
namespace {

// A result: its shape, and the value that each of its elements has.
struct Expected {
  Dims shape;
  double value = 0;
};
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Rule = std::function<std::optional<Expected>(const Dims&)>;  // nothing: a mistake

struct Case {
  std::string name;
  std::function<Tensor(const Tensor&)> run;
  Rule expected;
  size_t least_rank = 0, most_rank = 9;
};

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

Expected same(const Dims& s) { return {s}; }

Dims with(Dims s, size_t axis, int64_t size) {
  s[axis] = size;
  return s;
}
Dims without(Dims s, size_t axis) {
  s.erase(s.begin() + int64_t(axis));
  return s;
}
Dims joined(Dims a, const Dims& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}
Dims reversed(const Dims& s) { return {s.rbegin(), s.rend()}; }

// Reductions over one axis: `of_nothing` where the axis is empty; no value: that is a mistake.
Rule reduced(bool last, std::optional<double> of_nothing) {
  return [=](const Dims& s) -> std::optional<Expected> {
    size_t axis = last ? s.size() - 1 : 0;
    Dims rest = without(s, axis);
    if (product(rest) > 0 && !of_nothing) return std::nullopt;
    return Expected{rest, of_nothing.value_or(0)};
  };
}

std::vector<Case> cases() {
  std::vector<Case> out;
  auto add = [&](std::string name, std::function<Tensor(const Tensor&)> run, Rule rule,
                 size_t least = 1, size_t most = 9) {
    out.push_back({std::move(name), std::move(run), std::move(rule), least, most});
  };
  // clang-format off
  // elementwise
  add("neg", [](const Tensor& x) { return -x; }, same);
  add("exp", [](const Tensor& x) { return x.exp(); }, same);
  add("gelu", [](const Tensor& x) { return x.gelu(); }, same);
  add("sqrt", [](const Tensor& x) { return x.sqrt(); }, same);
  add("round", [](const Tensor& x) { return x.round(); }, same);
  add("number", [](const Tensor& x) { return x * 2 + 1; }, same);
  add("itself", [](const Tensor& x) { return x / (x + x); }, same);
  add("broadcast", [](const Tensor& x) { return x + Tensor{1.5}; }, same);
  add("broadcast_new", [](const Tensor& x) { return x.unsqueeze(0) + Tensor::ones({3}).reshape(Ints(joined({3}, Dims(size_t(x.ndim()), 1)))); }, [](const Dims& s) { return Expected{joined({3}, s)}; });
  add("compare", [](const Tensor& x) { return (x < 3).where(x, 1); }, same);
  add("cast", [](const Tensor& x) { return x.cast(DType::I8); }, same);
  add("bitcast", [](const Tensor& x) { return x.bitcast(DType::I32); }, same);
  add("bitcast_smaller", [](const Tensor& x) { return x.bitcast(DType::I16); }, [](const Dims& s) { return Expected{with(s, s.size() - 1, s.back() * 2)}; });
  add("masked_fill", [](const Tensor& x) { return x.masked_fill(x > 1, 4); }, same);
  add("isclose", [](const Tensor& x) { return x.isclose(x); }, same);
  // reductions
  for (bool last : {false, true}) {
    int axis = last ? -1 : 0;
    std::string at = last ? "_last" : "_first";
    add("sum" + at, [=](const Tensor& x) { return x.sum(axis); }, reduced(last, 0));
    add("prod" + at, [=](const Tensor& x) { return x.prod(axis); }, reduced(last, 1));
    add("mean" + at, [=](const Tensor& x) { return x.mean(axis); }, reduced(last, kNaN));
    add("var" + at, [=](const Tensor& x) { return x.var(axis); }, reduced(last, kNaN));
    add("std" + at, [=](const Tensor& x) { return x.std(axis); }, reduced(last, kNaN));
    add("any" + at, [=](const Tensor& x) { return x.any(axis); }, reduced(last, 0));
    add("all" + at, [=](const Tensor& x) { return x.all(axis); }, reduced(last, 1));
    add("logsumexp" + at, [=](const Tensor& x) { return x.logsumexp(axis); }, reduced(last, -kInf));
    add("max" + at, [=](const Tensor& x) { return x.max(axis); }, reduced(last, -kInfinity));
    add("min" + at, [=](const Tensor& x) { return x.min(axis); }, reduced(last, kInfinity));
    add("argmax" + at, [=](const Tensor& x) { return x.argmax(axis); }, reduced(last, std::nullopt));
    add("argmin" + at, [=](const Tensor& x) { return x.argmin(axis); }, reduced(last, std::nullopt));
    for (auto scan : {&Tensor::softmax, &Tensor::log_softmax})
      add("softmax" + at, [=](const Tensor& x) { return (x.*scan)(axis, {}, Caller::current()); }, same);
    add("cumsum" + at, [=](const Tensor& x) { return x.cumsum(axis); }, same);
    add("cumprod" + at, [=](const Tensor& x) { return x.cumprod(axis); }, same);
    add("cummax" + at, [=](const Tensor& x) { return x.cummax(axis).first; }, same);
    add("cummin_places" + at, [=](const Tensor& x) { return x.cummin(axis).second; }, same);
    add("logcumsumexp" + at, [=](const Tensor& x) { return x.logcumsumexp(axis); }, same);
    add("sort" + at, [=](const Tensor& x) { return x.sort(axis).first; }, same);
    add("argsort" + at, [=](const Tensor& x) { return x.argsort(axis); }, same);
    add("topk" + at, [=](const Tensor& x) { return x.topk(0, axis).first; }, [=](const Dims& s) { return Expected{with(s, last ? s.size() - 1 : 0, 0)}; });
    add("layernorm" + at, [=](const Tensor& x) { return x.layernorm(axis); }, same);
    add("normalize" + at, [=](const Tensor& x) { return x.normalize(2, axis); }, same);
    add("flip" + at, [=](const Tensor& x) { return x.flip(axis); }, same);
    add("roll" + at, [=](const Tensor& x) { return x.roll(1, axis); }, same);
    add("cat" + at, [=](const Tensor& x) { return cat({x, x, x}, axis); }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return Expected{with(s, a, 3 * s[a])}; });
    add("cat_with_more" + at, [=](const Tensor& x) { Dims s = x.shape(); s[size_t(last ? s.size() - 1 : 0)] = 2; return cat({x, Tensor::full(s, 6.0), x}, axis); }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return s[a] == 0 ? std::optional(Expected{with(s, a, 2), 6}) : Expected{with(s, a, 2 * s[a] + 2), 6}; });
    add("stack" + at, [=](const Tensor& x) { return stack({x, x}, axis); }, [=](const Dims& s) { return Expected{last ? joined(s, {2}) : joined({2}, s)}; });
    add("split" + at, [=](const Tensor& x) { return x.split(1, axis).back(); }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return Expected{with(s, a, std::min<int64_t>(1, s[a]))}; });
    add("chunk" + at, [=](const Tensor& x) { return x.chunk(2, axis)[0]; }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return Expected{with(s, a, (s[a] + 1) / 2)}; });
    add("repeat_interleave" + at, [=](const Tensor& x) { return x.repeat_interleave(3, axis); }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return Expected{with(s, a, 3 * s[a])}; });
    add("gather" + at, [=](const Tensor& x) { return x.gather(axis, x.cast(DType::I32)); }, same);
    add("scatter" + at, [=](const Tensor& x) { return x.scatter(axis, x.cast(DType::I32), x); }, same);
    add("scatter_reduce" + at, [=](const Tensor& x) { return x.scatter_reduce(axis, x.cast(DType::I64), x, ScatterReduce::Mean, false); }, same);
    add("unfold" + at, [=](const Tensor& x) { int64_t n = x.shape(axis); return x.unfold(axis, std::min<int64_t>(n, 1), 1); }, [=](const Dims& s) { size_t a = last ? s.size() - 1 : 0; return Expected{joined(with(s, a, s[a] == 0 ? 1 : s[a]), {std::min<int64_t>(s[a], 1)})}; });
  }
  add("sum", [](const Tensor& x) { return x.sum(); }, [](const Dims&) { return Expected{{}}; });
  add("sum_keepdim", [](const Tensor& x) { return x.sum({}, true); }, [](const Dims& s) { return Expected{Dims(s.size(), 1)}; });
  add("prod", [](const Tensor& x) { return x.prod(); }, [](const Dims&) { return Expected{{}, 1}; });
  add("mean", [](const Tensor& x) { return x.mean(); }, [](const Dims&) { return Expected{{}, kNaN}; });
  add("max", [](const Tensor& x) { return x.max(); }, [](const Dims&) { return Expected{{}, -kInfinity}; });
  add("argmin", [](const Tensor& x) { return x.argmin(); }, [](const Dims&) { return std::nullopt; });
  add("i8_sum", [](const Tensor& x) { return x.cast(DType::I8).sum(); }, [](const Dims&) { return Expected{{}}; });
  // movement
  add("reshape", [](const Tensor& x) { return x.reshape({5, 0, 7}); }, [](const Dims&) { return Expected{{5, 0, 7}}; });
  add("flatten", [](const Tensor& x) { return x.flatten(); }, [](const Dims&) { return Expected{{0}}; });
  add("unflatten", [](const Tensor& x) { return x.unflatten(0, {1, x.shape(0)}); }, [](const Dims& s) { return Expected{joined({1}, s)}; });
  add("squeeze", [](const Tensor& x) { return x.squeeze(); }, [](Dims s) { std::erase(s, 1); return Expected{s}; });
  add("unsqueeze", [](const Tensor& x) { return x.unsqueeze(-1); }, [](const Dims& s) { return Expected{joined(s, {1})}; });
  add("T", [](const Tensor& x) { return x.T(); }, [](const Dims& s) { return Expected{reversed(s)}; });
  add("transpose", [](const Tensor& x) { return x.transpose(0, -1); }, [](Dims s) { std::swap(s.front(), s.back()); return Expected{s}; });
  add("expand", [](const Tensor& x) { return x.expand(Ints(joined({4}, x.shape()))); }, [](const Dims& s) { return Expected{joined({4}, s)}; });
  add("expand_to_nothing", [](const Tensor& x) { return x.sum(-1, true).expand(Ints(with(x.shape(), size_t(x.ndim() - 1), 0))); }, [](const Dims& s) { return Expected{with(s, s.size() - 1, 0)}; });
  add("repeat", [](const Tensor& x) { return x.repeat(Ints(joined({2}, Dims(size_t(x.ndim()), 3)))); }, [](const Dims& s) { Dims t{2}; for (int64_t d : s) t.push_back(3 * d); return Expected{t}; });
  add("repeat_never", [](const Tensor& x) { return x.repeat(Ints(Dims(size_t(x.ndim()), 0))); }, [](const Dims& s) { return Expected{Dims(s.size(), 0)}; });
  add("pad", [](const Tensor& x) { return x.pad(Pairs(size_t(x.ndim()), {1, 2})); }, [](Dims s) { for (int64_t& d : s) d += 3; return Expected{s}; });
  add("pad_value", [](const Tensor& x) { return x.pad(Pairs(size_t(x.ndim()), {0, 1}), 2.5); }, [](Dims s) { for (int64_t& d : s) d += 1; return Expected{s, 2.5}; });
  add("pad_computed", [](const Tensor& x) { return (x * 3 + 1).pad(Pairs(size_t(x.ndim()), {2, 0}), -1); }, [](Dims s) { for (int64_t& d : s) d += 2; return Expected{s, -1}; });
  add("pad_replicate", [](const Tensor& x) { return x.pad(Pairs(size_t(x.ndim()), {1, 1}), 0, PadMode::Replicate); }, [](const Dims&) { return std::nullopt; });
  add("pad_nothing_reflect", [](const Tensor& x) { return x.pad(Pairs(size_t(x.ndim()), {0, 0}), 0, PadMode::Reflect); }, same);
  add("shrink", [](const Tensor& x) { Pairs p; for (int64_t d : x.shape()) p.emplace_back(std::min<int64_t>(1, d), d); return x.shrink(p); }, [](Dims s) { for (int64_t& d : s) d -= std::min<int64_t>(1, d); return Expected{s}; });
  add("flip_all", [](const Tensor& x) { Dims a; for (int64_t i = 0; i < x.ndim(); ++i) a.push_back(i); return x.flip(Ints(a)); }, same);
  add("roll_flat", [](const Tensor& x) { return x.roll(3); }, same);
  add("triu", [](const Tensor& x) { return x.triu(); }, same, 2);
  add("tril", [](const Tensor& x) { return x.tril(-1); }, same, 2);
  add("diag", [](const Tensor& x) { return x.diag(); }, [](const Dims&) { return Expected{{0, 0}}; }, 1, 1);
  add("diagonal", [](const Tensor& x) { return x.diagonal(); }, [](const Dims& s) { Dims t(s.begin() + 2, s.end()); t.push_back(std::min(s[0], s[1])); return Expected{t}; }, 2);
  add("rearrange", [](const Tensor& x) { return x.rearrange("a b -> (b a)"); }, [](const Dims&) { return Expected{{0}}; }, 2, 2);
  add("slice", [](const Tensor& x) { return x[Slice(0, {}, 2)]; }, [](const Dims& s) { return Expected{with(s, 0, (s[0] + 1) / 2)}; });
  add("slice_back", [](const Tensor& x) { return x[Slice({}, {}, -1)]; }, same);
  add("newaxis", [](const Tensor& x) { return x[{kNewAxis, kEllipsis}]; }, [](const Dims& s) { return Expected{joined({1}, s)}; });
  add("by_no_indices", [](const Tensor& x) { return x[Tensor::zeros({0}, DType::I32)]; }, [](const Dims& s) { return Expected{with(s, 0, 0)}; });
  add("by_indices", [](const Tensor& x) { return x[Tensor{0, 1}]; }, [](const Dims& s) { return Expected{with(s, 0, 2)}; });
  add("meshgrid", [](const Tensor& x) { return Tensor::meshgrid({x, Tensor{1.0, 2.0}})[1]; }, [](const Dims&) { return Expected{{0, 2}}; }, 1, 1);
  // storage
  add("contiguous", [](const Tensor& x) { return x.contiguous(); }, same);
  add("clone", [](const Tensor& x) { return x.clone(); }, same);
  add("assign", [](const Tensor& x) { Tensor y = (x + 1).clone(); return y.assign(x * 2); }, same);
  add("setitem", [](const Tensor& x) { Tensor y = x.clone(); y.setitem({kEllipsis}, 5.0); return y; }, same);
  add("setitem_by_indices", [](const Tensor& x) { Tensor y = x.clone(); y.setitem({Tensor::zeros({0}, DType::I32)}, 5.0); return y; }, same);
  // products
  add("matmul_inner", [](const Tensor& x) { return x.transpose(-1, -2).matmul(x); }, [](const Dims& s) { return Expected{with(s, s.size() - 2, s.back())}; }, 2);
  add("matmul_outer", [](const Tensor& x) { return x.matmul(x.transpose(-1, -2)); }, [](const Dims& s) { return Expected{with(s, s.size() - 1, s[s.size() - 2])}; }, 2);
  add("matmul_after", [](const Tensor& x) { return (x + 1).matmul((x * 2).transpose(-1, -2)).gelu() + 2; }, [](const Dims& s) { return Expected{with(s, s.size() - 1, s[s.size() - 2]), 2}; }, 2);
  add("dot", [](const Tensor& x) { return x.dot(x); }, [](const Dims&) { return Expected{{}}; }, 1, 1);
  add("linear", [](const Tensor& x) { return x.linear(Tensor::ones({x.shape(-1), 5}), Tensor::full({5}, 0.5)); }, [](const Dims& s) { return Expected{with(s, s.size() - 1, 5), 0.5}; });
  add("einsum", [](const Tensor& x) { return Tensor::einsum("...i,...i->...", {x, x}); }, [](const Dims& s) { return Expected{without(s, s.size() - 1)}; });
  add("einsum_all", [](const Tensor& x) { return Tensor::einsum("ij,jk->ki", {x, x.T()}); }, [](const Dims& s) { return Expected{{s[0], s[0]}}; }, 2, 2);
  add("attention", [](const Tensor& x) { return x.scaled_dot_product_attention(x, x); }, same, 2);
  // indices
  add("embedding", [](const Tensor& x) { return Tensor::ones({3, 4}).embedding(x.cast(DType::I32)); }, [](const Dims& s) { return Expected{joined(s, {4})}; });
  add("embedding_of_nothing", [](const Tensor& x) { return x.embedding(Tensor{0, 2}); }, [](const Dims& s) { return Expected{{2, s[1]}}; }, 2, 2);
  add("gather_of_nothing", [](const Tensor& x) { return x.gather(0, Tensor{0, 2}); }, [](const Dims&) { return Expected{{2}}; }, 1, 1);
  add("one_hot", [](const Tensor& x) { return x.cast(DType::I64).one_hot(3); }, [](const Dims& s) { return Expected{joined(s, {3})}; });
  add("one_hot_of_none", [](const Tensor& x) { return (x.sum(0) * 0).cast(DType::I32).one_hot(0); }, [](const Dims& s) { return Expected{joined(without(s, 0), {0})}; });
  add("masked_select", [](const Tensor& x) { return x.masked_select(x > 0); }, [](const Dims&) { return Expected{{0}}; });
  add("masked_select_size", [](const Tensor& x) { return x.masked_select(x > 0, 3, 9.0); }, [](const Dims&) { return Expected{{3}, 9}; });
  add("nonzero", [](const Tensor& x) { return x.nonzero(); }, [](const Dims& s) { return Expected{{0, int64_t(s.size())}}; });
  add("nonzero_size", [](const Tensor& x) { return x.nonzero(2, -1); }, [](const Dims& s) { return Expected{{2, int64_t(s.size())}, -1}; });
  // images and losses
  add("conv", [](const Tensor& x) { return x.conv2d(Tensor::ones({4, x.shape(1), 1}), Tensor::full({4}, 1.5)); }, [](const Dims& s) { if (s[2] == 0) return std::optional<Expected>();
        return std::optional(Expected{{s[0], 4, s[2]}, 1.5}); }, 3, 3);
  add("conv_padded", [](const Tensor& x) { return x.conv2d(Tensor::ones({4, x.shape(1), 1}), {}, {.padding = 2}); }, [](const Dims& s) { return Expected{{s[0], 4, s[2] + 4}}; }, 3, 3);
  add("conv_transpose", [](const Tensor& x) { return x.unsqueeze(2).conv_transpose2d(Tensor::ones({x.shape(1), 2, 3, 3}), {}, {.padding = Ints{0, 0, 0, 0}, .output_padding = 0}); }, [](const Dims& s) { return s[2] == 0 ? std::optional(Expected{{s[0], 2, 3, 2}}) : Expected{{s[0], 2, 3, s[2] + 2}}; }, 3, 3);
  add("max_pool", [](const Tensor& x) { return x.max_pool2d({1}); }, [](const Dims& s) -> std::optional<Expected> { if (s.back() == 0) return std::nullopt; return Expected{s}; });
  add("avg_pool", [](const Tensor& x) { return x.avg_pool2d({1}); }, [](const Dims& s) -> std::optional<Expected> { if (s.back() == 0) return std::nullopt; return Expected{s}; });
  add("interpolate", [](const Tensor& x) { return x.interpolate({4}); }, [](const Dims& s) -> std::optional<Expected> { if (s.back() == 0) return std::nullopt; return Expected{with(s, s.size() - 1, 4)}; });
  // No label names one of no classes.
  add("cross_entropy", [](const Tensor& x) { return x.cross_entropy(Tensor::zeros({x.shape(0)}, DType::I32)); }, [](const Dims& s) { return Expected{{}, s[0] == 0 || s[1] == 0 ? kNaN : 0.0}; }, 2, 2);
  add("cross_entropy_sum", [](const Tensor& x) { return x.cross_entropy(x, {.reduction = Reduction::Sum}); }, [](const Dims&) { return Expected{{}, 0}; }, 2, 2);
  add("batchnorm", [](const Tensor& x) { Tensor c = Tensor::ones({x.shape(0)}); return x.batchnorm(c, c, c, c, 0); }, same);
  add("dropout", [](const Tensor& x) { TrainingMode training; return x.dropout(0.5); }, same);
  add("rand_like", [](const Tensor& x) { return x.rand_like(); }, same);
  // gradients
  add("gradient_of_sum", [](const Tensor& x) { Tensor p = x.clone(); return (p * p).sum().gradient({p})[0]; }, same);
  add("gradient_of_pad", [](const Tensor& x) { Tensor p = x.clone(); return (p.pad(Pairs(size_t(p.ndim()), {1, 1})) * 3).exp().sum().gradient({p})[0]; }, same);
  add("gradient_of_softmax", [](const Tensor& x) { Tensor p = x.clone(); return p.softmax().square().sum().gradient({p})[0]; }, same);
  add("gradient_of_cumsum", [](const Tensor& x) { Tensor p = x.clone(); return p.cumsum(0).square().sum().gradient({p})[0]; }, same);
  add("gradient_of_product", [](const Tensor& x) { Tensor p = x.clone(); return p.matmul(p.transpose(-1, -2)).sum().gradient({p})[0]; }, same, 2);
  add("gradient_of_weight", [](const Tensor& x) { Tensor w = Tensor::ones({x.shape(-1), 5}).clone(); return x.matmul(w).sum().gradient({w})[0]; }, [](const Dims& s) { return Expected{{s.back(), 5}}; }, 2);
  add("gradient_of_gather", [](const Tensor& x) { Tensor p = Tensor::ones({3, 2}).clone(); return p.embedding(x.cast(DType::I32)).sum().gradient({p})[0]; }, [](const Dims&) { return Expected{{3, 2}}; });
  // clang-format on
  return out;
}

std::string text_of(const Tensor& x) {
  std::ostringstream out;
  out << x;
  return out.str();
}

void compare(const Tensor& actual, const Expected& expected, const std::string& where) {
  ASSERT_EQ(actual.shape(), expected.shape) << where;
  std::vector<double> values = actual.to_vector<double>();
  ASSERT_EQ(values.size(), size_t(product(expected.shape))) << where;
  for (double v : values) {
    bool same = std::isnan(expected.value) ? std::isnan(v) : v == expected.value;
    ASSERT_TRUE(same) << where << ": " << expected.value << " everywhere is right, this is\n"
                      << text_of(actual);
  }
}

const std::vector<Dims> kShapes{{0},    {0, 3},    {3, 0},    {0, 0},
                                {1, 0}, {0, 1, 2}, {2, 0, 3}, {2, 4, 0}};

class Empty : public ::testing::TestWithParam<int> {};

// The placements of an empty tensor on so many devices.
std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> placements(int devices,
                                                                                     size_t rank) {
  std::vector<std::pair<std::string, std::function<Tensor(const Tensor&)>>> out;
  if (devices == 1) {
    out.emplace_back("one device", [](const Tensor& x) { return x; });
    return out;
  }
  std::vector<DeviceRef> named;
  for (int i = 0; i < devices; ++i) named.push_back({.kind = device_kind(), .index = i});
  Mesh mesh = devices == 2 ? Mesh({{"a", 2}}, named) : Mesh({{"a", 2}, {"b", 2}}, named);
  out.emplace_back("everywhere", [=](const Tensor& x) { return x.shard(mesh); });
  for (int d = 0; d < int(rank); ++d) {
    out.emplace_back("dim " + std::to_string(d),
                     [=](const Tensor& x) { return x.shard(mesh, {{"a", Shard(d)}}); });
    if (devices == 4)
      out.emplace_back("twice in dim " + std::to_string(d), [=](const Tensor& x) {
        return x.shard(mesh, {{"a", Shard(d)}, {"b", Shard(d)}});
      });
  }
  return out;
}

TEST_P(Empty, GoesThroughEveryOp) {
  const int devices = GetParam();
  TINYSHARD_NEED_DEVICES(devices);
  for (const Case& c : cases()) {
    for (const Dims& shape : kShapes) {
      if (shape.size() < c.least_rank || shape.size() > c.most_rank) continue;
      for (const auto& [place_name, place] : placements(devices, shape.size())) {
        for (bool realized : {false, true}) {
          std::string where = c.name + " of " + tinyshard::to_string(shape) +
                              (realized ? ", realized, " : ", ") + place_name;
          try {
            Tensor x = place(realized ? Tensor::zeros(shape).contiguous() : Tensor::zeros(shape));
            if (realized) x.realize();
            std::optional<Expected> expected = c.expected(shape);
            if (!expected) {
              EXPECT_THROW(c.run(x).to_vector<double>(), UserError) << where;
              continue;
            }
            compare(c.run(x), *expected, where);
            // And on, from what has not been computed.
            Tensor more = c.run(x).cast(DType::F64).flatten().pad({{1, 0}}, expected->value);
            compare(more, {{product(expected->shape) + 1}, expected->value},
                    where + ", then padded");
          } catch (const std::exception& error) {
            ADD_FAILURE() << where << ": " << error.what();
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, Empty, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace tinyshard::empty_test
