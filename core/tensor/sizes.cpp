// Which methods take symbolic sizes, how sizes follow from ops, and sums of variables as sizes.
//
//   Variable pos("pos", 0, 4095);
//   keys[{Slice(), Slice(0, p + 1)}]      f32[8, 1 + pos <= 4096, 64]
//     identity [n] {-, 1 + pos, -}        the name that tells the sizes, over
//     shrink                              keys, of which [0, 4096) may count
//   .exp().sum(1)
//     where(iota(4096) < 1 + pos, exp2(..), 0), then a plain sum: the code generator turns the mask
//     into the end of the loop (core/codegen/extent.h)
#include "core/base/sizes.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/thread_local.h"
#include "core/tensor/sizes_internal.h"
#include "core/uop/args.h"
#include "core/uop/scan.h"

namespace tinyshard {
namespace value {
namespace {

// Methods that may meet symbolic sizes. Each is elementwise, moves elements, or reduces through
// value::reduce and value::count_along; none uses a size of its operand as a number otherwise.
constexpr std::string_view kMethods[] = {"add",
                                         "sub",
                                         "mul",
                                         "div",
                                         "mod",
                                         "pow",
                                         "eq",
                                         "ne",
                                         "lt",
                                         "gt",
                                         "le",
                                         "ge",
                                         "bitwise_and",
                                         "bitwise_or",
                                         "bitwise_xor",
                                         "bitwise_not",
                                         "logical_not",
                                         "maximum",
                                         "minimum",
                                         "where",
                                         "masked_fill",
                                         "clamp",
                                         "cast",
                                         "neg",
                                         "exp",
                                         "exp2",
                                         "log",
                                         "log2",
                                         "sqrt",
                                         "rsqrt",
                                         "reciprocal",
                                         "sin",
                                         "cos",
                                         "tanh",
                                         "sigmoid",
                                         "relu",
                                         "gelu",
                                         "silu",
                                         "abs",
                                         "sign",
                                         "square",
                                         "trunc",
                                         "floor",
                                         "ceil",
                                         "isnan",
                                         "isinf",
                                         "softplus",
                                         "sum",
                                         "prod",
                                         "max",
                                         "min",
                                         "mean",
                                         "any",
                                         "all",
                                         "softmax",
                                         "log_softmax",
                                         "logsumexp",
                                         "softmin",
                                         "layernorm",
                                         "reshape",
                                         "view",
                                         "permute",
                                         "transpose",
                                         "T",
                                         "unsqueeze",
                                         "squeeze",
                                         "expand",
                                         "flatten",
                                         "unflatten",
                                         "getitem",
                                         "matmul",
                                         "dot",
                                         "linear",
                                         "cat",
                                         "arange",
                                         "to_bound",
                                         "size_tensor",
                                         "numel_tensor",
                                         "repeat_interleave",
                                         "contiguous",
                                         "setitem",
                                         "=",
                                         "+=",
                                         "-=",
                                         "*=",
                                         "/=",
                                         "%=",
                                         "&=",
                                         "|=",
                                         "^=",
                                         "scaled_dot_product_attention",
                                         "RMSNorm",
                                         "LayerNorm",
                                         "Linear",
                                         "asin",
                                         "acos",
                                         "atan",
                                         "tan",
                                         "sinh",
                                         "cosh",
                                         "asinh",
                                         "acosh",
                                         "atanh",
                                         "erf",
                                         "log10",
                                         "round",
                                         "isfinite",
                                         "clip",
                                         "logsigmoid",
                                         "relu6",
                                         "hardswish",
                                         "hardsigmoid",
                                         "hardtanh",
                                         "leaky_relu",
                                         "quick_gelu",
                                         "swish",
                                         "elu",
                                         "celu",
                                         "selu",
                                         "mish",
                                         "softsign",
                                         "fmod",
                                         "lshift",
                                         "rshift",
                                         "copysign",
                                         "logaddexp",
                                         "lerp",
                                         "isclose",
                                         "normalize",
                                         "var",
                                         "std",
                                         "var_mean",
                                         "std_mean",
                                         "argmax",
                                         "argmin",
                                         "flip",
                                         "pad",
                                         "roll",
                                         "repeat",
                                         "split",
                                         "chunk",
                                         "stack",
                                         "gather",
                                         "embedding",
                                         "one_hot",
                                         "cumsum",
                                         "cumprod",
                                         "<<=",
                                         ">>="};

constexpr std::string_view kWhy =
    "its size is known when the step runs, which this method cannot take; reduce it, or give it "
    "its largest size with to_bound()";

TS_HOT_THREAD_LOCAL uint64_t call_with_sizes = 0;

bool has_sizes() { return call_with_sizes != 0 && call_with_sizes == running_call_number(); }

// --- sizes from ops ------------------------------------------------------------------------------

// Any: what is the same however long the dim is, a constant or one element repeated.
struct Dim {
  enum class Kind : uint8_t { Any, Plain, Symbolic } kind = Kind::Any;
  SymbolicSize size;
};
using Known = std::vector<Dim>;

const Dim kPlain{Dim::Kind::Plain, {}};

bool is_symbolic(const Dim& dim) { return dim.kind == Dim::Kind::Symbolic; }

std::string text_of_dim(const Dim& dim, int64_t bound) {
  return is_symbolic(dim) ? fmt::format("{} <= {}", dim.size.text, bound) : std::to_string(bound);
}

class Inference {
 public:
  const Known& of(const UOp& x) {
    if (auto found = known_.find(x.get()); found != known_.end()) return found->second;
    Known dims = infer(x);
    for (size_t d = 0; d < dims.size(); ++d) {
      if (x.shape()[d] == 1 && !is_symbolic(dims[d])) dims[d] = Dim();
    }
    return known_[x.get()] = std::move(dims);
  }

