#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "core/base/error.h"
#include "core/codegen/emit.h"

namespace tinyshard::codegen {

using llvm::Value;

namespace {

bool consecutive(const Graph::Pattern& pattern) {
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

bool uniform(const Graph::Pattern& pattern) {
  return std::ranges::all_of(pattern, [](int64_t offset) { return offset == 0; });
}

// The stretch of memory that lanes lie in, when it is not much longer than their number.
struct Span {
  int64_t low = 0;                               // relative to lane 0
  std::vector<llvm::SmallVector<int, 2>> users;  // lanes by position
};

std::optional<Span> make_span(const Graph::Pattern& pattern, int active) {
  auto begin = pattern.begin(), end = begin + active;
  auto [low, high] = std::minmax_element(begin, end);
  int64_t length = *high - *low + 1;
  if (length > 4 * static_cast<int64_t>(pattern.size())) return std::nullopt;
  Span span;
  span.low = *low;
  span.users.resize(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(length, 2))));
  for (int i = 0; i < active; ++i)
    span.users[static_cast<size_t>(pattern[static_cast<size_t>(i)] - *low)].push_back(i);
  return span;
}

}  // namespace

Emitter::At::At(Emitter& e, int scope) : guard(e.b_) {
  if (e.open_[scope].before) e.b_.SetInsertPoint(e.open_[scope].before);
}

// --- where values live
// -------------------------------------------------------------------------------

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

Value* Emitter::tail_mask(int node, int scope) {
  int vector = nest_->vector_scope(graph_, node, scope);
  if (vector < 0 || open_[vector].active == open_[vector].lanes) return nullptr;
  llvm::SmallVector<llvm::Constant*, 64> mask;
  for (int i = 0; i < open_[vector].lanes; ++i)
    mask.push_back(b_.getInt1(i < open_[vector].active));
  return llvm::ConstantVector::get(mask);
}

Value* Emitter::zeros() {
  if (!zeros_) {
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), 1024);  // the largest vector and more
    zeros_ = new llvm::GlobalVariable(module_, type, true, llvm::GlobalValue::PrivateLinkage,
                                      llvm::Constant::getNullValue(type), "zeros");
    zeros_->setAlignment(llvm::Align(64));
  }
  return zeros_;
}

// --- values in their forms
// -----------------------------------------------------------------------------

