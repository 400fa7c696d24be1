// Found on the graph as it is, each fusion as a note about the node that it replaces, of which a later
// one takes the place of an earlier one.
//
// GELU and its gradient are found by building them: nodes are interned, so the expression that
// gelu.h gives for a value is in the graph if and only if it is a node of it.
#include "devices/gpu/epilogues.h"

#include <algorithm>
#include <optional>

#include "core/dtype/half.h"
#include "core/passes/gelu.h"
#include "core/rewrite/pattern.h"
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

// An Expression of x and maybe a seed has the form that the passes before would leave it in. It is
// built on leaves and moved, so that nothing walks the graph below x for it, and built once for all
// layers that are alike.
class Expression {
 public:
  using Make = UOp (*)(const UOp& x, const UOp& seed);
  Expression(const RegionQuery& query, Make make) : query_(query), make_(make) {}

  UOp operator()(const UOp& x, const UOp& seed) {
    const UOp a = leaf(x, -1), b = leaf(seed, -2);
    auto known = std::ranges::find_if(
        built_, [&](const Built& built) { return built.x == a && built.seed == b; });
    if (known == built_.end()) known = built_.insert(known, {a, b, query_.tidied(make_(a, b))});
    NodeMap<UOp> place;
    place[a] = x;
    place[b] = seed;
    return substitute(known->value, place);
  }
  UOp operator()(const UOp& x) { return (*this)(x, x); }

 private:
  struct Built {
    UOp x, seed, value;
  };

  static UOp leaf(const UOp& like, int64_t id) {
    Dims arg{id};
    arg.insert(arg.end(), like.shape().begin(), like.shape().end());
    return UOp::make(Op::Buffer, like.dtype(), {}, arg);
  }

