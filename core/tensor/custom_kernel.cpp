// From a body to the nodes of a kernel (core/codegen/kernel.h). The result [2, 3] of x[j, i] + 1 becomes
//
//   store p1[3 i + j] (load p0[2 j + i] + 1)      loops i < 2, j < 3
//
// Each element is stored once, so there is no order to get wrong; what a body may do wrong is proved
// here, where its line is known, and not by the code generator, which takes a kernel at its word.
#include "core/tensor/custom_kernel.h"

#include <algorithm>
#include <cctype>
#include <span>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/passes/spell.h"
#include "core/tensor/value_internal.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "core/uop/own_kernel.h"
#include "core/uop/user_code.h"

namespace tinyshard {
namespace {

// The code generator keeps sets of ranges in the bits of a word.
constexpr size_t kMostRangesOfKernel = 64;

// Row-major.
UOp flat_place(DimSpan shape, const std::vector<UOp>& places) {
  UOp flat = index_const(0);
  for (size_t i = 0; i < shape.size(); ++i) {
    flat = binary(Op::Add, binary(Op::Mul, flat, index_const(shape[i])), places[i]);
  }
  return flat;
}

UOp both(const UOp& a, const UOp& b) { return !a ? b : !b ? a : binary(Op::And, a, b); }

}  // namespace

struct KernelBuilder::State {
  std::vector<Dims> shapes;  // of the inputs
  std::vector<DType> types;
  std::vector<UOp> index;
  std::vector<UOp> ranges;  // of folds
  std::vector<UOp> loads, folds;
};

UOp KernelBuilder::index(size_t dim) const {
  if (dim < state_->index.size()) return state_->index[dim];
  throw UserError(fmt::format("index({}) of a result of {} dims", dim, state_->index.size()));
}

const Dims& KernelBuilder::shape_of(size_t input) const {
  if (input < state_->shapes.size()) return state_->shapes[input];
  throw UserError(fmt::format("input {} of {}", input, state_->shapes.size()));
}

UOp KernelBuilder::load(size_t input, const std::vector<UOp>& places) {
  const Dims& shape = shape_of(input);
  if (places.size() != shape.size()) {
    throw UserError(fmt::format("load: {} places for input {}, which has {} dims", places.size(),
                                input, shape.size()));
  }
  std::vector<UOp> index;
  UOp inside;
  for (size_t i = 0; i < shape.size(); ++i) {
    const UOp& given = places[i];
    if (!given || (given.dtype() != DType::Index && !is_int(given.dtype()))) {
      throw UserError(fmt::format("load: place {} of input {} is {}, and no Index or integer", i,
                                  input, given ? describe(*given) : "a null UOp"));
    }
    const UOp place = index.emplace_back(cast(given, DType::Index));
    if (place->low < 0) inside = both(inside, binary(Op::CmpLt, index_const(-1), place));
    if (place->high >= shape[i])
      inside = both(inside, binary(Op::CmpLt, place, index_const(shape[i])));
  }
  const DType type = state_->types[input];
  const UOp param = UOp::make(Op::Param, type, {}, Dims{int64_t(input)});
  std::vector<UOp> src{param, flat_place(shape, index)};
  if (inside) src.push_back(inside);
  return state_->loads.emplace_back(UOp::make(Op::Load, type, src));
}

UOp KernelBuilder::range(int64_t size) {
  if (size < 0) throw UserError(fmt::format("range: a size of {}", size));
  const auto id = int64_t(state_->index.size() + state_->ranges.size());
  return state_->ranges.emplace_back(tinyshard::range(id, size, RangeKind::Fold));
}

UOp KernelBuilder::fold(ReduceOp op, const UOp& value, const std::vector<UOp>& ranges) {
  if (!value || !value.shape().empty() || value.dtype() == DType::Index)
    throw UserError(fmt::format("fold: {} is no value of an element type",
                                value ? describe(*value) : "a null UOp"));
  std::vector<UOp> src{value};
  for (const UOp& r : ranges) {
    if (std::ranges::count(state_->ranges, r) == 0 || std::ranges::count(src, r) > 0)
      throw UserError(fmt::format("fold: {} is no range of this kernel, or there twice",
                                  r ? describe(*r) : "a null UOp"));
    src.push_back(r);
  }
  if (src.size() == 1) return value;
  return state_->folds.emplace_back(
      UOp::make(Op::Fold, value.dtype(), src, to_ints(FoldArg{op, false})));
}

// Makes and proves the nodes of one kernel.
class KernelMaker {
 public:
  KernelMaker(const std::vector<UOp>& inputs, DimSpan shape, DType dtype)
      : shape_(shape.begin(), shape.end()), dtype_(dtype) {
    for (const UOp& x : inputs) {
      state_.shapes.emplace_back(x.shape().begin(), x.shape().end());
      state_.types.push_back(x.dtype());
    }
    for (size_t i = 0; i < shape_.size(); ++i) {
      const bool is_loop = shape_[i] != 1;
      state_.index.push_back(is_loop ? range(int64_t(i), shape_[i], RangeKind::Loop)
                                     : index_const(0));
      if (is_loop) loops_.push_back(state_.index.back());
    }
  }

