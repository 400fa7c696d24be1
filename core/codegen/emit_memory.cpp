// Loads and stores of the CPU's kernels: whole vectors where lanes are neighbours in memory, a splat
// where all lanes read one element, masked or gathered elements elsewhere.
#include <algorithm>
#include <bit>
#include <numeric>
#include <optional>

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/IntrinsicsX86.h>

#include "core/codegen/emit.h"
#include "core/codegen/prefetch.h"

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

int length_of(const Value* vector) {
  return static_cast<int>(llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements());
}

}  // namespace

Value* Emitter::zeros() {
  if (!zeros_) {
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), 1024);  // the largest vector and more
    zeros_ = new llvm::GlobalVariable(module_, type, true, llvm::GlobalValue::PrivateLinkage,
                                      llvm::Constant::getNullValue(type), "zeros");
    zeros_->setAlignment(llvm::Align(64));
  }
  return zeros_;
}

llvm::Align Emitter::access_alignment(int access, int scope, int lanes, bool vector) {
  int64_t elements =
      vector
          ? graph_.alignment(graph_.source(access, 1),
                             nest_->scopes[nest_->vector_scope(graph_, access, scope)].range, lanes)
          : 1;
  uint64_t bytes =
      static_cast<uint64_t>(elements) * itemsize(graph_.param(graph_.slot(access)).dtype);
  const auto most = static_cast<uint64_t>(target_.memory_alignment);
  return llvm::Align(bytes == 0 ? most : std::min<uint64_t>(most, bytes & -bytes));
}

// Zeros where the mask is false. On processors with AVX and without AVX-512, LLVM 19 loads all of a
// register of which the mask can hold for no lane, as the second one of (valid and 11110000) on
// eight doubles: other values than zeros, from memory that need not be there. Its intrinsics for
// one register each are taken as they are.
Value* Emitter::masked_load(llvm::Type* type, Value* address, llvm::Align align, Value* mask) {
  const unsigned bits = type->getScalarSizeInBits();
  if (llvm::isa<llvm::Constant>(mask) || !arith_.has_plain_avx() || bits < 32) {
    return b_.CreateMaskedLoad(type, address, align, mask, llvm::Constant::getNullValue(type));
  }
  const int lanes = length_of(mask), width = 256 / static_cast<int>(bits);
  const auto id = bits == 32 ? llvm::Intrinsic::x86_avx_maskload_ps_256
                             : llvm::Intrinsic::x86_avx_maskload_pd_256;
  auto* flags = llvm::FixedVectorType::get(b_.getIntNTy(bits), static_cast<unsigned>(width));
  llvm::SmallVector<Value*, 8> registers;
  for (int first = 0; first < lanes; first += width) {
    llvm::SmallVector<int, 64> from;
    for (int i = first; i < first + width; ++i) from.push_back(std::min(i, lanes));  // then false
    Value* mine = b_.CreateShuffleVector(mask, llvm::Constant::getNullValue(mask->getType()), from);
    registers.push_back(b_.CreateIntrinsic(
        id, {},
        {b_.CreateConstGEP1_64(type->getScalarType(), address, static_cast<uint64_t>(first)),
         b_.CreateSExt(mine, flags)}));
  }
  Value* all = llvm::concatenateVectors(b_, registers);
  llvm::SmallVector<int, 64> wanted(static_cast<size_t>(lanes));
  std::iota(wanted.begin(), wanted.end(), 0);
  return b_.CreateBitCast(b_.CreateShuffleVector(all, wanted), type);
}

