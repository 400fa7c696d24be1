// Loads and stores: pieces of up to 16 bytes where lanes are neighbours in memory, single elements
// elsewhere.
#include "core/codegen/gpu/gpu_emit.h"
#include "core/dtype/half.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

namespace {
constexpr int64_t kAccessBytes = 16;
}  // namespace

// Returns zeros for loads that must not touch their parameter: reading them takes no branch.
Value* Emitter::zeros() {
  if (!zeros_) {
    auto* type = llvm::ArrayType::get(b_.getInt8Ty(), kAccessBytes);
    zeros_ = new llvm::GlobalVariable(
        module_, type, true, llvm::GlobalValue::InternalLinkage, llvm::Constant::getNullValue(type),
        "zeros", nullptr, llvm::GlobalValue::NotThreadLocal, dialect_.words().global_space);
    zeros_->setAlignment(llvm::Align(kAccessBytes));
  }
  return zeros_;
}

int Emitter::vector_piece(int access) const {
  const Frame* frame = lane_frame(access);
  if (!frame) return 1;
  int index = graph_.source(access, 1), range = -1;
  auto pattern = lane_pattern(index);
  if (!pattern) return 1;
  for (size_t i = 0; i < pattern->size(); ++i) {
    if ((*pattern)[i] != static_cast<int64_t>(i)) return 1;
  }
  range = std::countr_zero(graph_[index].varies & frame->lane_ranges);
  const ParamInfo& info = graph_.param(graph_.slot(access));
  if (graph_[access].op == Op::Load && graph_[access].source_count > 2 &&
      lane_frame(graph_.source(access, 2)))
    return 1;
  if (graph_[access].op == Op::Store && graph_[access].source_count > 3 &&
      lane_frame(graph_.source(access, 3)))
    return 1;
  int64_t step = graph_.alignment(index, range, frame->lanes);
  bool checked = graph_[index].has_load;
  int piece = frame->lanes;
  while (piece > 1 && (piece * static_cast<int64_t>(itemsize(info.dtype)) > kAccessBytes ||
                       step % piece != 0 || (checked && info.numel % piece != 0)))
    piece /= 2;
  return piece;
}

Value* Emitter::element_address(int slot, Value* offset) {
  llvm::Type* element = arith_.memory_type(graph_.param(slot).dtype);
  return b_.CreateGEP(element, function_->getArg(static_cast<unsigned>(slot)), offset);
}

// `piece` elements from `address`, in registers. Short ones are cut out of words.
Emitter::Values Emitter::load_piece(int slot, Value* address, int piece) {
  DType dtype = graph_.param(slot).dtype;
  llvm::Type* element = arith_.memory_type(dtype);
  auto bytes = static_cast<unsigned>(itemsize(dtype));
  if (piece == 1) {
    Value* x = b_.CreateAlignedLoad(element, address, llvm::Align(bytes));
    return {arith_.from_memory(x, dtype)};
  }
  unsigned total = bytes * static_cast<unsigned>(piece);
  unsigned word = std::min(total, std::max(4u, bytes)), words = total / word;
  llvm::Type* word_type = b_.getIntNTy(8 * word);
  llvm::Type* type = words == 1 ? word_type : llvm::FixedVectorType::get(word_type, words);
  Value* loaded = b_.CreateAlignedLoad(type, address, llvm::Align(total));
  Values elements;
  for (unsigned w = 0; w < words; ++w) {
    Value* x = words == 1 ? loaded : b_.CreateExtractElement(loaded, uint64_t{w});
    for (unsigned k = 0; k < word / bytes; ++k) {
      Value* part = k == 0 ? x : b_.CreateLShr(x, uint64_t{8} * bytes * k);
      part = b_.CreateTrunc(part, b_.getIntNTy(8 * bytes));
      elements.push_back(arith_.from_memory(b_.CreateBitCast(part, element), dtype));
    }
  }
  return elements;
}

// `rounded`: the values are of the memory's type already.
void Emitter::store_piece(int slot, Value* address, llvm::ArrayRef<Value*> x, bool rounded) {
  DType dtype = graph_.param(slot).dtype;
  auto bytes = static_cast<unsigned>(itemsize(dtype));
  if (x.size() == 1) {
    b_.CreateAlignedStore(arith_.to_memory(x[0], dtype, rounded), address, llvm::Align(bytes));
    return;
  }
  unsigned total = bytes * static_cast<unsigned>(x.size());
  unsigned word = std::min(total, std::max(4u, bytes)), words = total / word;
  llvm::Type* word_type = b_.getIntNTy(8 * word);
  Value* whole =
      words == 1 ? nullptr : llvm::PoisonValue::get(llvm::FixedVectorType::get(word_type, words));
  unsigned each = word / bytes;
  for (unsigned w = 0; w < words; ++w) {
    Value* packed = nullptr;
    if (each == 2 && is_half(dtype) &&
        !(arith_.moved_bits(x[2 * w], dtype) && arith_.moved_bits(x[2 * w + 1], dtype))) {
      packed = b_.CreateBitCast(dialect_.pair(b_, dtype, x[2 * w], x[2 * w + 1]), word_type);
    } else {
      for (unsigned k = 0; k < each; ++k) {
        Value* part = arith_.to_memory(x[w * each + k], dtype, rounded);
        part = b_.CreateZExt(b_.CreateBitCast(part, b_.getIntNTy(8 * bytes)), word_type);
        if (k > 0) part = b_.CreateShl(part, uint64_t{8} * bytes * k);
        packed = packed ? b_.CreateOr(packed, part) : part;
      }
    }
    whole = words == 1 ? packed : b_.CreateInsertElement(whole, packed, uint64_t{w});
  }
  b_.CreateAlignedStore(whole, address, llvm::Align(total));
}

