// Mistakes are sentences: what each says, and that it names the line that made it.
#include "core/base/error.h"

#include <cmath>
#include <functional>
#include <limits>
#include <ostream>
#include <sstream>

#include <gtest/gtest.h>

#include "core/base/option_scope.h"
#include "core/exec/runtime.h"
#include "core/nn/files.h"
#include "core/nn/state_dict.h"
#include "core/tensor/jit.h"
#include "core/tensor/map_file.h"
#include "core/tensor/tensor.h"
#include "tests/message_of.h"

namespace tinyshard::error_test {
namespace {

Tensor of(const Dims& shape, DType dtype = DType::F32) { return Tensor::empty(shape, dtype); }
Tensor cat_of(size_t count, const Tensor& part, Caller caller = Caller::current()) {
  return cat(std::vector<Tensor>(count, part), 0, caller);
}
constexpr int64_t k32 = int64_t{1} << 32, k62 = int64_t{1} << 62;

struct Mistake {
  const char* name;
  std::function<void()> make;
  const char* says;
  int line;  // of the call; 0 where a call cannot know it
};
void PrintTo(const Mistake& mistake, std::ostream* out) { *out << mistake.name; }

#define MISTAKE(name, call, says)              \
  Mistake {                                    \
    name, [] { (void)(call); }, says, __LINE__ \
  }
#define MISTAKE_WITHOUT_LINE(name, call, says) Mistake{name, [] { (void)(call); }, says, 0}

std::vector<Mistake> mistakes() {
  // clang-format off
  return {
    MISTAKE("add", of({3, 4}) + of({3, 5}), "add: shapes [3, 4] and [3, 5] do not broadcast: 4 against 5 in dim -1"),
    MISTAKE("compare", of({3, 4}) < of({5}), "lt: shapes [3, 4] and [5] do not broadcast"),
    MISTAKE("method", of({3, 4}).maximum(of({2, 4})), "maximum: shapes [3, 4] and [2, 4] do not broadcast"),
    MISTAKE("where", of({3}, DType::Bool).where(of({4}), 1), "where: shapes [3] and [4] do not broadcast"),
    MISTAKE("bits", of({3}) & of({3}, DType::I32), "bitwise_and: needs integers or bools, not f32[3] and i32[3]"),
    MISTAKE("not", of({3}).bitwise_not(), "bitwise_not: needs integers or bools, not f32[3]"),
    MISTAKE("shift", of({3}) << 2, "lshift: needs integers, not f32[3] and 2"),
    MISTAKE("clamp", of({3}).clamp({}), "clamp: needs a min, a max or both"),
    MISTAKE("matmul_transposed", of({32, 784}).matmul(of({128, 784})), "matmul: inner sizes differ: x is f32[32, 784], w is f32[128, 784]; did you mean w.T()?"),
    MISTAKE("matmul", of({3, 4}).matmul(of({5, 6})), "matmul: inner sizes differ: x is f32[3, 4], w is f32[5, 6]"),
    MISTAKE("matmul_scalar", of({}).matmul(of({3})), "matmul: x is f32[], w is f32[3]: both need at least one dim"),
    MISTAKE("matmul_batch", of({2, 3, 4}).matmul(of({5, 4, 2})), "matmul: shapes [2] and [5] do not broadcast"),
    MISTAKE("linear", of({3, 4}).linear(of({4, 2}), of({3})), "linear: bias is f32[3], but the weight f32[4, 2] makes rows of 2"),
    MISTAKE("linear_inner", of({3, 4}).linear(of({5, 2})), "linear: inner sizes differ"),
    MISTAKE("einsum_count", Tensor::einsum("ij,jk->ik", {of({2, 3})}), "einsum: formula \"ij,jk->ik\" has 2 operands, 1 given"),
    MISTAKE("einsum_output", Tensor::einsum("ij->ik", {of({2, 3})}), "einsum: output letter \"k\" of \"ij->ik\" must occur once, and in an input"),
    MISTAKE("einsum_dims", Tensor::einsum("ijk->i", {of({2, 3})}), "einsum: \"ijk\" does not name the 2 dims of f32[2, 3]"),
    MISTAKE("einsum_sizes", Tensor::einsum("i,i->", {of({2}), of({3})}), "einsum: dim 0 of f32[3] is 3 where another operand has 2"),
    MISTAKE("conv_channels", of({1, 3, 5, 5}).conv2d(of({2, 2, 3, 3})), "conv2d: x is f32[1, 3, 5, 5] with 3 channels, weight f32[2, 2, 3, 3] in 1 groups expects 2"),
    MISTAKE("conv_kernel", of({1, 1, 2, 2}).conv2d(of({1, 1, 3, 3})), "conv2d: weight f32[1, 1, 3, 3] is larger than x f32[1, 1, 2, 2] with padding (0, 0) in dim 2"),
    MISTAKE("conv_groups", of({1, 4, 5, 5}).conv2d(of({3, 2, 3, 3}), {}, {.groups = 2}), "conv2d: 3 output channels do not divide into 2 groups"),
    MISTAKE("conv_bias", of({1, 1, 5, 5}).conv2d(of({2, 1, 3, 3}), of({3})), "conv2d: bias is f32[3], but there are 2 output channels"),
    MISTAKE("conv_rank", of({5, 5}).conv2d(of({2, 1, 3, 3})), "conv2d: x is f32[5, 5], weight is f32[2, 1, 3, 3]: both need a batch"),
    MISTAKE("conv_stride", of({1, 1, 5, 5}).conv2d(of({2, 1, 3, 3}), {}, {.stride = {1, 2, 3}}), "conv2d: stride has 3 values for 2 dims"),
    MISTAKE("conv_transpose", of({1, 3, 4, 4}).conv_transpose2d(of({2, 2, 3, 3})), "conv_transpose2d: x is f32[1, 3, 4, 4] with 3 channels"),
    MISTAKE("conv_negative_padding", of({1, 1, 5, 5}).conv2d(of({2, 1, 3, 3}), {}, {.padding = -1}), "conv2d: padding (-1, -1) is negative: shrink cuts what is not wanted of x"),
    MISTAKE("conv_transpose_padding", of({1, 1, 5, 5}).conv_transpose2d(of({1, 2, 3, 3}), {}, {.padding = -1}), "conv_transpose2d: padding (-1, -1) is negative"),
    MISTAKE("output_padding", of({1, 1, 5, 5}).conv_transpose2d(of({1, 2, 3, 3}), {}, {.output_padding = 100}), "conv_transpose2d: output_padding 100 of dim 2 is not between 0 and its stride 1 or dilation 1"),
    MISTAKE("pool_padding", of({1, 1, 5, 5}).max_pool2d(2, {.padding = 50}), "max_pool2d: padding (50, 50) holds a whole window of 2"),
    MISTAKE("pool", of({1, 1, 2, 2}).max_pool2d(3), "max_pool2d: a window of 3 is larger than dim 2 of f32[1, 1, 2, 2]"),
    MISTAKE("interpolate", of({3}).interpolate({2, 2}), "interpolate: 2 sizes for the 1 dims of f32[3]"),
    MISTAKE("reshape", of({2, 3}).reshape({4, 2}), "reshape: f32[2, 3] has 6 elements, shape [4, 2] has 8"),
    MISTAKE("reshape_inferred", of({2, 3}).reshape({4, -1}), "reshape: f32[2, 3] has 6 elements, which do not divide into shape [4, -1]"),
    MISTAKE("reshape_two", of({2, 3}).view({-1, -1}), "view: shape [-1, -1] has more than one -1"),
    MISTAKE("reshape_negative", of({2, 3}).reshape({-2, -3}), "reshape: shape [-2, -3] has a negative size"),
    MISTAKE("unflatten", of({2, 4}).unflatten(1, {3, 2}), "unflatten: f32[2, 4] has 4 elements"),
    MISTAKE("flatten", of({2, 4}).flatten(1, 0), "flatten: start_dim 1 comes after end_dim 0"),
    MISTAKE("permute", of({2, 3}).permute({0, 0}), "permute: order [0, 0] is not a permutation of the 2 dims of f32[2, 3]"),
    MISTAKE("transpose", of({2, 3}).transpose(0, 2), "transpose: axis 2 is out of range for a tensor of 2 dims; it goes from -2 to 1"),
    MISTAKE("expand", of({2, 3}).expand({2, 4}), "expand: f32[2, 3] does not expand to shape [2, 4]"),
    MISTAKE("expand_new", of({3}).expand({-1, 3}), "expand: f32[3] does not expand to shape [-1, 3]: -1 keeps a size, but that dim is new"),
    MISTAKE("flip_twice", of({2, 3}).flip({0, 0}), "flip: axis 0 is given twice"),
    MISTAKE("shrink", of({4}).shrink({{0, 5}}), "shrink: bounds [0, 5) of dim 0 do not lie inside f32[4]"),
    MISTAKE("shrink_count", of({4, 2}).shrink({{0, 2}}), "shrink: 1 pairs of bounds for the 2 dims of f32[4, 2]"),
    MISTAKE("pad_count", of({4, 2}).pad({{1, 1}}), "pad: 1 pairs of padding for the 2 dims of f32[4, 2]"),
    MISTAKE("pad_negative", of({2}).pad({{-1, -2}}), "pad: padding (-1, -2) of dim 0 takes more than there is in f32[2]"),
    MISTAKE("pad_reflect", of({3}).pad({{3, 0}}, 0, PadMode::Reflect), "pad: padding (3, 0) of dim 0 with its own values: f32[3] has only 3 there"),
    MISTAKE("split", of({5}).split({1, 3}), "split: sizes [1, 3] do not add up to dim 0 of f32[5]"),
    MISTAKE("chunk", of({5}).chunk(0), "chunk: 0 chunks: there is at least one"),
    MISTAKE("split_nothing", of({5}).split(0), "split: parts of 0 elements: a part has at least one"),
    MISTAKE("randperm", Tensor::randperm(-1), "randperm: -1 elements: a number of elements is not negative"),
    MISTAKE("not_of_floats", ~of({3}), "bitwise_not: needs integers or bools, not f32[3]"),
    MISTAKE("add_a_half", ([](const Tensor& t) { return t += 0.5; }(of({2}, DType::I32))), "+=: the left side is i32[2] and stays it, but the result is f32[2]"),
    MISTAKE("heads", of({1, 4, 3, 8}).scaled_dot_product_attention(of({1, 2, 3, 8}), of({1, 2, 3, 8})), "enable_gqa"),
    MISTAKE("shrink_to", of({4, 2}).shrink_to({5, 2}), "shrink_to: size 5 of dim 0 is not between 0 and that of f32[4, 2]; pad_to makes it longer"),
    MISTAKE("shrink_to_negative", of({4}).shrink_to({-2}), "shrink_to: size -2 of dim 0"),
    MISTAKE("pad_to", of({4, 2}).pad_to({3, 2}), "pad_to: size 3 of dim 0 is less than that of f32[4, 2]; shrink_to cuts"),
    MISTAKE("pad_to_count", of({4, 2}).pad_to({8}), "pad_to: 1 sizes for the 2 dims of f32[4, 2]"),
    MISTAKE("device", of({4}).shard({"CPU:0", "CPU:1"}, 0).device(), "is on 2 devices, CPU:0 and others: devices() lists them"),
    MISTAKE("configure", Runtime::configure({}), "Runtime::configure: devices are in use already"),
    MISTAKE("synchronize", Runtime::synchronize("FOO"), "Runtime::synchronize: there is no kind of device named \"FOO\""),
    MISTAKE("safe_load", safe_load("/no/file"), "safe_load: cannot open /no/file: No such file"),
    MISTAKE("safe_load_metadata", safe_load_metadata("/no/file"), "safe_load_metadata: cannot open /no/file: No such file"),
    MISTAKE("torch_load", torch_load("/no/file"), "torch_load: cannot open /no/file: No such file"),
    MISTAKE("gguf_load", gguf_load("/no/file"), "gguf_load: cannot open /no/file: No such file"),
    MISTAKE("npy_load", npy_load("/no/file"), "npy_load: cannot open /no/file: No such file"),
    MISTAKE("npz_load", npz_load("/no/file"), "npz_load: cannot open /no/file: No such file"),
    MISTAKE("map_file", map_file("/no/file", {2}, DType::F32), "map_file: cannot open /no/file: No such file"),
    MISTAKE("map_file_shape", map_file("/no/file", {-2}, DType::F32), "map_file: a shape has no negative sizes: [-2]"),
    MISTAKE("load_floats", safe_load(of({4})), "safe_load: the bytes of a file are u8[n], not f32[4]"),
    MISTAKE("load_nothing", gguf_load(std::span<const std::byte>()), "gguf_load: a file of 0 bytes in memory"),
    MISTAKE("mesh_size", Mesh({{"d", 4000}}), "Mesh: a mesh of 4000 devices, but the job has"),
    MISTAKE("mesh_world", Mesh::world({{"a", 4000}}), "Mesh::world: a=4000 needs 4000 devices, but the job has"),
    MISTAKE("mesh_twice", Mesh::of({"CPU:0", "CPU:0"}), "Mesh::of: device CPU:0 stands twice in a mesh"),
    MISTAKE("shard_twice", of({4}).shard({"CPU:0", "CPU:0"}, 0), "shard: device CPU:0 stands twice in a mesh"),
    MISTAKE("scope_name", OptionScope({{"DEBUGG", 1}}), "OptionScope: DEBUGG is no option; a scope may set DEBUG, SPEC, BEAM"),
    MISTAKE("scope_once", OptionScope({{"TS_DEVICES", "CPU"}}), "OptionScope: TS_DEVICES is read once, from the environment; a scope may set DEBUG"),
    MISTAKE("scope_value", OptionScope({{"DEBUG", "two"}}), "OptionScope: DEBUG=\"two\" is not a number"),
    MISTAKE("scope_range", OptionScope({{"JIT", 7}}), "OptionScope: JIT=\"7\" must be 0, 1 or 2"),
    MISTAKE("cat", cat({of({2, 3}), of({2, 4})}), "cat: shapes differ outside of dim 0: f32[2, 3] and f32[2, 4]"),
    MISTAKE("cat_nothing", cat({}), "cat: no tensors"),
    MISTAKE("stack", stack({of({2}), of({3})}), "stack: shapes differ: f32[2] and f32[3]"),
    MISTAKE("repeat", of({2, 3}).repeat(2), "repeat: 1 repeats for the 2 dims of f32[2, 3]"),
    MISTAKE("roll", of({2, 3}).roll({1, 2}, 0), "roll: 2 shifts for 1 dims"),
    MISTAKE("diag", of({2, 2}).diag(), "diag: needs a tensor of one dim, not f32[2, 2]"),
    MISTAKE("unfold", of({3}).unfold(0, 4, 1), "unfold: windows of 4 every 1 in dim 0 of f32[3]: a window has 0 to 3 elements"),
    MISTAKE("triu", of({3}).triu(), "triu: needs two dims, not f32[3]"),
    MISTAKE("rearrange", of({2, 3}).rearrange("(a b -> a b"), "rearrange: brackets of \"(a b -> a b\" do not match"),
    MISTAKE("rearrange_arrow", of({2, 3}).rearrange("a b"), "rearrange: \"a b\" must have one ->"),
    MISTAKE("rearrange_size", of({6, 4}).rearrange("(a b) c -> a b c", {{"a", 4}}), "rearrange: dim 0 of f32[6, 4] does not divide as \"(a b) c -> a b c\" says: 6 by 4"),
    MISTAKE("rearrange_name", of({2, 3}).rearrange("a b -> a c"), "rearrange: \"c\" must occur once on each side"),
    MISTAKE("index_number", of({3, 4})[3], "getitem: index 3 is out of bounds for dim 0 of f32[3, 4]"),
    MISTAKE("index_count", (of({3, 4})[{0, 0, 0}]), "getitem: 3 indices for the 2 dims of f32[3, 4]"),
    MISTAKE("index_step", of({3, 4})[Slice(0, 3, 0)], "getitem: slice step cannot be 0"),
    MISTAKE("index_float", of({3, 4})[of({2})], "getitem: an index must hold integers, not f32[2]"),
    MISTAKE("index_bool", of({3, 4})[of({3}, DType::Bool)], "getitem: a bool index bool[3] makes a shape that depends on values; use masked_select or where"),
    MISTAKE("gather", of({3, 4}).gather(1, of({4, 4}, DType::I32)), "gather: index i32[4, 4] must have the dims of f32[3, 4], none larger except dim 1"),
    MISTAKE("embedding", of({3, 4}).embedding(of({2})), "embedding: index must hold integers, not f32[2]"),
    MISTAKE("scatter", of({3, 5}).scatter(0, of({1, 5}, DType::I32), of({1, 3})), "scatter: index i32[1, 5] does not fit src f32[1, 3] and x f32[3, 5]"),
    MISTAKE("scatter_type", of({3}).scatter(0, of({2}, DType::I32), of({2}, DType::F64)), "scatter: src is f64[2], x is f32[3]: cast one of them"),
    MISTAKE("masked_select", of({3}).masked_select(of({3}, DType::I32)), "masked_select: mask must hold bools, not i32[3]"),
    MISTAKE("sort", of({3, 3}).sort(2), "sort: axis 2 is out of range"),
    MISTAKE("topk", of({3}).topk(4), "topk: k = 4 is not between 0 and the size of dim 0 of f32[3]"),
    MISTAKE("one_hot", of({3}, DType::I32).one_hot(-2), "one_hot: -2 classes: a number of classes is not negative"),
    MISTAKE("sum_axis", of({2, 3}).sum(2), "sum: axis 2 is out of range for a tensor of 2 dims; it goes from -2 to 1"),
    MISTAKE("sum_twice", of({2, 3}).sum({0, -2}), "sum: axis 0 is given twice"),
    MISTAKE("softmax_axis", of({2, 3}).softmax(-3), "softmax: axis -3 is out of range"),
    MISTAKE("layernorm", of({2, 3}, DType::I32).layernorm(), "layernorm: needs a tensor of floats, not i32[2, 3]; cast it first"),
    MISTAKE("batchnorm", of({2, 3, 4}).batchnorm({}, {}, of({4}), of({3})), "batchnorm: mean is f32[4], x is f32[2, 3, 4]"),
    MISTAKE("dropout", of({2}).dropout(1.5), "dropout: p = 1.5 is not a probability"),
    MISTAKE("attention", of({2, 3, 4}).scaled_dot_product_attention(of({2, 5, 3}), of({2, 5, 4})), "scaled_dot_product_attention: query is f32[2, 3, 4], key is f32[2, 5, 3]"),
    MISTAKE("sparse_shape", of({2, 3}).sparse_categorical_crossentropy(of({3}, DType::I32)), "sparse_categorical_crossentropy: labels are i32[3], but x is f32[2, 3] with its classes in dim 1"),
    MISTAKE("sparse_type", of({2, 3}).sparse_categorical_crossentropy(of({2})), "sparse_categorical_crossentropy: labels must hold integers, not f32[2]"),
    MISTAKE("smoothing", of({2, 3}).cross_entropy(of({2}, DType::I32), {.label_smoothing = 1.5}), "cross_entropy: label_smoothing 1.5 is not between 0 and 1"),
    MISTAKE("cross_entropy", of({2, 3}).cross_entropy(of({2, 4})), "cross_entropy: target f32[2, 4] has neither the shape of x f32[2, 3] (probabilities) nor is it integer labels"),
    MISTAKE("nll_weight", of({2, 3}).nll_loss(of({2}, DType::I32), of({4})), "nll_loss: weight is f32[4] for 3 classes"),
    MISTAKE("item", of({2, 3}).item<float>(), "item: f32[2, 3] has 6 elements, not one"),
    MISTAKE("shape_dim", of({2, 3}).shape(2), "shape: axis 2 is out of range"),
    MISTAKE("assign_type", of({2}).assign(of({2}, DType::F64)), "assign: the target is f32[2], the value is f64[2]: cast it to f32"),
    MISTAKE("assign_shape", of({2, 3}).assign(of({3, 3})), "assign: shapes [2, 3] and [3, 3] do not broadcast"),
    MISTAKE("assign_larger", of({1, 3}).assign(of({2, 3})), "assign: the target is f32[1, 3], the value is f32[2, 3]"),
    MISTAKE("replace", of({2}).replace(of({3})), "replace: the target is f32[2], the value is f32[3]"),
    MISTAKE("param", of({2}, DType::I32).is_param_(), "is_param_: a parameter holds floats, not i32[2]"),
    MISTAKE("backward_shape", of({2}).backward(), "backward: f32[2] is not one number: reduce it (sum, mean) or give the gradient that arrives at it"),
    MISTAKE("backward_type", of({}, DType::I32).backward(), "backward: i32[] holds no floats, so it has no gradient"),
    MISTAKE("backward_alone", (of({2}) * 2).sum().backward(), "depends on no parameter: mark parameters with is_param_()"),
    MISTAKE("gradient_alone", (of({2}) * 2).sum().gradient({of({3})}), "gradient: f32[] does not depend on target 0, f32[3]"),
    MISTAKE("gradient_seed", (of({2}) * 2).gradient({of({2})}, of({3})), "gradient: the tensor is f32[2], the gradient that arrives at it is f32[3]"),
    MISTAKE("bitcast", of({3}, DType::U8).bitcast(DType::F32), "bitcast: the last dim of u8[3] has 3 bytes, not a multiple of the 4 of f32"),
    MISTAKE("arange", Tensor::arange(0, 5, 0), "arange: step is zero"),
    MISTAKE("arange_nan", Tensor::arange(0, NAN, 1), "arange: from 0 to nan by 1 never ends"),
    MISTAKE("arange_infinite", Tensor::arange(0, INFINITY, 1), "arange: from 0 to inf by 1 never ends"),
    MISTAKE("linspace", Tensor::linspace(0, 1, -1), "linspace: -1 steps"),
    MISTAKE("data", Tensor(std::vector<float>{1, 2, 3}, {2, 2}), "tensor: 3 elements for shape [2, 2]"),
    MISTAKE("multinomial", of({4}).multinomial(5), "multinomial: 5 samples without replacement from 4 weights"),
    MISTAKE("zeros", Tensor::zeros({2, -1}), "zeros: shape [2, -1] has a negative size"),
    MISTAKE("rand", Tensor::rand({2}, DType::I32), "rand: draws floats, not i32; use randint for integers"),
    MISTAKE("randint", Tensor::randint({2}, 5, 5), "randint: there is no integer from 5 up to but not including 5"),
    MISTAKE("large_data", Tensor(std::vector<float>{}, {k32, k32}), "tensor: f32[4294967296, 4294967296] is too large: elements and bytes must stay below 2^62"),
    MISTAKE("large_behind_zero", Tensor::zeros({0, k32, k32}), "zeros: f32[0, 4294967296, 4294967296] is too large"),
    MISTAKE("large_reshape", of({0}).reshape({k32, k32}), "reshape: f32[0] has 0 elements, shape [4294967296, 4294967296] has"),
    MISTAKE("large_ones", Tensor::ones({k62}), "ones: f32[4611686018427387904] is too large"),
    MISTAKE("large_bytes", Tensor::zeros({1L << 30, 1L << 30}), "zeros: f32[1073741824, 1073741824] is too large"),
    MISTAKE("large_cast", Tensor::zeros({1L << 61}, DType::U8) + 0.5, "add: f32[2305843009213693952] is too large"),
    MISTAKE("large_empty", Tensor::empty({INT64_MAX}), "empty: f32[9223372036854775807] is too large"),
    MISTAKE("large_rand", Tensor::rand({1L << 31, 1L << 31, 6}), "rand: u64[2147483648, 2147483648, 6] is too large"),
    MISTAKE("large_glorot", Tensor::glorot_uniform({3, INT64_MAX, INT64_MAX}), "glorot_uniform: u64[3, 9223372036854775807, 9223372036854775807] is too large"),
    MISTAKE("large_rank", Tensor::zeros(Ints(Dims(65, 1))), "zeros: a shape of 65 dims; there are at most 64"),
    MISTAKE("large_arange", Tensor::arange(k62), "arange: i32[4611686018427387904] is too large"),
    MISTAKE("large_eye", Tensor::eye(1L << 31), "eye: i64[2147483648, 2147483648] is too large"),
    MISTAKE("large_repeat", Tensor::arange(3).repeat({k62}), "repeat: i32[4611686018427387904, 3] is too large"),
    MISTAKE("large_interleave", Tensor::arange(3).repeat_interleave(INT64_MAX, 0), "repeat_interleave: i32[3, 9223372036854775807] is too large"),
    MISTAKE("large_expand", of({1, 1}).expand({1L << 31, 1L << 31}), "expand: f32[2147483648, 2147483648] is too large"),
    MISTAKE("large_cat", cat_of(3, Tensor::ones({1L << 61}, DType::U8)), "cat: u8[4611686018427387904] is too large"),
    MISTAKE("large_pad", of({3}).pad({{INT64_MAX, INT64_MAX}}), "pad: f32[4611686018427387904] is too large"),
    MISTAKE("pad_lowest", of({3}).pad({{INT64_MIN, 0}}), "pad: padding (-9223372036854775808, 0) of dim 0 takes more than there is in f32[3]"),
    MISTAKE("rearrange_negative", of({4, 4}).rearrange("(a b) c -> b a c", {{"a", -2}}), "rearrange: \"a\" has the size -2"),
    MISTAKE("split_negative", of({4}).split(Dims{-1, 5}), "split: a part of -1 elements in [-1, 5]"),
    MISTAKE("split_many", Tensor::zeros({1L << 40}).split(1), "split: 1099511627776 parts; at most 1048576 are made"),
    MISTAKE("chunk_many", Tensor::zeros({0}).chunk(k32), "chunk: 4294967296 parts; at most 1048576 are made"),
    MISTAKE("nonzero_negative", of({4}).nonzero(-4), "nonzero: shape [-4, 1] has a negative size"),
    MISTAKE("masked_negative", of({4}).masked_select(of({4}, DType::Bool), -4), "masked_select: shape [-4] has a negative size"),
    MISTAKE("conv_reach", of({1, 1, 5, 5}).conv2d(of({1, 1, 3, 3}), {}, {.dilation = INT64_MAX}), "conv2d: weight f32[1, 1, 3, 3] is larger than x f32[1, 1, 5, 5]"),
    MISTAKE("conv_padding", of({1, 1, 5, 5}).conv2d(of({1, 1, 3, 3}), {}, {.padding = INT64_MAX}), "conv2d: f32[1, 1, 4611686018427387902, 4611686018427387902] is too large"),
    MISTAKE("pool_kernel", of({1, 1, 5, 5}).max_pool2d(INT64_MAX), "max_pool2d: a window of 4611686018427387904 is larger than dim 2 of f32[1, 1, 5, 5]"),
    MISTAKE("unpool_negative", of({1, 1, 2, 2}).max_unpool2d(of({1, 1, 2, 2}, DType::I32), 2, {.padding = 9}), "max_unpool2d: shape [1, 1, -14, -14] has a negative size"),
    MISTAKE("too_many_truths", Tensor::full({k32}, true).sum(), "sum: i32 does not count the elements of bool[4294967296]: give it the type i64"),
    MISTAKE("too_many_running_truths", Tensor::full({k32}, true).cumsum(0), "cumsum: i32 does not count the elements of bool[4294967296]"),
    MISTAKE("too_many_places", Tensor::zeros({k32}, DType::U8).argmax(), "argmax: i32 does not count the elements of u8[4294967296]"),
    MISTAKE("steps", of({2, 2}).newton_schulz(INT64_MAX, {1}), "newton_schulz: 9223372036854775807 steps; between 0 and 1000 are possible"),
    MISTAKE("no_type", Tensor::zeros({3}, DType(200)), "zeros: 200 is not a dtype"),
    MISTAKE("scalar_roll", Tensor(1.0).roll(1, 0), "roll: f32[] has no dim 0"),
    MISTAKE("scalar_interleave", Tensor(1.0).repeat_interleave(1, -1), "repeat_interleave: f32[] has no dim -1"),
    MISTAKE("scalar_unflatten", Tensor(1.0).unflatten(0, {1}), "unflatten: f32[] has no dim 0"),
    MISTAKE("scalar_split", Tensor(1.0).split(1), "split: dim 0 of f32[], which has none"),
    MISTAKE("argmax_nothing", of({2, 0}).argmax(1), "argmax: f32[2, 0] has no elements along [1]"),
    MISTAKE("argmin_nothing", of({0}).argmin(), "argmin: f32[0] has no elements along [0]"),
    MISTAKE("beyond_i32", (Tensor{3000000000}), "tensor: 3000000000 does not fit i32, the type of whole numbers in braces: Tensor(std::vector<int64_t>{...}) holds larger ones"),
    MISTAKE("ragged", (Tensor{{1, 2}, {3}}), "tensor: rows of different length: 2 and 1"),
    MISTAKE("depth", (Tensor{{1, 2}, 3}), "tensor: rows of different depth"),
    MISTAKE_WITHOUT_LINE("undefined", Tensor().relu(), "relu: a tensor that was never given a value"),
    MISTAKE("to_text", of({4}).to("CPU:x"), "to: \"CPU:x\" names no device: a kind, or a kind and a number from 0"),
    MISTAKE("to_negative", of({4}).to("CPU:-1"), "to: \"CPU:-1\" names no device"),
    MISTAKE("to_beyond", of({4}).to("CPU:99999999999999999999"), "to: \"CPU:99999999999999999999\" names no device"),
    MISTAKE("mesh_wraps", (Mesh({{"a", k32}, {"b", k32}}, std::vector<DeviceRef>())), "a mesh of 4611686018427387904 places cannot hold 0 devices"),
    MISTAKE("shard_axis", of({4}).shard(Mesh::of({"CPU:0", "CPU:1"}), {{"rows", Shard(0)}}), "has no axis \"rows\"; its axes: \"data\""),
    MISTAKE("shard_dim", of({4}).shard(Mesh::of({"CPU:0", "CPU:1"}), {{"data", Shard(1)}}), "shard: axis 1 is out of range for a tensor of 1 dims"),
    MISTAKE("shard_partial", of({4}).shard(Mesh::of({"CPU:0", "CPU:1"}), {{"data", Partial()}}), "shard: a value is divided or copied, and not made a pending sum"),
    MISTAKE("device_kind", Mesh::of({"FOO:0"}), "there is no kind of device named \"FOO\""),
    MISTAKE("device_count", of({2}).to("CPU:7000"), "no device \"CPU:7000\": there are 1024 of kind CPU"),
    MISTAKE("mesh_axis", Mesh({{"", 1}}), "mesh axis 0 of size 1 has no name"),
    MISTAKE_WITHOUT_LINE("meshes_alike", (of({4}).shard({"CPU:0", "CPU:1"}, 0) + of({4}).shard({"CPU:0", "CPU:3"}, 0)).realize(),
      "on mesh(data=2) with CPU:1 at place 1 and on mesh(data=2) with CPU:3 at place 1"),
    MISTAKE_WITHOUT_LINE("no_values", (of({4}).shard(Mesh({{"data", 2}}, {{"CPU", DeviceRef::kHere, 0}, {"NULL", DeviceRef::kHere, 0}}), {{"data", Shard(0)}}) + 1).realize(),
      "which plans what it is told and computes nothing"),
    MISTAKE("svd_large", Tensor::zeros({3, 1 << 20}).svd(), "svd: f32[3, 1048576] is too large for a decomposition on the host"),
    MISTAKE("qr_many", Tensor::zeros({k32, 2, 0}).qr(), "qr: f32[4294967296, 2, 0] is too large for a decomposition on the host"),
    MISTAKE("svd", of({3}).svd(), "svd: needs at least two dims, not f32[3]"),
  };
  // clang-format on
}

class Errors : public ::testing::TestWithParam<Mistake> {};

TEST_P(Errors, SayWhatIsWrongAndWhere) {
  const Mistake& mistake = GetParam();
  try {
    mistake.make();
    FAIL() << "no error";
  } catch (const UserError& error) {
    std::string text = error.what();
    EXPECT_NE(text.find(mistake.says), std::string::npos) << text;
    std::string place = "  (error_test.cpp:" + std::to_string(mistake.line) + ")";
    if (mistake.line) {
      EXPECT_TRUE(text.ends_with(place)) << text << ", not in line " << mistake.line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Mistakes, Errors, ::testing::ValuesIn(mistakes()),
                         [](const auto& info) { return info.param.name; });

TEST(ErrorsOf, NestedCallsNameTheOutermost) {
  try {
    of({2, 3}).chunk(2, 5);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find("chunk: "), 0u) << error.what();
  }
  // And nothing of it stays behind.
  try {
    of({3, 4}) + of({5});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(std::string(error.what()).find("add: "), 0u) << error.what();
  }
}

TEST(ErrorsOf, GradientsAfterReadingSayWhy) {
  Tensor w = Tensor::ones({2}).is_param_();
  Tensor loss = (w * 3).sum();
  EXPECT_EQ(loss.item<float>(), 6);
  try {
    loss.backward();
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("take gradients before reading it"), std::string::npos)
        << error.what();
  }
}

// The text of the error that a step with this function throws when it is captured.
template <class F>
std::string told_inside(F f) {
  Jit step = [f](const Tensor& x) { return f(x), x * 2; };
  return test::message_of<UserError>([&] { step(Tensor{1.0, 2.0}); });
}

TEST(ErrorsOf, ReadingInsideACapture) {
  const auto expect = [](const std::string& text, const std::string& op, const std::string& says) {
    EXPECT_EQ(text.find(op + ": "), 0u) << text;
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_NE(text.find("  (error_test.cpp:"), std::string::npos) << text;
  };
  const std::string reading = "reading data inside a captured step";
  expect(told_inside([](const Tensor& x) { (void)x.sum().item<float>(); }), "item", reading);
  expect(told_inside([](const Tensor& x) { (void)x.data(); }), "data", reading);
  expect(told_inside([](const Tensor& x) { (void)x.allclose(x); }), "allclose", reading);
  expect(told_inside([](const Tensor& x) { (void)x.nonzero(); }), "nonzero", "nonzero(size)");
  expect(told_inside([](const Tensor& x) { (void)x.masked_select(x > 0); }), "masked_select",
         "masked_select(mask, size)");
  std::ostringstream out;
  expect(told_inside([&](const Tensor& x) { out << "x is " << x; }), "operator<<", reading);
  const std::string printed = told_inside([](const Tensor& x) { std::ostringstream() << x; });
  EXPECT_EQ(printed.find("operator<<: " + reading), 0u) << printed;
  EXPECT_EQ(printed.find("(ostream:"), std::string::npos) << printed;
}

TEST(ErrorsOf, OtherShapesAfterACapture) {
  Jit step = [](const Tensor& x) { return x * 2; };
  step(Tensor{1.0, 2.0});
  const std::string text = test::message_of<UserError>([&] { step(Tensor{1.0, 2.0, 3.0}); });
  EXPECT_NE(text.find("captured step: input 0 is f32[3]"), std::string::npos) << text;
  EXPECT_NE(text.find("  (error_test.cpp:"), std::string::npos) << text;
}

TEST(ErrorsOf, PassesThatCannotBeLeftOut) {
  for (const auto& [names, says] : {std::pair("fusion", "\"fusion\" cannot be left out"),
                                    std::pair("fusoin", "did you mean fusion?")}) {
    const OptionScope on({{"TS_DISABLE_PASSES", names}});
    const std::string text = test::message_of<UserError>([] { (Tensor{1.0, 2.0} + 1).realize(); });
    EXPECT_NE(text.find(says), std::string::npos) << text;
    EXPECT_NE(text.find("These can be left out: tidy, plan, "), std::string::npos) << text;
    EXPECT_NE(text.find(", reuse"), std::string::npos) << text;
    EXPECT_EQ(text.find(", shard,"), std::string::npos) << text;
  }
  EXPECT_EQ((Tensor{1.0, 2.0} + 1).sum().item<float>(), 5);
}

}  // namespace
}  // namespace tinyshard::error_test
