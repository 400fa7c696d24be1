// Found on the graph as it is, each fusion as a note about the node that it replaces, of which a later
// one takes the place of an earlier one.
//
// ReLU, GELU and their slopes are ops of the graph (core/ops/activations.h), which stay whole for this.
#include "devices/gpu/epilogues.h"

#include <algorithm>
#include <optional>

#include "core/dtype/half.h"
#include "core/ops/activations.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::gpu {
namespace {

// The product that a node becomes, reshaped to the node's shape.
struct Fused {
  UOp dot;    // the plain product: its operands
  UOp third;  // the epilogue's operand as the graph has it
  Epilogue epilogue = Epilogue::Bias;
  DType dtype = DType::F32;
};

// The product as a node: two dims and maybe batches; `third` in the shape that it asks for.
UOp product_node(const Fused& f) {
  Dims shape(f.dot.shape().begin(), f.dot.shape().end());
  if (f.epilogue != Epilogue::GeluBackward) shape = {shape.back()};
  const UOp operand = reshape(f.third, shape);
  return product_with(f.epilogue, f.dtype, f.dot.src(0), f.dot.src(1), dot_batch(*f.dot),
                      std::span(&operand, 1));
}

LibraryCall call_of(const Fused& f) { return row_major_call(product_node(f)); }

// x as a vector along its last dim, when it is one repeated along all others.
UOp repeated_row(const UOp& x) {
  int64_t n = x.shape().back();
  switch (x.op()) {
    case Op::Cast: {
      UOp row = repeated_row(x.src(0));
      return row ? cast(row, x.dtype()) : UOp();
    }
    case Op::Reshape:
    case Op::Expand:
      if (x.src(0).shape().empty() || x.src(0).shape().back() != n) return {};
      return x.src(0)->numel() == n ? reshape(x.src(0), Dims{n}) : repeated_row(x.src(0));
    default:
      return {};
  }
}

class Epilogues {
 public:
  explicit Epilogues(const RegionQuery& query)
      : order_(query.graph().order()), query_(query), uses_(query.uses()) {}

  std::vector<Replacement> run() {
    for (const UOp& x : order_) {
      if (x.op() == Op::Cast) rounded_bias(x);
      if (x.op() == Op::Add) bias(x, x);
    }
    if (biased_.size() > 0) activations();
    return found();
  }

 private:
  // How many sources of other nodes, or roots, x is.
  int uses(const UOp& x) const { return uses_.at(x); }

  // The product that x shows in another shape, with nobody else reading it; null when there is none.
  UOp product_under(UOp x) const {
    int64_t n = x.shape().empty() ? 0 : x.shape().back();
    while (uses(x) == 1 && x.op() == Op::Reshape) x = x.src(0);
    bool product = x.op() == Op::Dot && uses(x) == 1 && x->sources == 2 && dot_batch(*x) == 0 &&
                   x.shape().back() == n;
    return product ? x : UOp();
  }

  bool note(const UOp& x, const Fused& f) {
    if (!query_.supports(call_of(f))) return false;
    fused_[x] = f;
    return true;
  }

  void rounded_bias(const UOp& x) {
    const UOp& sum = x.src(0);
    bool narrows = sum.dtype() == DType::F32 && is_half(x.dtype());
    if (sum.op() == Op::Add && uses(sum) == 1 && narrows) bias(sum, x);
  }

  // `x` is the sum, or what it is rounded to. In 16 bits a sum rounds both what it adds and what it
  // gives, which no library does.
  void bias(const UOp& sum, const UOp& x) {
    if (is_half(sum.dtype())) return;
    for (int side : {0, 1}) {
      if (sum.shape().empty() || sum.src(0) == sum.src(1)) return;
      UOp row = repeated_row(sum.src(1 - side));
      if (!row) continue;
      if (row.op() == Op::Cast && row.src(0).dtype() == x.dtype()) row = row.src(0);
      UOp dot = product_under(sum.src(side));
      if (!dot || row.dtype() != x.dtype() || !note(x, {dot, row, Epilogue::Bias, x.dtype()}))
        continue;
      biased_[x] = true;
      return;
    }
  }

