// A block has 256 columns of the source (all of outer x inner, flattened), one a thread, and a group of
// rows of the result, which it keeps in shared memory while it walks the source rows. Where a warp's
// columns share their indices, each of its threads looks at another one of them, and all visit those
// that fall into the group. Example, with warps of 4 threads and rows 0 to 3 of the result:
//
//   index 5 2 9 2     thread 0 sees 5, thread 1 sees 2, ..: two bits, 1 and 3, are set
//                     all add row 1 of the source, then row 3, to their column of row 2
#include "core/codegen/scatter.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/arith.h"
#include "core/codegen/gpu/dialect.h"
#include "core/codegen/gpu/entry.h"

namespace tinyshard::codegen::gpu {

using llvm::BasicBlock;
using llvm::PHINode;
using llvm::Value;

namespace {

constexpr int kColumns = 256;  // of a block: threads
constexpr int64_t kSumBytes = 32 << 10;
constexpr int64_t kMostRows = 32;  // a bit each of what a thread has touched
constexpr int64_t kAtOnce = 32;    // indices that a thread reads before it waits for any

// How columns and rows of the result are divided over blocks.
struct Groups {
  int columns = kColumns;
  int64_t rows = 0;

  int64_t tiles(const ScatterShape& s) const { return (s.outer * s.inner + columns - 1) / columns; }
  int64_t blocks(const ScatterShape& s) const {
    return tiles(s) * ((s.rows_out + rows - 1) / rows);
  }
};
Groups groups_of(const ScatterShape& s, const Target& target) {
  const int64_t bytes = itemsize(s.dtype) == 8 ? 8 : 4;
  Groups usual;
  usual.rows = std::min(kMostRows, kSumBytes / (kColumns * bytes));
  if (s.in_place || !scatters_apart(s, target)) return usual;
  constexpr int kFewColumns = 64;
  constexpr int64_t kBlocks = 4;  // that a multiprocessor has room for
  const int64_t room = std::max<int64_t>(kSumBytes, target.shared_bytes);
  const Groups tall{kFewColumns, room / (kFewColumns * bytes) - 1};  // and a row behind them
  // They pay where they are fewer, and still enough for all multiprocessors.
  const bool pays = s.rows_out > usual.rows && tall.blocks(s) >= kBlocks * target.multiprocessors;
  return pays ? tall : usual;
}

class ScatterEmitter {
 public:
  ScatterEmitter(const ScatterShape& shape, const Target& target, llvm::Module& module)
      : s_(shape),
        groups_(groups_of(shape, target)),
        target_(target),
        dialect_(*GpuDialect::of(target)),
        module_(module),
        b_(module.getContext()),
        arith_(b_, module, target) {}

  void emit(const std::string& name);

 private:
  llvm::ConstantInt* i64(int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); }
  BasicBlock* block(const char* name) {
    return BasicBlock::Create(b_.getContext(), name, function_);
  }
  void begin(const std::string& name);
  void find_place();
  // body(i) for i from 0 in steps while it is below `end`; `touched_` lives through it.
  void loop(Value* end, int64_t step, llvm::function_ref<void(Value*)> body);
  void when(Value* condition, llvm::function_ref<void()> body);
  void start();
  void walk();
  void walk_apart();
  void walk_together();
  void accumulate(Value* source_row, Value* row);
  void write();

  Value* index_of(Value* source_row);  // minus the group's first row
  Value* element(unsigned argument, DType dtype, Value* row, Value* first);
  Value* load(Value* address, DType dtype) {
    auto align = llvm::Align(itemsize(dtype));
    return arith_.from_memory(b_.CreateAlignedLoad(arith_.memory_type(dtype), address, align),
                              dtype);
  }
  Value* sum_of(Value* row) {  // the place of this thread's sum in shared memory
    Value* at = b_.CreateAdd(b_.CreateMul(row, i64(groups_.columns)), thread_);
    return b_.CreateGEP(sum_type_, sums_, at);
  }
  Value* bit_of(Value* row) {
    return b_.CreateShl(b_.getInt32(1), b_.CreateTrunc(row, b_.getInt32Ty()));
  }
  unsigned result() const { return s_.base ? 3 : 2; }