 private:
  static Dim unified(const Dim& a, const Dim& b, int64_t bound) {
    if (a.kind == Dim::Kind::Any) return b;
    if (b.kind == Dim::Kind::Any) return a;
    const bool same = a.kind == b.kind && (!is_symbolic(a) || a.size.node == b.size.node);
    if (!same)
      fail(fmt::format("sizes differ: {} and {}", text_of_dim(a, bound), text_of_dim(b, bound)));
    return a;
  }

  [[noreturn]] static void refuse(const Dim& dim, int64_t bound, const char* what) {
    fail(fmt::format("a dim of size {} cannot be {}: its size is known when the step runs",
                     text_of_dim(dim, bound), what));
  }

  Known infer(const UOp& x) {
    const DimSpan shape = x.shape(), arg = x->arg();
    if (x.op() == Op::Identity || x->sources == 0 || x.op() == Op::Assign) {
      Known dims(shape.size(), x.op() == Op::Const ? Dim() : kPlain);
      if (const SymbolicShape* sizes = symbolic_shape(x)) {
        for (size_t d = 0; d < dims.size(); ++d) {
          if (sizes->dims[d]) dims[d] = {Dim::Kind::Symbolic, *sizes->dims[d]};
        }
      }
      return dims;
    }
    if (is_elementwise(x.op())) {
      Known dims = of(x.src(0));
      for (const UOp& s : x->src().subspan(1)) {
        const Known& other = of(s);
        for (size_t d = 0; d < dims.size(); ++d) dims[d] = unified(dims[d], other[d], shape[d]);
      }
      return dims;
    }
    const Known from = of(x.src(0));
    const DimSpan before = x.src(0).shape();
    auto need_plain = [&](size_t d, const char* what) {
      if (is_symbolic(from[d])) refuse(from[d], before[d], what);
    };
    Known dims = from;
    switch (x.op()) {
      case Op::Contiguous:
      case Op::Detach:
      case Op::ContiguousBackward:
      case Op::Checkpoint:
        return dims;
      case Op::Expand:
        for (size_t d = 0; d < dims.size(); ++d) {
          if (before[d] != shape[d]) dims[d] = Dim();
        }
        return dims;
      case Op::Permute:
        for (size_t d = 0; d < dims.size(); ++d) dims[d] = from[size_t(arg[d])];
        return dims;
      case Op::Flip:
        for (int64_t axis : arg) need_plain(size_t(axis), "reversed");
        return dims;
      case Op::Shrink:
      case Op::Pad:
        for (size_t d = 0; d < dims.size(); ++d) {
          if (before[d] == shape[d]) continue;
          need_plain(d, x.op() == Op::Pad ? "padded" : "cut");
          dims[d] = kPlain;
        }
        return dims;
      case Op::Unfold:
        need_plain(dims.size() - 1, "cut into windows");
        dims.back() = kPlain;
        dims.push_back(kPlain);
        return dims;
      case Op::Reshape:
        return reshaped(x, from);
      case Op::Reduce:
        for (int64_t axis : arg.subspan(1)) {
          need_plain(size_t(axis), "reduced here");
          dims[size_t(axis)] = Dim();
        }
        return dims;
      case Op::Scan: {
        const auto axis = size_t(scan_arg(*x).axis);
        need_plain(axis, "scanned");
        dims[axis] = kPlain;
        return dims;
      }
      case Op::Dot: {
        const Known other = of(x.src(1));
        const size_t batch = size_t(arg[0]);
        for (size_t d = 0; d < batch; ++d) dims[d] = unified(from[d], other[d], shape[d]);
        need_plain(batch + 1, "summed over here");
        dims[batch + 1] = other[batch + 1];
        return dims;
      }
      case Op::Gather: {
        const auto axis = size_t(arg[0]);
        need_plain(axis, "read by an index");
        dims = of(x.src(1));
        for (size_t d = 0; d < dims.size(); ++d) {
          if (d != axis && before[d] == shape[d]) dims[d] = unified(dims[d], from[d], shape[d]);
          if (d != axis && before[d] != shape[d]) need_plain(d, "cut");
        }
        return dims;
      }
      default:
        for (const UOp& s : x->src()) {
          for (const Dim& dim : of(s)) {
            if (is_symbolic(dim))
              fail(fmt::format("{} is an operand, but {}", dim.size.text, kWhy));
          }
        }
        return Known(shape.size(), kPlain);
    }
  }