  void activations() {
    std::vector<UOp> slopes;
    for (const UOp& x : order_) {
      if (is_composite(x, kReluSlope)) ++relu_slopes_[x.src(0)];
      if (is_composite(x, kGeluSlope)) slopes.push_back(x);
    }
    for (const UOp& x : order_) {
      if (is_composite(x, kRelu)) relu(x);
      if (is_composite(x, kGelu)) gelu(x);
    }
    for (const UOp& x : slopes) gelu_slope(x);
  }

  // The biased product that x shows in its own shape or in another one; null where it shows none.
  const UOp* biased_under(const UOp& x) const {
    if (biased_.contains(x)) return &x;
    return x.op() == Op::Reshape && biased_.contains(x.src(0)) ? &x.src(0) : nullptr;
  }
  // How often x is read in any shape.
  int reads(const UOp& x, const UOp& sum) const { return uses(x) + (x == sum ? 0 : uses(sum) - 1); }

  // Nobody else may read what precedes a ReLU but its slopes, which the result tells as much.
  void relu(const UOp& y) {
    const UOp &x = y.src(0), *sum = biased_under(x);
    const int* slopes = relu_slopes_.find(x);
    if (!sum || reads(x, *sum) > 1 + (slopes ? *slopes : 0)) return;
    Fused f = fused_.at(*sum);
    f.epilogue = Epilogue::BiasRelu;
    if (note(y, f)) relu_of_[x] = y;
  }

  void gelu(const UOp& y) {
    const UOp &x = y.src(0), *sum = biased_under(x);
    if (!sum) return;
    Fused f = fused_.at(*sum);
    f.epilogue = Epilogue::BiasGelu;
    LibraryCall call = call_of(f);
    if (reads(x, *sum) > 1) call.also.push_back(call_of(fused_.at(*sum)).node);
    if (!query_.supports(call)) return;
    fused_[y] = f;
    has_gelu_[x] = true;
  }

  void gelu_slope(const UOp& slope) {
    const UOp &x = slope.src(0), &seed = slope.src(1);
    if (!has_gelu_.contains(x) || uses(seed) != 1) return;
    const UOp& dot = seed.op() == Op::Reshape && uses(seed.src(0)) == 1 ? seed.src(0) : seed;
    if (dot.op() != Op::Dot || dot->sources != 2 || dot_batch(*dot) != 0 ||
        dot.shape().back() != x.shape().back())
      return;
    note(slope, {dot, x, Epilogue::GeluBackward, x.dtype()});
  }

  std::vector<Replacement> found() const {
    std::vector<Replacement> all;
    auto shown = [&](const UOp& x) { return reshape(product_node(fused_.at(x)), x.shape()); };
    for (const UOp& x : order_) {
      if (fused_.contains(x)) {
        all.push_back({x, shown(x)});
      } else if (is_composite(x, kReluSlope)) {
        if (const UOp* relu = relu_of_.find(x.src(0)))
          all.push_back({x, tinyshard::relu_slope(shown(*relu), x.src(1))});
      }
    }
    return all;
  }

  std::span<const UOp> order_;
  const RegionQuery& query_;
  const NodeMap<int>& uses_;
  NodeMap<Fused> fused_;
  NodeMap<bool> biased_;
  NodeMap<int> relu_slopes_;  // of a value: how many
  NodeMap<UOp> relu_of_;      // what precedes a ReLU that is fused: the ReLU
  NodeMap<bool> has_gelu_;    // what precedes a GELU that is fused
};

}  // namespace

std::vector<Replacement> find_epilogues(const RegionQuery& query) { return Epilogues(query).run(); }

}  // namespace tinyshard::gpu
