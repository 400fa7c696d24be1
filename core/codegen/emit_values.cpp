// Computes values where they belong and in the form that their reader takes. A value is made when it
// is first asked for, in the outermost scope that opens all ranges that it varies with, and is kept
// there: what a loop does not change is computed in front of it.
//
// A value exists whole (a vector where the scope's lanes vary with it), as its lane 0 alone (which is
// all that an address needs), or splatted to a number of lanes. Tiles make copies of the code, and
// a value has one instance for each copy that it varies with. For y[i, j] = x[i, j] * s[i], with
// 8 lanes along j and 4 values of i in a tile:
//
//   s[i]       placed at i   4 instances of a scalar, splatted to 8 lanes where they meet x
//   x[i, j]    placed at j   4 instances of a vector of 8
//   64 i + j   lane 0 alone, the sum of 64 i, made in the scope of i, and j
#include <algorithm>
#include <limits>

#include "core/base/error.h"
#include "core/codegen/emit.h"
#include "core/uop/args.h"

namespace tinyshard::codegen {

using llvm::Value;

Emitter::At::At(Emitter& e, int scope) : guard(e.b_) {
  if (e.open_[scope].before) e.b_.SetInsertPoint(e.open_[scope].before);
}

// --- where values live ---------------------------------------------------------------------------

int Emitter::lanes_of(int node, int scope) const {
  int vector = nest_->vector_scope(graph_, node, scope);
  return vector < 0 ? 1 : open_[vector].lanes;
}

int Emitter::scope_of(int range, int from) const {
  while (nest_->scopes[from].range != range) from = nest_->scopes[from].parent;
  return from;
}

// Instances count the tiled scopes that a node varies with, outer scopes slower.
int Emitter::instances(int node, int scope) const {
  int count = 1;
  for (; scope > 0; scope = nest_->scopes[scope].parent) {
    if (open_[scope].tile > 1 && graph_[node].varies & bit(nest_->scopes[scope].range))
      count *= open_[scope].tile;
  }
  return count;
}

int Emitter::instance_of(int node, int instance, int source, int scope) const {
  int result = 0, weight = 1;
  for (; scope > 0; scope = nest_->scopes[scope].parent) {
    int tile = open_[scope].tile;
    if (tile == 1 || !(graph_[node].varies & bit(nest_->scopes[scope].range))) continue;
    if (graph_[source].varies & bit(nest_->scopes[scope].range)) {
      result += weight * (instance % tile);
      weight *= tile;
    }
    instance /= tile;
  }
  return result;
}

int Emitter::tile_offset(int node, int instance, int range, int scope) const {
  for (; scope > 0; scope = nest_->scopes[scope].parent) {
    int tile = open_[scope].tile;
    if (tile == 1 || !(graph_[node].varies & bit(nest_->scopes[scope].range))) continue;
    if (nest_->scopes[scope].range == range) return instance % tile;
    instance /= tile;
  }
  return 0;
}

bool Emitter::narrow(int node) const {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  return !graph_[node].has_load && graph_[node].low >= -kLimit && graph_[node].high <= kLimit;
}

bool Emitter::certain(int node, int place) const {
  if (graph_[node].dtype != DType::Bool || !open_[place].interior) return false;
  return std::ranges::find(nest_->scopes[place].extent.conditions, node) !=
         nest_->scopes[place].extent.conditions.end();
}

Value* Emitter::tail_mask(int node, int scope) {
  int vector = nest_->vector_scope(graph_, node, scope);
  if (vector < 0 || open_[vector].active == open_[vector].lanes) return nullptr;
  llvm::SmallVector<llvm::Constant*, 64> mask;
  for (int i = 0; i < open_[vector].lanes; ++i)
    mask.push_back(b_.getInt1(i < open_[vector].active));
  return llvm::ConstantVector::get(mask);
}

// --- values in their forms -----------------------------------------------------------------------

const Emitter::Values& Emitter::value(int node, int scope) {
  int place = nest_->place(graph_, node, scope);
  if (auto found = open_[place].values.find({node, kWhole}); found != open_[place].values.end())
    return found->second;
  check_internal(graph_[node].op != Op::Fold, "a fold is computed before it is used");
  make_below(node, place);
  Values made;
  {
    At at(*this, place);
    made = make_value(node, place, lanes_of(node, place));
  }
  return open_[place].values[{node, kWhole}] = std::move(made);
}

// Makes what an elementwise op is computed from, sources first. Kernels are hundreds of nodes deep,
// and threads may have small stacks.
void Emitter::make_below(int node, int place) {
  struct Step {
    int node, place;
    size_t next = 0;
  };
  auto descends = [&](int x, int scope) {
    return is_elementwise(graph_[x].op) && graph_[x].dtype != DType::Index && !certain(x, scope);
  };
  if (!descends(node, place)) return;
  std::vector<Step> path{{node, place}};
  while (!path.empty()) {
    Step& step = path.back();
    std::span<const int> sources = graph_.sources(step.node);
    if (step.next == sources.size()) {
      const Step done = step;
      path.pop_back();
      if (!path.empty()) value(done.node, done.place);
      continue;
    }
    const int source = sources[step.next++], scope = nest_->place(graph_, source, step.place);
    if (open_[scope].values.contains({source, kWhole})) continue;
    if (descends(source, scope)) {
      path.push_back({source, scope});
    } else {
      value(source, scope);
    }
  }
}

const Emitter::Values& Emitter::lane0(int node, int scope) {
  int place = nest_->place(graph_, node, scope);
  if (lanes_of(node, place) == 1 && graph_.form(node).terms.size() == 1 &&
      graph_.form(node).terms[0].node == node && graph_[node].range < 0) {
    return value(node, scope);
  }
  if (auto found = open_[place].values.find({node, kLane0}); found != open_[place].values.end())
    return found->second;
  Values made = make_lane0(node, place);
  return open_[place].values[{node, kLane0}] = std::move(made);
}

const Emitter::Values& Emitter::splatted(int node, int lanes, int scope) {
  const Values& plain = value(node, scope);
  if (plain[0]->getType()->isVectorTy() || lanes == 1) return plain;
  int place = nest_->place(graph_, node, scope);
  if (auto found = open_[place].values.find({node, lanes}); found != open_[place].values.end())
    return found->second;
  Values made;
  {
    At at(*this, place);
    for (Value* v : Values(plain)) made.push_back(arith_.splat(v, lanes));
  }
  return open_[place].values[{node, lanes}] = std::move(made);
}

Value* Emitter::coordinate(int64_t place) {
  Value* address =
      b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), coordinates_, static_cast<uint64_t>(place));
  return b_.CreateAlignedLoad(b_.getInt64Ty(), address, llvm::Align(8));
}