  std::shared_ptr<const OwnKernel> make(const std::string& name, const KernelBody& body) {
    KernelBuilder builder(state_);
    const UOp given = body(builder);
    check(given);
    // Generated code has no instructions for composites.
    const auto keeps_none = [](const Composite&) { return false; };
    const UOp value = spell(Graph(std::span(&given, 1)), keeps_none)[0];
    const UOp param = UOp::make(Op::Param, dtype_, {}, Dims{int64_t(state_.shapes.size())});
    const UOp store =
        UOp::make(Op::Store, dtype_, {param, flat_place(shape_, state_.index), value});
    return std::make_shared<const OwnKernel>(
        OwnKernel{name, UOp::make(Op::Sink, DType::Bool, {store}), loops_});
  }

 private:
  void check(const UOp& value) {
    if (!value) throw UserError("the body gave a null UOp");
    if (value.dtype() != dtype_ || !value.shape().empty()) {
      throw UserError(fmt::format("the body gave {}; an element of the result is {}[]",
                                  describe(*value), tinyshard::name(dtype_)));
    }
    const NodeOrder nodes = toposort(std::span(&value, 1));
    NodeMap<bool> ranges(nodes.size());
    for (const UOp& x : nodes) {
      check_node(x);
      if (x.op() == Op::Range) ranges[x] = true;
    }
    if (value.op() == Op::Param)
      throw UserError(describe(*value) + " is no element: load() gives one");
    for (const UOp& loop : loops_) ranges[loop] = true;
    if (ranges.size() > kMostRangesOfKernel) {
      throw UserError(fmt::format("{} ranges and dims; a kernel has at most {}", ranges.size(),
                                  kMostRangesOfKernel));
    }
    for (const UOp& x : nodes) free_[x] = free_of(x);
    if (!free_[value].empty()) {
      throw UserError(
          fmt::format("{} is used outside of a fold over it", describe(*free_[value].front())));
    }
  }