// Addresses behind the buffer are harmless: nothing is read from where there is no memory. What is
// asked for comes to the second cache. The way from there is short, and a stream into the first one
// is slow beside an operand that lies there: on Zen 4 products of rows of bf16 by a row of f32 read 20
// GB/s so, 32 without asking and 35 from the second cache.
void Emitter::prefetch(int load, int place, int lanes, Value* address) {
  constexpr int64_t kLine = 64;
  const int64_t ahead = prefetch_distance(graph_, *nest_, load, place, lanes);
  if (ahead == 0) return;
  const auto bytes = lanes * static_cast<int64_t>(itemsize(graph_.param(graph_.slot(load)).dtype));
  for (int64_t at = 0; at < bytes; at += kLine) {
    Value* line = b_.CreateGEP(b_.getInt8Ty(), address, i64(ahead + at));
    constexpr uint32_t kRead = 0, kSecondCache = 2, kData = 1;
    b_.CreateIntrinsic(llvm::Intrinsic::prefetch, {line->getType()},
                       {line, b_.getInt32(kRead), b_.getInt32(kSecondCache), b_.getInt32(kData)});
  }
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
  bool gather = graph_[index].has_load;
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
    if (gather) valid = both(valid, in_range(offset));
    Value* any = by_lane ? b_.CreateOrReduce(valid) : valid;
    Value* address = guarded(checked(node, b_.CreateGEP(element, pointer, offset), 1, any), any);
    Value* x = arith_.splat(
        arith_.from_memory(b_.CreateAlignedLoad(element, address, one), info.dtype), lanes);
    return by_lane ? b_.CreateSelect(valid, x, llvm::Constant::getNullValue(x->getType())) : x;
  }
  // Gathers and shuffles know integers of 16 bits better than halves.
  llvm::Type* bits = itemsize(info.dtype) == 2 ? b_.getInt16Ty() : element;
  llvm::Type *type = arith_.memory_type(info.dtype, lanes),
             *bits_type = llvm::FixedVectorType::get(bits, lanes);
  if (gather) {
    Value* offsets = value(index, place)[at];
    valid = both(valid ? arith_.splat(valid, lanes) : nullptr, in_range(offsets));
    by_lane = true;
  }
  Value* mask = tail_mask(node, place);
  if (pattern && consecutive(*pattern)) {
    Value* address = b_.CreateGEP(element, pointer, lane0(index, place)[at]);
    int vector = nest_->vector_scope(graph_, node, place);
    llvm::Align align = access_alignment(node, place, nest_->scopes[vector].lanes, true);
    prefetch(node, place, lanes, address);
    if (fault_) address = checked(node, address, lanes, both(mask, valid));
    if (valid && !by_lane) address = guarded(address, valid);
    if (by_lane) mask = both(mask, valid);
    Value* x =
        mask ? masked_load(type, address, align, mask) : b_.CreateAlignedLoad(type, address, align);
    return arith_.from_memory(x, info.dtype, nest_->scopes[vector].by_quads);
  }
  if (pattern && !gather) {
    int vector = nest_->vector_scope(graph_, node, place);
    if (auto span = make_span(*pattern, open_[vector].active)) {
      // All lanes lie close together: what they use of a longer vector, then a shuffle.
      Value* address =
          b_.CreateGEP(element, pointer, b_.CreateAdd(lane0(index, place)[at], i64(span->low)));
      llvm::SmallVector<llvm::Constant*, 64> used;
      for (const auto& users : span->users) used.push_back(b_.getInt1(!users.empty()));
      Value* use = llvm::ConstantVector::get(used);
      if (by_lane) {
        size_t most = 0;
        for (const auto& users : span->users) most = std::max(most, users.size());
        // LLVM 19 ends the process over shuffles of flags into more than a register of them.
        const bool wide = span->users.size() > 64;
        Value* flags =
            wide ? b_.CreateSExt(valid, valid->getType()->getWithNewType(b_.getInt8Ty())) : valid;
        Value* wanted = nullptr;
        for (size_t round = 0; round < most; ++round) {
          llvm::SmallVector<int, 64> from;
          for (const auto& users : span->users)
            from.push_back(round < users.size() ? users[round] : lanes);
          Value* some =
              b_.CreateShuffleVector(flags, llvm::Constant::getNullValue(flags->getType()), from);
          wanted = wanted ? b_.CreateOr(wanted, some) : some;
        }
        use = wide ? b_.CreateIsNotNull(wanted) : wanted;
      }
      auto* span_type = llvm::FixedVectorType::get(bits, static_cast<unsigned>(span->users.size()));
      const bool whole = valid && !by_lane;
      if (fault_) {
        const int length = static_cast<int>(span->users.size());
        Value* all = whole ? b_.CreateAnd(use, arith_.splat(valid, length)) : use;
        address = checked(node, address, length, all);
      }
      if (whole) address = guarded(address, valid);
      Value* x = masked_load(span_type, address, one, use);
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
  Value* addresses = checked(node, b_.CreateGEP(element, pointer, offsets), 1, mask);
  Value* x = b_.CreateMaskedGather(bits_type, addresses, one, mask,
                                   llvm::Constant::getNullValue(bits_type));
  return arith_.from_memory(b_.CreateBitCast(x, type), info.dtype);
}

void Emitter::emit_stores(int scope) {
  // All values before the first store: a param may be read and written in place.
  struct Pending {
    int store, lanes;
    Values values, valid;
  };
  std::vector<Pending> pending;
  for (int store : nest_->scopes[scope].stores) {
    int lanes = lanes_of(store, scope), source = graph_.source(store, 2);
    Values values, valid;
    const Values& made = splatted(source, lanes, scope);
    for (int i = 0; i < instances(store, scope); ++i)
      values.push_back(made[instance_of(store, i, source, scope)]);
    if (graph_[store].source_count > 3) {
      const int mask = graph_.source(store, 3);
      const Values& masks = splatted(mask, lanes, scope);
      for (int i = 0; i < instances(store, scope); ++i)
        valid.push_back(masks[instance_of(store, i, mask, scope)]);
    }
    pending.push_back({store, lanes, std::move(values), std::move(valid)});
    if (graph_[graph_.source(store, 1)].has_load) value(graph_.source(store, 1), scope);
  }
  for (Pending& p : pending) {
    for (size_t i = 0; i < p.values.size(); ++i)
      store_one(p.store, scope, p.lanes, static_cast<int>(i), p.values[i],
                p.valid.empty() ? nullptr : p.valid[i]);
  }
}

// `valid`, of as many lanes as x: where to store at all; null for everywhere.
void Emitter::store_one(int store, int scope, int lanes, int instance, Value* x, Value* valid) {
  if (auto* known = llvm::dyn_cast_or_null<llvm::Constant>(valid); known && known->isAllOnesValue())
    valid = nullptr;
  const ParamInfo& info = graph_.param(graph_.slot(store));
  Value* pointer = param(graph_.slot(store));
  int index = graph_.source(store, 1), at = instance_of(store, instance, index, scope);
  x = arith_.to_memory(x, info.dtype, graph_[graph_.source(store, 2)].dtype == info.dtype);
  llvm::Type* element = arith_.memory_type(info.dtype);
  llvm::Align align(itemsize(info.dtype));
  bool dropped = graph_[index].has_load;  // outside of the buffer
  auto in_range = [&](Value* offset) {
    return b_.CreateICmpULT(
        offset, llvm::ConstantInt::get(offset->getType(), static_cast<uint64_t>(info.numel)));
  };
  if (lanes == 1) {
    Value* offset = lane0(index, scope)[at];
    Value* address = b_.CreateGEP(element, pointer, offset);
    Value* happens = dropped ? in_range(offset) : nullptr;
    if (valid) happens = happens ? b_.CreateAnd(happens, valid) : valid;
    if (fault_) address = checked(store, address, 1, happens);
    if (!happens) {
      b_.CreateAlignedStore(x, address, align);
    } else {  // a vector of one lane, for its mask
      auto one = [&](Value* v) {
        return b_.CreateInsertElement(
            llvm::PoisonValue::get(llvm::FixedVectorType::get(v->getType(), 1)), v, uint64_t{0});
      };
      b_.CreateMaskedStore(one(x), address, align, one(happens));
    }
    return;
  }
  int vector = nest_->vector_scope(graph_, store, scope);
  auto pattern = lane_pattern(index, scope, lanes);
  Value* mask = tail_mask(store, scope);
  if (valid) mask = mask ? b_.CreateAnd(mask, valid) : valid;
  if (pattern && consecutive(*pattern) && !dropped) {
    Value* address = b_.CreateGEP(element, pointer, lane0(index, scope)[at]);
    align = access_alignment(store, scope, nest_->scopes[vector].lanes, true);
    address = checked(store, address, lanes, mask);
    if (mask) {
      b_.CreateMaskedStore(x, address, align, mask);
    } else {
      b_.CreateAlignedStore(x, address, align);
    }
    return;
  }
  if (itemsize(info.dtype) == 2)
    x = b_.CreateBitCast(x, llvm::FixedVectorType::get(b_.getInt16Ty(), lanes));
  if (auto span = pattern && !dropped && !valid ? make_span(*pattern, open_[vector].active)
                                                : std::nullopt) {
    llvm::SmallVector<llvm::Constant*, 64> used;
    llvm::SmallVector<int, 64> from;
    for (const auto& users : span->users) {
      used.push_back(b_.getInt1(!users.empty()));
      from.push_back(users.empty() ? 0 : users.back());
    }
    Value* address =
        b_.CreateGEP(element, pointer, b_.CreateAdd(lane0(index, scope)[at], i64(span->low)));
    Value* use = llvm::ConstantVector::get(used);
    address = checked(store, address, static_cast<int>(used.size()), use);
    b_.CreateMaskedStore(b_.CreateShuffleVector(x, from), address, align, use);
    return;
  }
  Value* offsets = arith_.splat(value(index, scope)[at], lanes);
  if (dropped) mask = mask ? b_.CreateAnd(mask, in_range(offsets)) : in_range(offsets);
  if (!mask)
    mask = llvm::Constant::getAllOnesValue(llvm::FixedVectorType::get(b_.getInt1Ty(), lanes));
  Value* addresses = checked(store, b_.CreateGEP(element, pointer, offsets), 1, mask);
  b_.CreateMaskedScatter(x, addresses, align, mask);
}

}  // namespace tinyshard::codegen