  // Dims of size 1 come and go; a symbolic dim stays by itself.
  static Known reshaped(const UOp& x, const Known& from) {
    const DimSpan before = x.src(0).shape(), after = x.shape();
    Known dims(after.size(), kPlain);
    size_t f = 0, t = 0;
    while (f < before.size() || t < after.size()) {
      const size_t f0 = f, t0 = t;
      int64_t pf = f < before.size() ? before[f++] : 1, pt = t < after.size() ? after[t++] : 1;
      while (pf != pt) {
        if ((pf < pt && f < before.size()) || t >= after.size())
          pf *= before[f++];
        else
          pt *= after[t++];
      }
      auto only = [](DimSpan shape, size_t begin, size_t end) {
        size_t found = end;
        for (size_t i = begin; i < end; ++i) {
          if (shape[i] == 1) continue;
          if (found != end) return SIZE_MAX;  // several
          found = i;
        }
        return found;
      };
      const size_t one = only(before, f0, f), other = only(after, t0, t);
      if (one < f && other < t) {
        dims[other] = from[one];
        continue;
      }
      for (size_t i = f0; i < f; ++i) {
        if (is_symbolic(from[i])) refuse(from[i], before[i], "divided or joined by a reshape");
      }
    }
    return dims;
  }

  std::unordered_map<const Node*, Known> known_;
};

UOp named_with(const UOp& value, SymbolicShape sizes) {
  const UOp plain = named(value);
  return UOp::make(Op::Identity, value.dtype(), {value}, plain->arg(),
                   std::make_shared<const SymbolicShape>(std::move(sizes)));
}

}  // namespace

void meet_operand(const UOp& value) {
  const SymbolicShape* sizes = symbolic_shape(value);
  if (!sizes) [[likely]]
    return;
  const char* method = running_call();
  if (!method || std::ranges::find(kMethods, std::string_view(method)) == std::end(kMethods)) {
    std::string text;
    for (const auto& size : sizes->dims) {
      if (size) text += (text.empty() ? "" : ", ") + size->text;
    }
    fail(fmt::format("a tensor of size {}: {}", text, kWhy));
  }
  call_with_sizes = running_call_number();
}

UOp with_sizes(const UOp& value) {
  if (!has_sizes()) [[likely]]
    return UOp();
  Inference inference;
  SymbolicShape sizes;
  bool any = false;
  for (const Dim& dim : inference.of(value)) {
    any = any || is_symbolic(dim);
    sizes.dims.push_back(is_symbolic(dim) ? std::optional(dim.size) : std::nullopt);
  }
  return any ? named_with(value, std::move(sizes)) : UOp();
}

std::optional<SymbolicSize> size_along(const Value& x, int64_t axis) {
  if (!has_sizes() || x.is_number()) return std::nullopt;
  Inference inference;
  const Dim& dim = inference.of(x.node())[size_t(axis)];
  return is_symbolic(dim) ? std::optional(dim.size) : std::nullopt;
}

Value count_along(const Value& x, const Dims& axes) {
  int64_t number = 1;
  std::optional<Value> symbolic;
  for (int64_t axis : axes) {
    auto size = size_along(x, axis);
    if (!size)
      number *= x.size(axis);
    else
      symbolic = symbolic ? *symbolic * Value(size->node) : Value(size->node);
  }
  return symbolic ? *symbolic * number : Value(number);
}

Value at_bound(const Value& x) { return named(x.node()); }

Value limited_to(const Value& x, int64_t axis, const SymbolicSize& size) {
  if (size.low == size.high) return x;
  if (size.high < 2) fail(fmt::format("{} is 0 or 1: a dim needs a larger bound", size.text));
  call_with_sizes = running_call_number();
  Inference inference;
  SymbolicShape sizes;
  for (const Dim& dim : inference.of(x.node()))
    sizes.dims.push_back(is_symbolic(dim) ? std::optional(dim.size) : std::nullopt);
  sizes.dims[size_t(axis)] = size;
  return named_with(x.node(), std::move(sizes));
}

Value filled(const Value& x, int64_t axis, const Scalar& value) {
  auto size = size_along(x, axis);
  if (!size) return x;
  Inference inference;
  const Known known = inference.of(x.node());
  Value counts = iota_along(axis, x.rank(), x.size(axis), DType::I64) < Value(size->node);
  Value out = where(counts, at_bound(x), constant(x.dtype(), value));
  for (size_t d = 0; d < known.size(); ++d) {
    if (is_symbolic(known[d]) && d != size_t(axis))
      out = limited_to(out, int64_t(d), known[d].size);
  }
  return out;
}

// --- sums of variables ---------------------------------------------------------------------------

namespace {

struct NamedVariable {
  std::weak_ptr<const void> storage;
  std::string name;
  int64_t low, high;
};

struct Variables {
  std::mutex mutex;
  std::unordered_map<const void*, NamedVariable> by_storage;