Emitter::Values Emitter::make_value(int node, int place, int lanes) {
  const KernelNode& n = graph_[node];
  if (n.dtype == DType::Index && n.op != Op::Load) {
    const Form& form = graph_.form(node);
    bool opaque = form.terms.size() == 1 && form.terms[0].node == node && n.range < 0;
    if (lanes > 1 && n.op != Op::Const) return make_index_vector(node, place, lanes);
    if (!opaque) return lane0(node, place);
  }
  if (certain(node, place)) {
    llvm::Type* type = b_.getInt1Ty();
    if (lanes > 1) type = llvm::FixedVectorType::get(type, lanes);
    return Values(static_cast<size_t>(instances(node, place)),
                  llvm::Constant::getAllOnesValue(type));
  }
  switch (n.op) {
    case Op::Const:
      if (n.scalar >= 0) return {arith_.from_bits(coordinate(n.scalar), n.dtype)};
      return {arith_.constant(n.dtype, const_bits(*n.uop))};
    case Op::DeviceCoordinate:
      return {coordinate(coordinate_arg(*n.uop).mesh_axis)};
    case Op::Load:
      return make_load(node, place, lanes);
    default:
      return apply(node, place, lanes, kWhole);
  }
}

// An elementwise op over its sources, whole or in lane 0.
Emitter::Values Emitter::apply(int node, int place, int lanes, int form) {
  const KernelNode& n = graph_[node];
  std::span<const int> sources = graph_.sources(node);
  // The values first: making them may need code elsewhere.
  llvm::SmallVector<Values, 3> operands;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (form == kLane0) {
      operands.push_back(lane0(sources[i], place));
    } else if (n.op == Op::Where && i == 0) {
      operands.push_back(value(sources[i], place));  // a scalar may choose between vectors
    } else {
      operands.push_back(splatted(sources[i], lanes, place));
    }
  }
  Values results;
  DType source = graph_[sources[0]].dtype;
  llvm::IRBuilder<>::FastMathFlagGuard flags(b_);
  if (n.contracts) b_.setFastMathFlags(contraction());
  for (int instance = 0; instance < instances(node, place); ++instance) {
    llvm::SmallVector<Value*, 3> x;
    for (size_t i = 0; i < sources.size(); ++i) {
      x.push_back(operands[i][instance_of(node, instance, sources[i], place)]);
    }
    // Index vectors come in two widths: the widest of the operands, and that of the result, which may
    // be larger than all of them.
    const bool widens = n.dtype == DType::Index && lanes > 1 && form == kWhole && !narrow(node);
    unsigned width = widens ? 64 : 0;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (graph_[sources[i]].dtype == DType::Index)
        width = std::max(width, x[i]->getType()->getScalarSizeInBits());
    }
    for (size_t i = 0; i < sources.size(); ++i) {
      if (graph_[sources[i]].dtype == DType::Index) x[i] = arith_.index_width(x[i], width);
    }
    Value* result;
    if ((n.op == Op::IDiv || n.op == Op::Mod) && n.dtype == DType::Index) {
      result = arith_.index_division(n.op, x[0], x[1],
                                     graph_[sources[0]].has_load ? -1 : graph_[sources[0]].low);
    } else {
      result = arith_.emit(n.op, n.dtype, source, x);
    }
    if (n.dtype == DType::Index && lanes > 1 && form == kWhole)
      result = arith_.index_width(result, narrow(node) ? 32 : 64);
    results.push_back(result);
  }
  return results;
}