  const ScatterShape& s_;
  const Groups groups_;
  const Target& target_;
  const GpuDialect& dialect_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  Arith arith_;
  llvm::Function* function_ = nullptr;
  llvm::Type* sum_type_ = nullptr;
  Value* sums_ = nullptr;
  Value *thread_ = nullptr, *first_row_ = nullptr, *rows_ = nullptr;  // i64; rows: of the group
  Value *outer_ = nullptr, *inner_ = nullptr;                         // of this thread's column
  Value* touched_ = nullptr;                                          // i32: rows that were named
};

void ScatterEmitter::emit(const std::string& name) {
  begin(name);
  find_place();
  if (!s_.in_place) start();
  if (!scatters_apart(s_, target_)) {
    walk_together();
  } else if (s_.in_place) {
    walk();
  } else {
    walk_apart();
  }
  write();
  b_.CreateRetVoid();
}

void ScatterEmitter::begin(const std::string& name) {
  function_ = begin_entry(b_, module_, dialect_, name, result() + 1, 0, groups_.columns);
  sum_type_ = arith_.type(s_.dtype);
  const int64_t spare = scatters_apart(s_, target_) && !s_.in_place ? 1 : 0;
  auto* type = llvm::ArrayType::get(sum_type_, uint64_t(groups_.columns * (groups_.rows + spare)));
  sums_ = new llvm::GlobalVariable(
      module_, type, false, llvm::GlobalValue::InternalLinkage, llvm::UndefValue::get(type), "sums",
      nullptr, llvm::GlobalValue::NotThreadLocal, dialect_.words().shared_space);
  touched_ = b_.getInt32(0);
}

void ScatterEmitter::find_place() {
  Value* thread = dialect_.thread_in_block(b_);
  Value* block_id = dialect_.block_in_grid(b_);
  auto* tiles = b_.getInt32(static_cast<uint32_t>(groups_.tiles(s_)));
  thread_ = b_.CreateZExt(thread, b_.getInt64Ty());
  Value* group = b_.CreateZExt(b_.CreateUDiv(block_id, tiles), b_.getInt64Ty());
  Value* tile = b_.CreateZExt(b_.CreateURem(block_id, tiles), b_.getInt64Ty());
  first_row_ = b_.CreateMul(group, i64(groups_.rows));
  rows_ = b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, i64(groups_.rows),
                                   b_.CreateSub(i64(s_.rows_out), first_row_));
  Value* column = b_.CreateAdd(b_.CreateMul(tile, i64(groups_.columns)), thread_);
  // Where a warp looks together its threads are in or out together, too.
  BasicBlock *out = block("out"), *in = block("in");
  b_.CreateCondBr(b_.CreateICmpULT(column, i64(s_.outer * s_.inner)), in, out);
  b_.SetInsertPoint(out);
  b_.CreateRetVoid();
  b_.SetInsertPoint(in);
  outer_ = b_.CreateUDiv(column, i64(s_.inner));
  inner_ = b_.CreateURem(column, i64(s_.inner));
}

void ScatterEmitter::loop(Value* end, int64_t step, llvm::function_ref<void(Value*)> body) {
  BasicBlock *before = b_.GetInsertBlock(), *head = block("head"), *inside = block("inside"),
             *after = block("after");
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  PHINode* i = b_.CreatePHI(b_.getInt64Ty(), 2);
  PHINode* touched = b_.CreatePHI(b_.getInt32Ty(), 2);
  i->addIncoming(i64(0), before);
  touched->addIncoming(touched_, before);
  touched_ = touched;
  b_.CreateCondBr(b_.CreateICmpULT(i, end), inside, after);
  b_.SetInsertPoint(inside);
  body(i);
  i->addIncoming(b_.CreateAdd(i, i64(step)), b_.GetInsertBlock());
  touched->addIncoming(touched_, b_.GetInsertBlock());
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
  touched_ = touched;
}

void ScatterEmitter::when(Value* condition, llvm::function_ref<void()> body) {
  BasicBlock *before = b_.GetInsertBlock(), *inside = block("when"), *after = block("then");
  Value* touched = touched_;
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  body();
  BasicBlock* last = b_.GetInsertBlock();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
  if (touched == touched_) return;
  PHINode* either = b_.CreatePHI(b_.getInt32Ty(), 2);
  either->addIncoming(touched, before);
  either->addIncoming(touched_, last);
  touched_ = either;
}

// The address of this column's element of a row of the result, or of the base; `first`: row 0.
Value* ScatterEmitter::element(unsigned argument, DType dtype, Value* row, Value* first) {
  Value* at = b_.CreateAdd(b_.CreateMul(b_.CreateAdd(first, row), i64(s_.inner)), inner_);
  return b_.CreateGEP(arith_.memory_type(dtype), function_->getArg(argument), at);
}