  void check_node(const UOp& x) const {
    auto need = [&](bool holds, const char* what) {
      if (!holds) throw UserError(fmt::format("{} {}", describe(*x), what));
    };
    need(x.shape().empty(),
         "is no scalar: a kernel is made of single elements, which load() gives");
    switch (x.op()) {
      case Op::Range:
        return need(std::ranges::count(state_.ranges, x) + std::ranges::count(loops_, x) > 0,
                    "is a range of another kernel");
      case Op::Load:
        return need(std::ranges::count(state_.loads, x) > 0, "is no load of this kernel");
      case Op::Fold:
        return need(std::ranges::count(state_.folds, x) > 0, "is no fold of this kernel");
      case Op::Const:
      case Op::Param:
        return;
      default:
        break;
    }
    need(is_elementwise(x.op()), "cannot be in a kernel");
    const auto src = x->src();
    need(std::ranges::count(src, Op::Param, &UOp::op) == 0, "reads a whole input");
    if (src.size() == 2) need(src[0].dtype() == src[1].dtype(), "has sources of two types");
    if (info(x.op()).element.floats_only)
      need(is_float(src[0].dtype()), "is defined for floats only");
    if (x.op() == Op::Where)
      need(src[0].dtype() == DType::Bool && src[1].dtype() == src[2].dtype(),
           "chooses of two types");
    if (x.op() == Op::Bitcast)
      need(itemsize(x.dtype()) == itemsize(src[0].dtype()), "changes the size of its bits");
  }

  // The ranges of folds that x depends on and that no fold within it is over.
  std::vector<UOp> free_of(const UOp& x) {
    std::vector<UOp> free;
    auto add = [&](const UOp& r) {
      if (std::ranges::count(free, r) == 0) free.push_back(r);
    };
    if (x.op() == Op::Range && std::ranges::count(state_.ranges, x) > 0) add(x);
    const auto src = x->src();
    if (x.op() != Op::Fold) {
      for (const UOp& s : src) std::ranges::for_each(free_.at(s), add);
    } else {
      for (const UOp& r : free_.at(src[0])) {
        if (std::ranges::count(src.subspan(1), r) == 0) add(r);
      }
    }
    return free;
  }

  Dims shape_;
  DType dtype_;
  std::vector<UOp> loops_;
  KernelBuilder::State state_;
  NodeMap<std::vector<UOp>> free_;
};

namespace {

// A kernel whose gradient the program gives with it.
class KernelWithGradient : public Function {
 public:
  KernelWithGradient(std::function<UOp(const std::vector<UOp>&)> kernel, KernelGradient gradient)
      : kernel_(std::move(kernel)), gradient_(std::move(gradient)) {}

  Tensor forward(const std::vector<Tensor>& inputs) override {
    inputs_ = inputs;
    std::vector<UOp> operands;
    for (const Tensor& x : inputs) operands.push_back(x.uop());
    return Tensor(kernel_(operands));
  }
  std::vector<Tensor> backward(const Tensor& gradient) override {
    return gradient_(gradient, inputs_);
  }

 private:
  std::function<UOp(const std::vector<UOp>&)> kernel_;
  KernelGradient gradient_;
  std::vector<Tensor> inputs_;
};

}  // namespace

Tensor custom_kernel(const std::string& name, const std::vector<Tensor>& inputs, const Ints& shape,
                     DType dtype, const KernelBody& body, const KernelGradient& gradient,
                     Caller caller) {
  const Call call("custom_kernel", caller);
  const bool is_name = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
  if (!is_name) fail(fmt::format("\"{}\" is no name of letters, digits and '_'", name));
  if (!body) fail(fmt::format("{} has no body", name));
  value::check_dtype(dtype);
  const Dims& dims = shape.values;
  check_size(dims, dtype);
  std::vector<UOp> operands;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) fail(fmt::format("input {} of {} was never given a value", i, name));
    operands.push_back(inputs[i].uop());
  }
  const std::shared_ptr<const OwnKernel> kernel = in_user_code(
      [&] { return KernelMaker(operands, dims, dtype).make(name, body); },
      [&](const std::string& text) { return told_of_call(fmt::format("{}: {}", name, text)); });
  auto node = [dtype, dims, kernel](const std::vector<UOp>& on) {
    return UOp::make(Op::Sink, dtype, on, dims, kernel);
  };
  if (!gradient) return Tensor(node(operands));
  return Function::apply(std::make_shared<KernelWithGradient>(node, gradient), {inputs, caller});
}

}  // namespace tinyshard