const Emitter::Values& Emitter::value(int node, int scope) {
  int place = nest_->place(graph_, node, scope);
  if (auto found = open_[place].values.find({node, kWhole}); found != open_[place].values.end())
    return found->second;
  check_internal(graph_[node].op != Op::Fold, "a fold is computed before it is used");
  Values made;
  {
    At at(*this, place);
    made = make_value(node, place, lanes_of(node, place));
  }
  return open_[place].values[{node, kWhole}] = std::move(made);
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

Emitter::Values Emitter::make_value(int node, int place, int lanes) {
  const KernelNode& n = graph_[node];
  if (n.dtype == DType::Index && n.op != Op::Load) {
    const Form& form = graph_.form(node);
    bool opaque = form.terms.size() == 1 && form.terms[0].node == node && n.range < 0;
    if (lanes > 1 && n.op != Op::Const) return make_index_vector(node, place, lanes);
    if (!opaque) return lane0(node, place);
  }
  switch (n.op) {
    case Op::Const:
      return {arith_.constant(n.dtype, n.uop->arg()[0])};
    case Op::DeviceCoordinate:
      return {b_.CreateAlignedLoad(
          b_.getInt64Ty(),
          b_.CreateConstInBoundsGEP1_64(b_.getInt64Ty(), coordinates_,
                                        static_cast<uint64_t>(n.uop->arg()[0])),
          llvm::Align(8))};
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
  for (int instance = 0; instance < instances(node, place); ++instance) {
    llvm::SmallVector<Value*, 3> x;
    for (size_t i = 0; i < sources.size(); ++i) {
      x.push_back(operands[i][instance_of(node, instance, sources[i], place)]);
    }
    // Index vectors come in two widths.
    unsigned width = 0;
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

// --- indices
// -----------------------------------------------------------------------------------------

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

// --- memory
// ------------------------------------------------------------------------------------------

llvm::Align Emitter::access_alignment(int access, int scope, int lanes, bool vector) {
  int64_t elements =
      vector
          ? graph_.alignment(graph_.source(access, 1),
                             nest_->scopes[nest_->vector_scope(graph_, access, scope)].range, lanes)
          : 1;
  uint64_t bytes =
      static_cast<uint64_t>(elements) * itemsize(graph_.param(graph_.slot(access)).dtype);
  return llvm::Align(bytes == 0 ? 64 : std::min<uint64_t>(64, bytes & -bytes));
}

Emitter::Values Emitter::make_load(int node, int place, int lanes) {
  // Operands first, so that their code precedes this.
  for (int source : graph_.sources(node).subspan(1)) {
    if (graph_[source].dtype != DType::Index) value(source, place);
  }
  Values results;
  for (int i = 0; i < instances(node, place); ++i)
    results.push_back(load_one(node, place, lanes, i));
  return results;
}

Value* Emitter::load_one(int node, int place, int lanes, int instance) {
  const ParamInfo& info = graph_.param(graph_.slot(node));
  Value* pointer = param(graph_.slot(node));
  int index = graph_.source(node, 1),
      valid_node = graph_.sources(node).size() > 2 ? graph_.source(node, 2) : -1;
  bool checked = graph_[index].has_load;
  int at = instance_of(node, instance, index, place);
  Value* valid = valid_node < 0
                     ? nullptr
                     : value(valid_node, place)[instance_of(node, instance, valid_node, place)];
  auto in_range = [&](Value* offset) {
    return b_.CreateICmpULT(
        offset, llvm::ConstantInt::get(offset->getType(), static_cast<uint64_t>(info.numel)));
  };
  auto both = [&](Value* a, Value* b) -> Value* {
    if (!a) return b;
    if (!b) return a;
    if (a->getType() != b->getType()) a = arith_.splat(a, lanes), b = arith_.splat(b, lanes);
    return b_.CreateAnd(a, b);
  };
  llvm::Type* element = arith_.memory_type(info.dtype);
  // A place that is invalid as a whole reads zeros from elsewhere: no branch.
  auto guarded = [&](Value* address, Value* condition) -> Value* {
    return condition ? b_.CreateSelect(condition, address, zeros()) : address;
  };

  llvm::Align one(itemsize(info.dtype));
  auto pattern = lane_pattern(index, place, lanes);
  bool by_lane = valid && valid->getType()->isVectorTy();
  if (lanes == 1 || (pattern && uniform(*pattern))) {
    Value* offset = lane0(index, place)[at];
    if (checked) valid = both(valid, in_range(offset));
    Value* any = by_lane ? b_.CreateOrReduce(valid) : valid;
    Value* address = guarded(b_.CreateGEP(element, pointer, offset), any);
    Value* x = arith_.splat(
        arith_.from_memory(b_.CreateAlignedLoad(element, address, one), info.dtype), lanes);
    return by_lane ? b_.CreateSelect(valid, x, llvm::Constant::getNullValue(x->getType())) : x;
  }
  // Gathers and shuffles know integers of 16 bits better than halves.
  llvm::Type* bits = itemsize(info.dtype) == 2 ? b_.getInt16Ty() : element;
  llvm::Type *type = arith_.memory_type(info.dtype, lanes),
             *bits_type = llvm::FixedVectorType::get(bits, lanes);
  if (checked) {
    Value* offsets = value(index, place)[at];
    valid = both(valid ? arith_.splat(valid, lanes) : nullptr, in_range(offsets));
    by_lane = true;
  }
  Value* mask = tail_mask(node, place);
  if (pattern && consecutive(*pattern)) {
    Value* address = b_.CreateGEP(element, pointer, lane0(index, place)[at]);
    int vector = nest_->vector_scope(graph_, node, place);
    llvm::Align align = access_alignment(node, place, nest_->scopes[vector].lanes, true);
    if (valid && !by_lane) address = guarded(address, valid);
    if (by_lane) mask = both(mask, valid);
    Value* x = mask ? static_cast<Value*>(b_.CreateMaskedLoad(type, address, align, mask,
                                                              llvm::Constant::getNullValue(type)))
                    : b_.CreateAlignedLoad(type, address, align);
    return arith_.from_memory(x, info.dtype);
  }
  if (pattern && !checked) {
    int vector = nest_->vector_scope(graph_, node, place);
    if (auto span = make_span(*pattern, open_[vector].active)) {
      // All lanes lie close together: what they use of a longer vector, then a shuffle.
      Value* address =
          b_.CreateGEP(element, pointer, b_.CreateAdd(lane0(index, place)[at], i64(span->low)));
      if (valid && !by_lane) address = guarded(address, valid);
      llvm::SmallVector<llvm::Constant*, 64> used;
      for (const auto& users : span->users) used.push_back(b_.getInt1(!users.empty()));
      Value* use = llvm::ConstantVector::get(used);
      if (by_lane) {
        size_t most = 0;
        for (const auto& users : span->users) most = std::max(most, users.size());
        Value* wanted = nullptr;
        for (size_t round = 0; round < most; ++round) {
          llvm::SmallVector<int, 64> from;
          for (const auto& users : span->users)
            from.push_back(round < users.size() ? users[round] : lanes);
          Value* some =
              b_.CreateShuffleVector(valid, llvm::Constant::getNullValue(valid->getType()), from);
          wanted = wanted ? b_.CreateOr(wanted, some) : some;
        }
        use = wanted;
      }
      auto* span_type = llvm::FixedVectorType::get(bits, static_cast<unsigned>(span->users.size()));
      Value* x = b_.CreateMaskedLoad(span_type, address, one, use,
                                     llvm::Constant::getNullValue(span_type));
      llvm::SmallVector<int, 64> pick;
      for (int i = 0; i < lanes; ++i)
        pick.push_back(i < open_[vector].active
                           ? static_cast<int>((*pattern)[static_cast<size_t>(i)] - span->low)
                           : 0);
      x = b_.CreateShuffleVector(x, pick);
      if (by_lane) x = b_.CreateSelect(valid, x, llvm::Constant::getNullValue(bits_type));
      return arith_.from_memory(b_.CreateBitCast(x, type), info.dtype);
    }
  }
  Value* offsets = arith_.splat(value(index, place)[at], lanes);
  mask = both(mask, valid);
  mask = mask ? arith_.splat(mask, lanes)
              : llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes));
  Value* addresses = b_.CreateGEP(element, pointer, offsets);
  Value* x = b_.CreateMaskedGather(bits_type, addresses, one, mask,
                                   llvm::Constant::getNullValue(bits_type));
  return arith_.from_memory(b_.CreateBitCast(x, type), info.dtype);
}

void Emitter::emit_stores(int scope) {
  // All values before the first store: a param may be read and written in place.
  struct Pending {
    int store, lanes;
    Values values;
  };
  std::vector<Pending> pending;
  for (int store : nest_->scopes[scope].stores) {
    int lanes = lanes_of(store, scope), source = graph_.source(store, 2);
    Values values;
    const Values& made = splatted(source, lanes, scope);
    for (int i = 0; i < instances(store, scope); ++i)
      values.push_back(made[instance_of(store, i, source, scope)]);
    pending.push_back({store, lanes, std::move(values)});
    if (graph_[graph_.source(store, 1)].has_load) value(graph_.source(store, 1), scope);
  }
  for (Pending& p : pending) {
    for (size_t i = 0; i < p.values.size(); ++i)
      store_one(p.store, scope, p.lanes, static_cast<int>(i), p.values[i]);
  }
}

void Emitter::store_one(int store, int scope, int lanes, int instance, Value* x) {
  const ParamInfo& info = graph_.param(graph_.slot(store));
  Value* pointer = param(graph_.slot(store));
  int index = graph_.source(store, 1), at = instance_of(store, instance, index, scope);
  Op made_by = graph_[graph_.source(store, 2)].op;
  x = arith_.to_memory(x, info.dtype,
                       made_by == Op::Cast || made_by == Op::Load || made_by == Op::Const);
  llvm::Type* element = arith_.memory_type(info.dtype);
  llvm::Align align(itemsize(info.dtype));
  bool checked = graph_[index].has_load;
  auto in_range = [&](Value* offset) {
    return b_.CreateICmpULT(
        offset, llvm::ConstantInt::get(offset->getType(), static_cast<uint64_t>(info.numel)));
  };
  if (lanes == 1) {
    Value* offset = lane0(index, scope)[at];
    Value* address = b_.CreateGEP(element, pointer, offset);
    if (!checked) {
      b_.CreateAlignedStore(x, address, align);
    } else {  // a vector of one lane, for its mask
      auto one = [&](Value* v) {
        return b_.CreateInsertElement(
            llvm::PoisonValue::get(llvm::FixedVectorType::get(v->getType(), 1)), v, uint64_t{0});
      };
      b_.CreateMaskedStore(one(x), address, align, one(in_range(offset)));
    }
    return;
  }
  int vector = nest_->vector_scope(graph_, store, scope);
  auto pattern = lane_pattern(index, scope, lanes);
  Value* mask = tail_mask(store, scope);
  if (pattern && consecutive(*pattern) && !checked) {
    Value* address = b_.CreateGEP(element, pointer, lane0(index, scope)[at]);
    align = access_alignment(store, scope, nest_->scopes[vector].lanes, true);
    if (mask) {
      b_.CreateMaskedStore(x, address, align, mask);
    } else {
      b_.CreateAlignedStore(x, address, align);
    }
    return;
  }
  if (itemsize(info.dtype) == 2)
    x = b_.CreateBitCast(x, llvm::FixedVectorType::get(b_.getInt16Ty(), lanes));
  if (auto span = pattern && !checked ? make_span(*pattern, open_[vector].active) : std::nullopt) {
    llvm::SmallVector<llvm::Constant*, 64> used;
    llvm::SmallVector<int, 64> from;
    for (const auto& users : span->users) {
      used.push_back(b_.getInt1(!users.empty()));
      from.push_back(users.empty() ? 0 : users.back());
    }
    Value* address =
        b_.CreateGEP(element, pointer, b_.CreateAdd(lane0(index, scope)[at], i64(span->low)));
    b_.CreateMaskedStore(b_.CreateShuffleVector(x, from), address, align,
                         llvm::ConstantVector::get(used));
    return;
  }
  Value* offsets = arith_.splat(value(index, scope)[at], lanes);
  if (checked) mask = mask ? b_.CreateAnd(mask, in_range(offsets)) : in_range(offsets);
  if (!mask)
    mask = llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes));
  b_.CreateMaskedScatter(x, b_.CreateGEP(element, pointer, offsets), align, mask);
}

}  // namespace tinyshard::codegen