// --- indices -------------------------------------------------------------------------------------

Value* Emitter::range_base(int range, int scope, int node, int instance) {
  int owner = scope_of(range, scope);
  int offset = tile_offset(node, instance, range, scope);
  Value* base = open_[owner].base;
  if (offset == 0) return base;
  return b_.CreateAdd(base, i64(offset));
}

// constant + sum of terms, each added in the outermost scope that knows it.
Emitter::Values Emitter::make_lane0(int node, int place) {
  const Form& form = graph_.form(node);
  if (form.terms.size() == 1 && form.terms[0].node == node && graph_[node].range < 0) {
    At at(*this, place);
    return apply(node, place, 1, kLane0);
  }
  struct Part {
    int node, scope, depth;
    int64_t coefficient;
  };
  llvm::SmallVector<Part, 4> parts;
  for (auto [term, coefficient] : form.terms) {
    int scope = nest_->place(graph_, term, place), depth = 0;
    for (int s = scope; s > 0; s = nest_->scopes[s].parent) ++depth;
    parts.push_back({term, scope, depth, coefficient});
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const Part& a, const Part& b) { return a.depth < b.depth; });
  Values results;
  for (int instance = 0; instance < instances(node, place); ++instance) {
    Value* sum = nullptr;
    int64_t constant = form.constant;
    for (const Part& part : parts) {
      int range = graph_[part.node].range;
      Value* x;
      if (range >= 0) {
        x = open_[scope_of(range, place)].base;
        constant += part.coefficient * tile_offset(node, instance, range, place);
      } else {
        x = lane0(part.node, part.scope)[instance_of(node, instance, part.node, place)];
      }
      At at(*this, part.scope);
      Value* scaled = part.coefficient == 1 ? x : b_.CreateMul(x, i64(part.coefficient));
      sum = sum ? b_.CreateAdd(sum, scaled) : scaled;
    }
    At at(*this, place);
    if (!sum) {
      sum = i64(constant);
    } else if (constant != 0) {
      sum = b_.CreateAdd(sum, i64(constant));
    }
    results.push_back(sum);
  }
  return results;
}

std::optional<Graph::Pattern> Emitter::lane_pattern(int index, int scope, int lanes) const {
  int vector = nest_->vector_scope(graph_, index, scope);
  if (vector < 0) return Graph::Pattern(static_cast<size_t>(lanes), 0);
  return graph_.lane_pattern(index, nest_->scopes[vector].range, nest_->scopes[vector].lanes,
                             lanes);
}

Emitter::Values Emitter::make_index_vector(int node, int place, int lanes) {
  auto pattern = lane_pattern(node, place, lanes);
  unsigned width = narrow(node) ? 32 : 64;
  llvm::Type* element = b_.getIntNTy(width);
  const Form& form = graph_.form(node);
  Values results;
  if (pattern) {
    llvm::SmallVector<llvm::Constant*, 64> offsets;
    for (int64_t offset : *pattern)
      offsets.push_back(llvm::ConstantInt::getSigned(element, offset));
    for (Value* base : Values(lane0(node, place))) {
      Value* start = arith_.splat(arith_.index_width(base, width), lanes);
      results.push_back(b_.CreateAdd(start, llvm::ConstantVector::get(offsets)));
    }
    return results;
  }
  if (form.terms.size() == 1 && form.terms[0].node == node)
    return apply(node, place, lanes, kWhole);
  llvm::SmallVector<Values, 4> terms;
  for (auto [term, coefficient] : form.terms) terms.push_back(splatted(term, lanes, place));
  for (int instance = 0; instance < instances(node, place); ++instance) {
    Value* sum =
        llvm::ConstantInt::getSigned(llvm::FixedVectorType::get(element, lanes), form.constant);
    for (size_t i = 0; i < terms.size(); ++i) {
      auto [term, coefficient] = form.terms[i];
      Value* x = arith_.index_width(terms[i][instance_of(node, instance, term, place)], width);
      sum = b_.CreateAdd(sum,
                         b_.CreateMul(x, llvm::ConstantInt::getSigned(x->getType(), coefficient)));
    }
    results.push_back(sum);
  }
  return results;
}

}  // namespace tinyshard::codegen