Emitter::Values Emitter::make_load(int node) {
  int slot = graph_.slot(node), index = graph_.source(node, 1);
  int valid = graph_[node].source_count > 2 ? graph_.source(node, 2) : -1;
  const ParamInfo& info = graph_.param(slot);
  Values offsets = value(index), conditions;
  if (valid >= 0) conditions = value(valid);
  bool checked = graph_[index].has_load;
  int piece = vector_piece(node);
  Values results;
  Value *last_offset = nullptr, *last_condition = nullptr;
  for (int i = 0; i < instances(node); i += piece) {
    Value* offset = offsets[static_cast<size_t>(instance_of(node, i, index))];
    Value* condition =
        valid < 0 ? nullptr : conditions[static_cast<size_t>(instance_of(node, i, valid))];
    if (piece == 1 && offset == last_offset && condition == last_condition) {
      results.push_back(results.back());
      continue;
    }
    last_offset = offset, last_condition = condition;
    if (checked) {
      auto* count = llvm::ConstantInt::get(offset->getType(), static_cast<uint64_t>(info.numel));
      condition = both(condition, b_.CreateICmpULT(offset, count));
    }
    Value* address = element_address(slot, offset);
    if (condition) address = b_.CreateSelect(condition, address, zeros());
    results.append(load_piece(slot, address, piece));
  }
  return results;
}

// --- stores --------------------------------------------------------------------------------------

// Steps that exist, and one iteration of each loop that the store does not vary with. Null: always.
Value* Emitter::store_condition(int store, int instance) {
  Spot spot = spot_of(store, instance);
  Value* condition = nullptr;
  for (size_t f = 1; f < frames_.size(); ++f) {
    Frame& frame = frames_[f];
    auto c = static_cast<size_t>(spot.chunks[f]);
    condition = both(condition, frame.active[c]);
    for (auto& [range, digits] : frame.digits) {
      if (graph_.range(range).fold || graph_[store].varies & bit(range)) continue;
      condition = both(condition, b_.CreateIsNull(digits[c]));
    }
  }
  return condition;
}

Emitter::StoredValue Emitter::stored_value(int store) const {
  DType dtype = graph_.param(graph_.slot(store)).dtype;
  int source = graph_.source(store, 2);
  // The store itself rounds what is cast for it.
  if (graph_[source].op == Op::Cast && graph_[source].dtype == dtype &&
      (dtype == DType::BF16 || dtype == DType::F16) &&
      graph_[graph_.source(source, 0)].dtype == DType::F32)
    source = graph_.source(source, 0);
  return {source, graph_[source].dtype == dtype};
}

void Emitter::emit_stores(std::span<const int> stores, Value* condition) {
  // Everything before the first store: a parameter may be read and written in place.
  struct Pending {
    int slot;
    Value *condition, *address;
    Values values;
    bool rounded;
  };
  std::vector<Pending> pending;
  for (int store : stores) {
    int slot = graph_.slot(store), index = graph_.source(store, 1);
    const ParamInfo& info = graph_.param(slot);
    auto [source, rounded] = stored_value(store);
    Values values = value(source), offsets = value(index), valid;
    const int mask = graph_[store].source_count > 3 ? graph_.source(store, 3) : -1;
    if (mask >= 0) valid = value(mask);
    int piece = vector_piece(store);
    for (int i = 0; i < instances(store); i += piece) {
      Value* offset = offsets[static_cast<size_t>(instance_of(store, i, index))];
      Value* when = both(condition, store_condition(store, i));
      if (mask >= 0) when = both(when, valid[static_cast<size_t>(instance_of(store, i, mask))]);
      if (graph_[index].has_load) {
        auto* count = llvm::ConstantInt::get(offset->getType(), static_cast<uint64_t>(info.numel));
        when = both(when, b_.CreateICmpULT(offset, count));
      }
      Pending p{slot, when, element_address(slot, offset), {}, rounded};
      for (int k = i; k < i + piece; ++k)
        p.values.push_back(values[static_cast<size_t>(instance_of(store, k, source))]);
      pending.push_back(std::move(p));
    }
  }
  for (Pending& p : pending)
    when(p.condition, [&] { store_piece(p.slot, p.address, p.values, p.rounded); });
}

}  // namespace tinyshard::codegen::gpu