  const RegionQuery& query_;
  Make make_;
  std::vector<Built> built_;
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
    if (!biased_.empty()) relus();
    if (!biased_.empty()) gelus();
    if (inside_gelu_.size() > 0) gelu_gradients();
    return found();
  }

 private:
  // How many sources of other nodes, or roots, x is.
  int uses(const UOp& x) const { return uses_.at(x); }
  bool in_graph(const UOp& x) const { return uses_.contains(x); }

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
      biased_.push_back(x);
      return;
    }
  }

  // Values that are a biased product, in each shape that the graph has them in.
  std::vector<std::pair<UOp, UOp>> views_of_biased() const {
    NodeMap<bool> biased;
    std::vector<std::pair<UOp, UOp>> views;  // and the sum itself
    for (const UOp& x : biased_) {
      biased[x] = true;
      views.emplace_back(x, x);
    }
    for (const UOp& x : order_) {
      if (x.op() == Op::Reshape && biased.contains(x.src(0))) views.emplace_back(x, x.src(0));
    }
    return views;
  }

  // Nobody else may read what precedes a ReLU but who asks where it passes, which its gradient does:
  // of the result that is the same.
  void relus() {
    for (auto& [x, sum] : views_of_biased()) {
      if (!(x == sum) && uses(sum) > 1) continue;
      const UOp y = relu_(x), passes = relu_passes_(x);
      if (!in_graph(y) || !in_graph(passes)) continue;
      int own = reads(between(y, x, {}), x);
      if (uses(x) != own || uses(passes.src(0)) != 1 || uses(passes.src(1)) != 1) continue;
      Fused f = fused_.at(sum);
      f.epilogue = Epilogue::BiasRelu;
      if (note(y, f)) relu_by_passes_[passes] = y;
    }
  }

  void gelus() {
    for (auto& [x, sum] : views_of_biased()) {
      const UOp y = gelu_(x);
      if (!in_graph(y)) continue;
      std::vector<UOp> inside = between(y, x, {});
      Fused f = fused_.at(sum);
      f.epilogue = Epilogue::BiasGelu;
      LibraryCall call = call_of(f);
      if (read_outside(inside, y, x) || (!(x == sum) && uses(sum) > 1))
        call.also.push_back(call_of(fused_.at(sum)).node);
      if (!query_.supports(call)) continue;
      fused_[y] = f;
      for (const UOp& part : inside) inside_gelu_[part] = x;
    }
  }

  // The gradient multiplies what comes from behind with values of the GELU itself.
  void gelu_gradients() {
    for (const UOp& x : order_) {
      if (x.op() != Op::Mul) continue;
      for (int side : {0, 1}) {
        const UOp* input = inside_gelu_.find(x.src(side));
        if (input && gelu_gradient_of(*input, x.src(1 - side))) break;
      }
    }
  }

  bool gelu_gradient_of(const UOp& x, UOp seed) {
    if (seed.op() == Op::Cast && seed.src(0).dtype() == x.dtype()) seed = seed.src(0);
    if (seed.dtype() != x.dtype() || !std::ranges::equal(seed.shape(), x.shape())) return false;
    UOp dot = seed.op() == Op::Reshape && uses(seed.src(0)) == 1 ? seed.src(0) : seed;
    if (dot.op() != Op::Dot || dot->sources != 2 || dot_batch(*dot) != 0 ||
        dot.shape().back() != x.shape().back())
      return false;
    const UOp result = gelu_gradient_(x, seed);
    if (!in_graph(result) || fused_.contains(result) ||
        uses(seed) != reads(between(result, x, seed), seed))
      return false;
    return note(result, {dot, x, Epilogue::GeluBackward, x.dtype()});
  }

  // The nodes that `to` is computed with from `from` (and `other`), without these.
  static std::vector<UOp> between(const UOp& to, const UOp& from, const UOp& other) {
    std::vector<UOp> found{to};
    NodeMap<bool> seen;
    seen[to] = true;
    for (size_t i = 0; i < found.size(); ++i) {
      UOp x = found[i];
      for (const UOp& s : x->src()) {
        if (s == from || s == other || seen.contains(s)) continue;
        seen[s] = true;
        found.push_back(s);
      }
    }
    return found;
  }
  static int reads(const std::vector<UOp>& nodes, const UOp& x) {
    int count = 0;
    for (const UOp& node : nodes) count += int(std::ranges::count(node->src(), x));
    return count;
  }

  // Returns whether nodes outside compute something from x, directly or from parts of its GELU y.
  bool read_outside(const std::vector<UOp>& inside, const UOp& y, const UOp& x) const {
    return uses(x) > reads(inside, x) || std::ranges::any_of(inside, [&](const UOp& part) {
             return !(part == y) && !is_const(part) && uses(part) > reads(inside, part);
           });
  }

  std::vector<Replacement> found() const {
    std::vector<Replacement> all;
    auto shown = [&](const UOp& x) { return reshape(product_node(fused_.at(x)), x.shape()); };
    for (const UOp& x : order_) {
      if (fused_.contains(x)) {
        all.push_back({x, shown(x)});
      } else if (const UOp* relu = relu_by_passes_.find(x)) {
        all.push_back({x, relu_passes(shown(*relu))});
      }
    }
    return all;
  }

  std::span<const UOp> order_;
  const RegionQuery& query_;
  const NodeMap<int>& uses_;
  NodeMap<Fused> fused_;
  std::vector<UOp> biased_;
  NodeMap<UOp> relu_by_passes_;  // what says where a ReLU passes: the fused ReLU
  NodeMap<UOp> inside_gelu_;     // parts of a GELU that is fused: its input
  Expression relu_{query_, [](const UOp& x, const UOp&) { return relu(x); }};
  Expression relu_passes_{query_, [](const UOp& x, const UOp&) { return relu_passes(x); }};
  Expression gelu_{query_, [](const UOp& x, const UOp&) { return gelu(x); }};
  Expression gelu_gradient_{query_, gelu_gradient};
};

}  // namespace

std::vector<Replacement> find_epilogues(const RegionQuery& query) { return Epilogues(query).run(); }

}  // namespace tinyshard::gpu