// Writes what the sums of the block's rows begin with: zeros, or rows of the base.
void ScatterEmitter::start() {
  Value* first = b_.CreateAdd(b_.CreateMul(outer_, i64(s_.rows_out)), first_row_);
  loop(rows_, 1, [&](Value* row) {
    Value* begin = s_.base ? load(element(2, *s_.base, row, first), *s_.base)
                           : llvm::Constant::getNullValue(sum_type_);
    b_.CreateStore(begin, sum_of(row));
  });
}

Value* ScatterEmitter::index_of(Value* source_row) {
  llvm::Type* type = arith_.memory_type(s_.index_dtype);
  Value* at = b_.CreateAdd(b_.CreateMul(outer_, i64(s_.index_outer)),
                           b_.CreateMul(source_row, i64(s_.index_row)));
  at = b_.CreateAdd(at, b_.CreateMul(inner_, i64(s_.index_inner)));
  at = b_.CreateAdd(at, i64(s_.index_offset));
  Value* index = b_.CreateLoad(type, b_.CreateGEP(type, function_->getArg(0), at));
  return b_.CreateSub(b_.CreateSExt(index, b_.getInt64Ty()), first_row_);
}

void ScatterEmitter::walk() {
  loop(i64(s_.rows_in), 1, [&](Value* source_row) {
    Value* row = index_of(source_row);
    when(b_.CreateICmpULT(row, rows_), [&] { accumulate(source_row, row); });
  });
}

// An element is read before it is known whether its row is of the group, which is that of row 0 where it
// is not, and then added to a row behind the group: loads behind a branch would wait for it.
void ScatterEmitter::walk_apart() {
  const bool narrow =
      s_.index_dtype == DType::I32 && s_.rows_out <= std::numeric_limits<int32_t>::max();
  llvm::Type* type = narrow ? b_.getInt32Ty() : b_.getInt64Ty();
  Value* first = b_.CreateTrunc(first_row_, type);
  Value* rows = b_.CreateTrunc(rows_, type);
  auto* none = llvm::ConstantInt::get(type, static_cast<uint64_t>(groups_.rows));
  Value* index = b_.CreateAdd(b_.CreateMul(outer_, i64(s_.index_outer)),
                              b_.CreateMul(inner_, i64(s_.index_inner)));
  llvm::Type* index_type = arith_.memory_type(s_.index_dtype);
  index = b_.CreateGEP(index_type, function_->getArg(0), b_.CreateAdd(index, i64(s_.index_offset)));
  Value* source = element(1, s_.dtype, i64(0), b_.CreateMul(outer_, i64(s_.rows_in)));
  b_.CreateStore(llvm::Constant::getNullValue(sum_type_), sum_of(i64(groups_.rows)));
  const auto visit = [&](Value* from, int64_t count) {
    std::vector<Value*> places, values;
    const auto times = [&](int64_t r, int64_t step) {
      return b_.CreateMul(b_.CreateAdd(from, i64(r)), i64(step));
    };
    for (int64_t r = 0; r < count; ++r) {
      Value* at = b_.CreateGEP(index_type, index, times(r, s_.index_row));
      Value* place = b_.CreateSub(b_.CreateLoad(index_type, at), first);
      places.push_back(b_.CreateSelect(b_.CreateICmpULT(place, rows), place, none));
    }
    for (int64_t r = 0; r < count; ++r) {
      Value* is_named = b_.CreateICmpNE(places[static_cast<size_t>(r)], none);
      Value* at = b_.CreateSelect(is_named, times(r, s_.inner), i64(0));
      values.push_back(load(b_.CreateGEP(arith_.memory_type(s_.dtype), source, at), s_.dtype));
    }
    for (size_t r = 0; r < places.size(); ++r) {
      Value* at = sum_of(b_.CreateZExt(places[r], b_.getInt64Ty()));
      Value* sum = b_.CreateLoad(sum_type_, at);
      b_.CreateStore(
          s_.writes ? values[r] : arith_.combine(ReduceOp::Sum, s_.dtype, sum, values[r]), at);
    }
  };
  const int64_t together = s_.rows_in / kAtOnce * kAtOnce;
  loop(i64(together), kAtOnce, [&](Value* from) { visit(from, kAtOnce); });
  visit(i64(together), s_.rows_in - together);
}

