// A scatter whose rows were sorted by the place that they go to: of each place it is noted where its rows begin
// and end in their order, and a thread takes those of an element of the result one after the other. Example:
//
//   index               5 2 9 2        9 lies outside of a result of 8 rows: its key is 8
//   keys                5 2 8 2
//   order               1 3 0 2        of the keys, by a stable sort
//   bounds of row 2     0 2            source rows 1 and 3
//   bounds of row 5     2 3            source row 0
//   bounds of others    0 0
//
// The work grows with the sizes of source and result, where looking at all of the source for each group of
// rows grows with their product.
#include <array>
#include <vector>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"
#include "core/codegen/gpu/dialect.h"
#include "core/codegen/gpu/entry.h"
#include "core/codegen/scatter.h"

namespace tinyshard::codegen::gpu {

using llvm::BasicBlock;
using llvm::PHINode;
using llvm::Value;

namespace {

constexpr int kElements = 256;  // of a block: threads
constexpr int kAtOnce = 4;      // rows whose loads do not wait for each other

class SortedScatterEmitter {
 public:
  SortedScatterEmitter(const ScatterShape& shape, const Target& target, llvm::Module& module)
      : s_(shape),
        dialect_(*GpuDialect::of(target)),
        module_(module),
        b_(module.getContext()),
        arith_(b_, module, target),
        i32_(b_.getInt32Ty()),
        i64_(b_.getInt64Ty()) {}

  void keys(const std::string& name);
  void clear(const std::string& name);
  void mark(const std::string& name);
  void combine(const std::string& name);

 private:
  using Rows = std::array<Value*, kAtOnce>;

  llvm::ConstantInt* i64(int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); }
  BasicBlock* block(const char* name) {
    return BasicBlock::Create(b_.getContext(), name, function_);
  }
  Value* times(Value* x, int64_t n) { return b_.CreateMul(x, i64(n)); }
  Value* load(llvm::Type* type, unsigned argument, Value* place) {
    return b_.CreateLoad(type, b_.CreateGEP(type, function_->getArg(argument), place));
  }
  // An element of memory of this type, in a register.
  Value* element(DType dtype, unsigned argument, Value* place) {
    llvm::Type* type = arith_.memory_type(dtype);
    Value* at = b_.CreateGEP(type, function_->getArg(argument), place);
    return arith_.from_memory(b_.CreateAlignedLoad(type, at, llvm::Align(itemsize(dtype))), dtype);
  }
  void begin(const std::string& name, unsigned pointers, int64_t elements);
  Value* source_row(Value* place);
  Value* source(Value* row);
  Value* reduced(Value* start, Value* low, Value* high);
  unsigned result() const { return s_.base ? 4 : 3; }