  static Variables& get() {
    static Variables* variables = new Variables;  // outlives every static tensor
    return *variables;
  }
};

struct Sum {
  int64_t constant = 0;
  std::map<uint64_t, std::pair<UOp, int64_t>> terms;  // by node id: a variable and its factor
};

constexpr int64_t kFar = int64_t{1} << 40;  // larger factors are no sizes

std::optional<NamedVariable> variable_of(const UOp& buffer) {
  Variables& variables = Variables::get();
  std::lock_guard lock(variables.mutex);
  auto found = variables.by_storage.find(buffer->payload.get());
  if (found == variables.by_storage.end() || found->second.storage.expired()) return std::nullopt;
  return found->second;
}

std::optional<Sum> sum_of(const UOp& x) {
  switch (x.op()) {
    case Op::Identity:
    case Op::Reshape:
    case Op::Contiguous:
      return sum_of(x.src(0));
    case Op::Cast:
      if (is_float(x.dtype()) || x.dtype() == DType::Bool || itemsize(x.dtype()) < 4) return {};
      return sum_of(x.src(0));
    case Op::Const:
      if (!is_int(x.dtype()) || std::abs(const_bits(*x)) > kFar) return {};
      return Sum{const_bits(*x), {}};
    case Op::Buffer: {
      if (!variable_of(x)) return {};
      Sum sum;
      sum.terms[x->id] = {x, 1};
      return sum;
    }
    case Op::Neg:
    case Op::Add:
    case Op::Sub:
    case Op::Mul: {
      auto a = sum_of(x.src(0)), b = x->sources > 1 ? sum_of(x.src(1)) : Sum{-1, {}};
      if (!a || !b) return {};
      if (x.op() == Op::Mul || x.op() == Op::Neg) {
        if (!b->terms.empty()) std::swap(*a, *b);
        if (!b->terms.empty()) return {};
        const int64_t factor = b->constant;
        a->constant *= factor;
        for (auto& [id, term] : a->terms) term.second *= factor;
      } else {
        const int64_t sign = x.op() == Op::Sub ? -1 : 1;
        a->constant += sign * b->constant;
        for (auto& [id, term] : b->terms) {
          auto& mine = a->terms.try_emplace(id, term.first, 0).first->second;
          mine.second += sign * term.second;
        }
      }
      std::erase_if(a->terms, [](const auto& term) { return term.second.second == 0; });
      const bool fits =
          std::abs(a->constant) <= kFar && std::ranges::all_of(a->terms, [](const auto& term) {
            return std::abs(term.second.second) <= kFar;
          });
      return fits ? a : std::nullopt;
    }
    default:
      return {};
  }
}

SymbolicSize made_of(const Sum& sum) {
  SymbolicSize size{const_int(DType::I64, sum.constant), sum.constant, sum.constant, ""};
  if (sum.constant != 0 || sum.terms.empty()) size.text = std::to_string(sum.constant);
  for (const auto& [id, term] : sum.terms) {
    const auto& [buffer, factor] = term;
    const NamedVariable variable = *variable_of(buffer);
    const __int128 a = __int128(factor) * variable.low, b = __int128(factor) * variable.high;
    size.low = limited(size.low + std::min(a, b));
    size.high = limited(size.high + std::max(a, b));
    UOp part = factor == 1 ? buffer : binary(Op::Mul, buffer, const_int(DType::I64, factor));
    const bool first = size.text.empty();
    size.node = first && sum.constant == 0 ? part : binary(Op::Add, size.node, part);
    const std::string name = std::abs(factor) == 1
                                 ? variable.name
                                 : fmt::format("{} * {}", std::abs(factor), variable.name);
    size.text += first ? (factor < 0 ? "-" : "") + name : (factor < 0 ? " - " : " + ") + name;
  }
  return size;
}

}  // namespace

SymbolicSize size_of(const StatePtr& state) {
  check_internal(state != nullptr, "a size is a tensor");
  const UOp& node = state->value;
  auto sum = node->numel() == 1 ? sum_of(node) : std::nullopt;
  if (!sum)
    fail(
        fmt::format("{} is no size: that is a number, a Variable, or a sum of Variables times "
                    "numbers",
                    Tensor(state).describe()));
  return made_of(*sum);
}

bool is_size(const Value& x) { return x.node()->numel() == 1 && sum_of(x.node()); }

namespace {
SymbolicSize computed(Op op, const SymbolicSize& a, const SymbolicSize& b) {
  auto sum = sum_of(binary(op, a.node, b.node));
  check_internal(sum.has_value(), "sizes are sums of variables");
  return made_of(*sum);
}
}  // namespace

SymbolicSize add(const SymbolicSize& a, const SymbolicSize& b) { return computed(Op::Add, a, b); }
SymbolicSize subtract(const SymbolicSize& a, const SymbolicSize& b) {
  return computed(Op::Sub, a, b);
}

SymbolicSize plain_size(int64_t size) { return made_of(Sum{size, {}}); }

void name_variable(const UOp& buffer, const std::string& name, int64_t low, int64_t high) {
  Variables& variables = Variables::get();
  std::lock_guard lock(variables.mutex);
  std::erase_if(variables.by_storage,
                [](const auto& entry) { return entry.second.storage.expired(); });
  variables.by_storage[buffer->payload.get()] = {buffer->payload, name, low, high};
}

}  // namespace value

std::shared_ptr<TensorState> size_state(const Tensor& size) { return size.state(); }

Tensor Tensor::to_bound(Scalar value, Caller caller) const {
  Call call("to_bound", caller);
  value::Value x(*this);
  for (int64_t axis = 0; axis < x.rank(); ++axis) x = value::filled(x, axis, value);
  return x;
}

Tensor Tensor::arange_of(const StatePtr& state, std::optional<DType> dtype, Caller caller) {
  Call call("arange", caller);
  if (!state) fail("a tensor that was never given a value");
  const SymbolicSize size = value::size_of(state);
  if (size.low < 0) fail(fmt::format("{} may be {}", size.text, size.low));
  check_size(Dims{size.high}, dtype.value_or(DType::I32));
  return value::limited_to(value::iota(size.high, dtype.value_or(DType::I32)), 0, size);
}

}  // namespace tinyshard