void ScatterEmitter::walk_together() {
  const int warp = dialect_.warp(target_);
  Value* lane = b_.CreateZExt(dialect_.lane(b_), b_.getInt64Ty());
  loop(i64(s_.rows_in), warp, [&](Value* first) {
    Value* looked = b_.CreateAdd(first, lane);
    Value* exists = b_.CreateICmpULT(looked, i64(s_.rows_in));
    // Threads behind the last row look at it once more.
    Value* row =
        index_of(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, looked, i64(s_.rows_in - 1)));
    Value* named = b_.CreateAnd(exists, b_.CreateICmpULT(row, rows_));
    Value* mask = dialect_.ballot(b_, target_, named);
    Value* place = b_.CreateTrunc(row, b_.getInt32Ty());

    BasicBlock *before = b_.GetInsertBlock(), *head = block("visits"), *inside = block("visit"),
               *after = block("visited");
    b_.CreateBr(head);
    b_.SetInsertPoint(head);
    PHINode *left = b_.CreatePHI(b_.getInt64Ty(), 2), *touched = b_.CreatePHI(b_.getInt32Ty(), 2);
    left->addIncoming(mask, before);
    touched->addIncoming(touched_, before);
    touched_ = touched;
    b_.CreateCondBr(b_.CreateIsNotNull(left), inside, after);
    b_.SetInsertPoint(inside);
    Value* which = b_.CreateBinaryIntrinsic(llvm::Intrinsic::cttz, left, b_.getTrue());
    Value* named_row = dialect_.of_lane(b_, place, b_.CreateTrunc(which, b_.getInt32Ty()));
    accumulate(b_.CreateAdd(first, which), b_.CreateZExt(named_row, b_.getInt64Ty()));
    left->addIncoming(b_.CreateAnd(left, b_.CreateSub(left, i64(1))), b_.GetInsertBlock());
    touched->addIncoming(touched_, b_.GetInsertBlock());
    b_.CreateBr(head);
    b_.SetInsertPoint(after);
    touched_ = touched;
  });
}

// Adds the element of a source row to the sum of `row`, or puts it there. In place a sum begins when
// its row is first named.
void ScatterEmitter::accumulate(Value* source_row, Value* row) {
  if (s_.in_place) {
    Value* bit = bit_of(row);
    if (!s_.writes) {
      Value* first = b_.CreateAdd(b_.CreateMul(outer_, i64(s_.rows_out)), first_row_);
      when(b_.CreateIsNull(b_.CreateAnd(touched_, bit)), [&] {
        b_.CreateStore(load(element(result(), s_.dtype, row, first), s_.dtype), sum_of(row));
      });
    }
    touched_ = b_.CreateOr(touched_, bit);
  }
  Value* first = b_.CreateMul(outer_, i64(s_.rows_in));
  Value* x = load(element(1, s_.dtype, source_row, first), s_.dtype);
  Value* at = sum_of(row);
  if (!s_.writes) x = arith_.combine(ReduceOp::Sum, s_.dtype, b_.CreateLoad(sum_type_, at), x);
  b_.CreateStore(x, at);
}

void ScatterEmitter::write() {
  Value* first = b_.CreateAdd(b_.CreateMul(outer_, i64(s_.rows_out)), first_row_);
  loop(rows_, 1, [&](Value* row) {
    auto put = [&] {
      Value* sum = b_.CreateLoad(sum_type_, sum_of(row));
      b_.CreateAlignedStore(arith_.to_memory(sum, s_.dtype),
                            element(result(), s_.dtype, row, first),
                            llvm::Align(itemsize(s_.dtype)));
    };
    if (!s_.in_place) return put();
    when(b_.CreateIsNotNull(b_.CreateAnd(touched_, bit_of(row))), put);
  });
}

}  // namespace
}  // namespace tinyshard::codegen::gpu

namespace tinyshard {

bool scatters_apart(const ScatterShape& s, const Target& target) {
  return s.index_inner != 0 || s.inner % codegen::GpuDialect::of(target)->warp(target) != 0;
}

ObjectCode compile_scatter(const ScatterShape& shape, const Target& target) {
  using namespace codegen::gpu;
  const Groups groups = groups_of(shape, target);
  return built(
      "scatter", groups.columns, groups.blocks(shape), 0, target,
      [&](llvm::Module& module) { ScatterEmitter(shape, target, module).emit("scatter"); });
}

}  // namespace tinyshard