  const ScatterShape& s_;
  const GpuDialect& dialect_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  Arith arith_;
  llvm::Type *const i32_, *const i64_;
  llvm::Function* function_ = nullptr;
  Value* number_ = nullptr;                                      // i64, of this thread's element
  Value *list_ = nullptr, *outer_ = nullptr, *inner_ = nullptr;  // i64; list: the first of its keys
};

// A thread without an element leaves.
void SortedScatterEmitter::begin(const std::string& name, unsigned pointers, int64_t elements) {
  function_ = begin_entry(b_, module_, dialect_, name, pointers, 0, kElements);
  Value* thread = b_.CreateZExt(dialect_.thread_in_block(b_), i64_);
  number_ = b_.CreateAdd(times(b_.CreateZExt(dialect_.block_in_grid(b_), i64_), kElements), thread);
  BasicBlock *out = block("out"), *in = block("in");
  b_.CreateCondBr(b_.CreateICmpULT(number_, i64(elements)), in, out);
  b_.SetInsertPoint(out);
  b_.CreateRetVoid();
  b_.SetInsertPoint(in);
}

// Takes the index and the keys, [outer, rows] or [outer, inner, rows]. All that lies outside comes last.
void SortedScatterEmitter::keys(const std::string& name) {
  begin(name, 2, s_.lists() * s_.rows_in);
  Value* row = b_.CreateURem(number_, i64(s_.rows_in));
  Value* list = b_.CreateUDiv(number_, i64(s_.rows_in));
  const int64_t columns = s_.lists() / s_.outer;
  Value* place = b_.CreateAdd(times(b_.CreateUDiv(list, i64(columns)), s_.index_outer),
                              times(b_.CreateURem(list, i64(columns)), s_.index_inner));
  place = b_.CreateAdd(b_.CreateAdd(place, times(row, s_.index_row)), i64(s_.index_offset));
  Value* index = b_.CreateSExt(load(arith_.memory_type(s_.index_dtype), 0, place), i64_);
  Value* key = b_.CreateSelect(b_.CreateICmpULT(index, i64(s_.rows_out)), index, i64(s_.rows_out));
  b_.CreateStore(b_.CreateTrunc(key, i32_), b_.CreateGEP(i32_, function_->getArg(1), number_));
  b_.CreateRetVoid();
}

// Takes the bounds, which become those of rows without a source.
void SortedScatterEmitter::clear(const std::string& name) {
  begin(name, 1, s_.lists() * s_.rows_out);
  b_.CreateStore(i64(0), b_.CreateGEP(i64_, function_->getArg(0), number_));
  b_.CreateRetVoid();
}

// Takes keys, their order and the bounds. A thread has a place of the order, and looks at its neighbours.
// Keys that the sort left in their order are neighbours in memory, too.
void SortedScatterEmitter::mark(const std::string& name) {
  begin(name, 3, s_.lists() * s_.rows_in);
  Value* place = b_.CreateURem(number_, i64(s_.rows_in));
  Value* list = b_.CreateUDiv(number_, i64(s_.rows_in));
  list_ = times(list, s_.rows_in);
  const auto key_at = [&](Value* at) {
    Value* key = s_.keys_come_sorted() ? at : source_row(at);
    return b_.CreateZExt(load(i32_, 0, b_.CreateAdd(list_, key)), i64_);
  };
  Value* key = key_at(place);
  BasicBlock *out = block("dropped"), *in = block("kept");
  b_.CreateCondBr(b_.CreateICmpULT(key, i64(s_.rows_out)), in, out);
  b_.SetInsertPoint(out);
  b_.CreateRetVoid();
  b_.SetInsertPoint(in);
  Value* bounds = times(b_.CreateAdd(times(list, s_.rows_out), key), 2);
  // The neighbour of the first and the last place is that place itself, which differs from nothing.
  const auto mark = [&](Value* is_last, Value* neighbour, int64_t which, Value* bound) {
    BasicBlock *inside = block("mark"), *after = block("marked");
    Value* differs = b_.CreateICmpNE(key_at(neighbour), key);
    b_.CreateCondBr(b_.CreateOr(is_last, differs), inside, after);
    b_.SetInsertPoint(inside);
    Value* at = b_.CreateGEP(i32_, function_->getArg(2), b_.CreateAdd(bounds, i64(which)));
    b_.CreateStore(b_.CreateTrunc(bound, i32_), at);
    b_.CreateBr(after);
    b_.SetInsertPoint(after);
  };
  Value* is_first = b_.CreateICmpEQ(place, i64(0));
  mark(is_first, b_.CreateSelect(is_first, place, b_.CreateSub(place, i64(1))), 0, place);
  Value *next = b_.CreateAdd(place, i64(1)), *is_last = b_.CreateICmpEQ(next, i64(s_.rows_in));
  mark(is_last, b_.CreateSelect(is_last, place, next), 1, next);
  b_.CreateRetVoid();
}

Value* SortedScatterEmitter::source_row(Value* place) {
  return b_.CreateZExt(load(i32_, 1, b_.CreateAdd(list_, place)), i64_);
}

Value* SortedScatterEmitter::source(Value* row) {
  Value* at = times(b_.CreateAdd(times(outer_, s_.rows_in), row), s_.inner);
  return element(s_.dtype, 2, b_.CreateAdd(at, inner_));
}

// Combines the rows from `low` to `high` of the order, one after the other.
Value* SortedScatterEmitter::reduced(Value* start, Value* low, Value* high) {
  const auto loop = [&](Value* from, Value* sum, int step) {
    BasicBlock *before = b_.GetInsertBlock(), *head = block("rows"), *inside = block("row"),
               *after = block("taken");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    PHINode *i = b_.CreatePHI(i64_, 2), *so_far = b_.CreatePHI(sum->getType(), 2);
    i->addIncoming(from, before);
    so_far->addIncoming(sum, before);
    b_.CreateCondBr(b_.CreateICmpULE(b_.CreateAdd(i, i64(step)), high), inside, after);
    b_.SetInsertPoint(inside);
    std::vector<Value*> rows, values;
    for (int r = 0; r < step; ++r) rows.push_back(source_row(b_.CreateAdd(i, i64(r))));
    for (Value* row : rows) values.push_back(source(row));
    Value* next = so_far;
    for (Value* x : values) next = arith_.combine(s_.op, s_.dtype, next, x);
    i->addIncoming(b_.CreateAdd(i, i64(step)), b_.GetInsertBlock());
    so_far->addIncoming(next, b_.GetInsertBlock());
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
    return std::pair<Value*, Value*>(i, so_far);
  };
  const auto [left, sum] = loop(low, start, kAtOnce);
  return loop(left, sum, 1).second;
}

// Takes the bounds, the order, source, base where there is one, and result.
void SortedScatterEmitter::combine(const std::string& name) {
  begin(name, result() + 1, s_.outer * s_.rows_out * s_.inner);
  inner_ = b_.CreateURem(number_, i64(s_.inner));
  Value* line = b_.CreateUDiv(number_, i64(s_.inner));
  Value* row = b_.CreateURem(line, i64(s_.rows_out));
  outer_ = b_.CreateUDiv(line, i64(s_.rows_out));
  const int64_t columns = s_.lists() / s_.outer;
  Value* list = times(outer_, columns);
  if (columns > 1) list = b_.CreateAdd(list, inner_);
  list_ = times(list, s_.rows_in);
  Value* bounds = times(b_.CreateAdd(times(list, s_.rows_out), row), 2);
  Value* low = b_.CreateZExt(load(i32_, 0, bounds), i64_);
  Value* high = b_.CreateZExt(load(i32_, 0, b_.CreateAdd(bounds, i64(1))), i64_);

  BasicBlock *named = block("named"), *none = block("none"), *done = block("done");
  b_.CreateCondBr(b_.CreateICmpULT(low, high), named, none);
  const auto store = [&](Value* x) {
    llvm::Type* type = arith_.memory_type(s_.dtype);
    b_.CreateAlignedStore(arith_.to_memory(x, s_.dtype),
                          b_.CreateGEP(type, function_->getArg(result()), number_),
                          llvm::Align(itemsize(s_.dtype)));
    b_.CreateBr(done);
  };
  const auto start = [&] {
    return s_.base ? element(*s_.base, 3, number_) : arith_.identity(s_.op, s_.dtype, 1);
  };
  b_.SetInsertPoint(named);
  store(s_.writes ? source(source_row(b_.CreateSub(high, i64(1)))) : reduced(start(), low, high));
  b_.SetInsertPoint(none);
  if (s_.in_place)
    b_.CreateBr(done);
  else
    store(start());
  b_.SetInsertPoint(done);
  b_.CreateRetVoid();
}

}  // namespace
}  // namespace tinyshard::codegen::gpu

namespace tinyshard {

SortedScatter compile_sorted_scatter(const ScatterShape& shape, const Target& target) {
  using namespace codegen::gpu;
  const auto of_elements = [&](const char* entry, int64_t elements, auto emit) {
    const int64_t blocks = (elements + kElements - 1) / kElements;
    return built(entry, kElements, blocks, 0, target, [&](llvm::Module& module) {
      SortedScatterEmitter emitter(shape, target, module);
      emit(emitter);
    });
  };
  SortedScatter code;
  code.clear = of_elements("scatter_clear", shape.lists() * shape.rows_out,
                           [](SortedScatterEmitter& e) { e.clear("scatter_clear"); });
  code.mark = of_elements("scatter_mark", shape.lists() * shape.rows_in,
                          [](SortedScatterEmitter& e) { e.mark("scatter_mark"); });
  code.keys = of_elements("scatter_keys", shape.lists() * shape.rows_in,
                          [](SortedScatterEmitter& e) { e.keys("scatter_keys"); });
  code.combine = of_elements("scatter_sorted", shape.outer * shape.rows_out * shape.inner,
                             [](SortedScatterEmitter& e) { e.combine("scatter_sorted"); });
  return code;
}

}  // namespace tinyshard
