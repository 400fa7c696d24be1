// A block ranks the keys of a tile by one byte of them, the digit. Each warp has a stretch of the tile and
// looks at as many keys at once as it has lanes; ballots tell a lane which others have its digit. Example,
// with two warps of 4 lanes and digits of 0 to 3:
//
//   digits            2 0 2 1 | 1 2 0 2
//   before, in warp   0 0 1 0 | 0 0 0 1     lanes of the same digit to the left
//   counts of digits  1 1 2 0 | 1 1 2 0
//   begin of digits   0 2 4 - | 1 3 6 -     digit by digit, and warp by warp within one
//   place             4 0 5 2 | 3 6 1 7
//
// Keys of equal digits keep their order, so sorting by one digit after the other, the lowest first, sorts
// by the whole key, and equal keys stay as they were.
#include "core/codegen/sort.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include "core/codegen/gpu/dialect.h"
#include "core/codegen/gpu/entry.h"

namespace tinyshard::codegen::gpu {

using llvm::BasicBlock;
using llvm::PHINode;
using llvm::Value;

namespace {

constexpr int kThreads = 256;  // of a block: one for each digit, too
static_assert(kThreads == SortShape::kDigits);

using Words = std::vector<Value*>;  // of a thread, one for each of its keys

// How a tile is laid out over the threads of a block.
struct SortTile {
  int64_t keys;  // a thread's
  int64_t size() const { return keys * kThreads; }
};

class SortEmitter {
 public:
  SortEmitter(const SortShape& shape, SortTile tile, const Target& target, llvm::Module& module)
      : s_(shape),
        tile_(tile),
        target_(target),
        dialect_(*GpuDialect::of(target)),
        warp_(dialect_.warp(target)),
        module_(module),
        b_(module.getContext()),
        i32_(b_.getInt32Ty()),
        i64_(b_.getInt64Ty()),
        key_(b_.getIntNTy(static_cast<unsigned>(8 * itemsize(shape.key)))) {}

  void sort_row(const std::string& name);
  void count(const std::string& name);
  void add(const std::string& name);
  void move(const std::string& name, bool first);

 private:
  llvm::ConstantInt* c32(int64_t x) { return b_.getInt32(static_cast<uint32_t>(x)); }
  llvm::ConstantInt* c64(int64_t x) { return b_.getInt64(static_cast<uint64_t>(x)); }
  Value* wide(Value* x) { return b_.CreateZExt(x, i64_); }
  BasicBlock* block(const char* name) {
    return BasicBlock::Create(b_.getContext(), name, function_);
  }
  Value* at(llvm::Type* type, Value* base, Value* place) { return b_.CreateGEP(type, base, place); }
  Value* load(llvm::Type* type, Value* base, Value* place) {
    return b_.CreateLoad(type, at(type, base, place));
  }
  void store(Value* x, Value* base, Value* place) {
    b_.CreateStore(x, at(x->getType(), base, place));
  }
  void barrier() { dialect_.barrier(b_); }

  void begin(const std::string& name, unsigned pointers, unsigned numbers);
  Value* shared(llvm::Type* type, int64_t count, const char* name);
  void when(Value* condition, llvm::function_ref<void()> body);
  // The value if the condition holds, and `otherwise` if not, which then is not computed.
  Value* value_if(Value* condition, Value* otherwise, llvm::function_ref<Value*()> value);

  void find_row_and_tile();
  Value* place_of(int64_t i);  // of this thread's key i, in its tile
  Words keys_of_tile();
  Words digits_of(const Words& keys, Value* shift);
  Value* sum_of_earlier(Value* mine);
  Words ranks(const Words& digits);
  Words count_digits(const Words& digits);
  void put(const Words& keys, const Words& places, const Words& ranks);

  const SortShape& s_;
  const SortTile tile_;
  const Target& target_;
  const GpuDialect& dialect_;
  const int warp_;
  llvm::Module& module_;
  llvm::IRBuilder<> b_;
  llvm::Type *const i32_, *const i64_, *const key_;
  llvm::Function* function_ = nullptr;
  Value *thread_ = nullptr, *lane_ = nullptr, *of_warp_ = nullptr;  // i32
  Value *row_ = nullptr, *number_ = nullptr;                        // i64; number: of the tile
  Value* valid_ = nullptr;                                          // i32: keys of the tile
  Value* counts_ = nullptr;                    // shared, i32 [warps, digits]: then where they begin
  Value* sums_ = nullptr;                      // shared, i32 [2, threads]
  Value *keys_ = nullptr, *places_ = nullptr;  // shared, [size of the tile]
};

void SortEmitter::begin(const std::string& name, unsigned pointers, unsigned numbers) {
  function_ = begin_entry(b_, module_, dialect_, name, pointers, numbers, kThreads);
  thread_ = dialect_.thread_in_block(b_);
  lane_ = dialect_.lane(b_);
  of_warp_ = b_.CreateUDiv(thread_, c32(warp_));
  counts_ = shared(i32_, kThreads / warp_ * SortShape::kDigits, "counts");
  sums_ = shared(i32_, 2 * kThreads, "sums");
}

Value* SortEmitter::shared(llvm::Type* type, int64_t count, const char* name) {
  auto* array = llvm::ArrayType::get(type, uint64_t(count));
  return new llvm::GlobalVariable(module_, array, false, llvm::GlobalValue::InternalLinkage,
                                  llvm::UndefValue::get(array), name, nullptr,
                                  llvm::GlobalValue::NotThreadLocal, dialect_.words().shared_space);
}

void SortEmitter::when(Value* condition, llvm::function_ref<void()> body) {
  BasicBlock *inside = block("when"), *after = block("then");
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  body();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
}

Value* SortEmitter::value_if(Value* condition, Value* otherwise,
                             llvm::function_ref<Value*()> value) {
  BasicBlock *before = b_.GetInsertBlock(), *inside = block("if"), *after = block("then");
  b_.CreateCondBr(condition, inside, after);
  b_.SetInsertPoint(inside);
  Value* found = value();
  BasicBlock* last = b_.GetInsertBlock();
  b_.CreateBr(after);
  b_.SetInsertPoint(after);
  PHINode* either = b_.CreatePHI(otherwise->getType(), 2);
  either->addIncoming(otherwise, before);
  either->addIncoming(found, last);
  return either;
}

void SortEmitter::find_row_and_tile() {
  const int64_t tiles =
      s_.tiles();  // 1 for rows that fit one, which then is no larger than they are
  Value* id = wide(dialect_.block_in_grid(b_));
  row_ = b_.CreateUDiv(id, c64(tiles));
  number_ = b_.CreateURem(id, c64(tiles));
  Value* left = b_.CreateSub(c64(s_.n), b_.CreateMul(number_, c64(tile_.size())));
  valid_ = b_.CreateTrunc(b_.CreateBinaryIntrinsic(llvm::Intrinsic::umin, left, c64(tile_.size())),
                          i32_);
}

Value* SortEmitter::place_of(int64_t i) {
  Value* stretch = b_.CreateMul(of_warp_, c32(tile_.keys * warp_));
  return b_.CreateAdd(b_.CreateAdd(stretch, lane_), c32(i * warp_));
}

// Keys behind the last one are the largest: they come last, as they are behind all equal ones.
Words SortEmitter::keys_of_tile() {
  Value* first =
      b_.CreateAdd(b_.CreateMul(row_, c64(s_.n)), b_.CreateMul(number_, c64(tile_.size())));
  Words keys;
  for (int64_t i = 0; i < tile_.keys; ++i) {
    Value* place = place_of(i);
    keys.push_back(value_if(
        b_.CreateICmpULT(place, valid_), llvm::Constant::getAllOnesValue(key_),
        [&] { return load(key_, function_->getArg(0), b_.CreateAdd(first, wide(place))); }));
  }
  return keys;
}

Words SortEmitter::digits_of(const Words& keys, Value* shift) {
  Value* by = b_.CreateZExtOrTrunc(shift, key_);
  Words digits;
  for (Value* key : keys) {
    Value* digit = b_.CreateZExtOrTrunc(b_.CreateLShr(key, by), i32_);
    digits.push_back(b_.CreateAnd(digit, c32(SortShape::kDigits - 1)));
  }
  return digits;
}

// The sum of what the threads before this one have. Sums double their reach from step to step.
Value* SortEmitter::sum_of_earlier(Value* mine) {
  Value* sum = mine;
  int half = 0;
  auto place = [&](Value* thread) { return b_.CreateAdd(thread, c32(half * kThreads)); };
  for (int reach = 1; reach < kThreads; reach *= 2, half = 1 - half) {
    store(sum, sums_, place(thread_));
    barrier();
    Value* more = value_if(b_.CreateICmpUGE(thread_, c32(reach)), c32(0), [&] {
      return load(i32_, sums_, place(b_.CreateSub(thread_, c32(reach))));
    });
    sum = b_.CreateAdd(sum, more);
  }
  barrier();
  return b_.CreateSub(sum, mine);
}

// Leaves in counts_ how many keys of each warp have each digit. Returns how many of the same digit come
// before a key in its warp's stretch.
Words SortEmitter::count_digits(const Words& digits) {
  for (int warp = 0; warp < kThreads / warp_; ++warp)
    store(c32(0), counts_, b_.CreateAdd(thread_, c32(warp * SortShape::kDigits)));
  barrier();
  Value* mine = b_.CreateMul(of_warp_, c32(SortShape::kDigits));
  Value* left_of_me = b_.CreateSub(b_.CreateShl(c64(1), wide(lane_)), c64(1));
  const uint64_t all = warp_ == 64 ? ~uint64_t{0} : (uint64_t{1} << warp_) - 1;
  Words before;
  for (Value* digit : digits) {
    Value* same = b_.getInt64(all);
    for (int bit = 0; bit < 8; ++bit) {
      Value* set = b_.CreateTrunc(b_.CreateLShr(digit, c32(bit)), b_.getInt1Ty());
      Value* mask = dialect_.ballot(b_, target_, set);
      same = b_.CreateAnd(same, b_.CreateSelect(set, mask, b_.CreateNot(mask)));
    }
    auto count = [&](Value* mask) {
      return b_.CreateTrunc(b_.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, mask), i32_);
    };
    Value* place = b_.CreateAdd(mine, digit);
    Value* earlier = load(i32_, counts_, place);
    Value* to_the_left = count(b_.CreateAnd(same, left_of_me));
    before.push_back(b_.CreateAdd(earlier, to_the_left));
    dialect_.warp_barrier(b_);
    when(b_.CreateICmpEQ(to_the_left, c32(0)),
         [&] { store(b_.CreateAdd(earlier, count(same)), counts_, place); });
    dialect_.warp_barrier(b_);
  }
  barrier();
  return before;
}

// Where each key goes within the tile. Leaves where the digits of each warp begin in counts_.
Words SortEmitter::ranks(const Words& digits) {
  const Words before = count_digits(digits);
  Value* sum = c32(0);
  Words begins;  // of this thread's digit, in each warp
  for (int warp = 0; warp < kThreads / warp_; ++warp) {
    begins.push_back(sum);
    sum = b_.CreateAdd(sum,
                       load(i32_, counts_, b_.CreateAdd(thread_, c32(warp * SortShape::kDigits))));
  }
  Value* first = sum_of_earlier(sum);
  for (int warp = 0; warp < kThreads / warp_; ++warp)
    store(b_.CreateAdd(first, begins[size_t(warp)]), counts_,
          b_.CreateAdd(thread_, c32(warp * SortShape::kDigits)));
  barrier();
  Value* mine = b_.CreateMul(of_warp_, c32(SortShape::kDigits));
  Words found;
  for (size_t i = 0; i < digits.size(); ++i)
    found.push_back(b_.CreateAdd(before[i], load(i32_, counts_, b_.CreateAdd(mine, digits[i]))));
  return found;
}

// Puts keys and places into shared memory in their order.
void SortEmitter::put(const Words& keys, const Words& places, const Words& ranks) {
  for (size_t i = 0; i < keys.size(); ++i) {
    store(keys[i], keys_, ranks[i]);
    store(places[i], places_, ranks[i]);
  }
  barrier();
}

void SortEmitter::sort_row(const std::string& name) {
  begin(name, 2, 0);
  keys_ = shared(key_, tile_.size(), "keys");
  places_ = shared(i32_, tile_.size(), "places");
  find_row_and_tile();
  Words keys = keys_of_tile(), places;
  for (int64_t i = 0; i < tile_.keys; ++i) places.push_back(place_of(i));
  for (int64_t byte = 0; byte < s_.bytes; ++byte) {
    const Words found = ranks(digits_of(keys, c32(8 * byte)));
    put(keys, places, found);
    if (byte + 1 == s_.bytes) break;
    for (int64_t i = 0; i < tile_.keys; ++i) {
      keys[size_t(i)] = load(key_, keys_, place_of(i));
      places[size_t(i)] = load(i32_, places_, place_of(i));
    }
    barrier();
  }
  Value* first = b_.CreateMul(row_, c64(s_.k));
  for (int64_t i = 0; i < tile_.keys; ++i) {
    Value* place = b_.CreateAdd(thread_, c32(i * kThreads));
    when(b_.CreateICmpULT(place, c32(s_.k)), [&] {
      store(load(i32_, places_, place), function_->getArg(1), b_.CreateAdd(first, wide(place)));
    });
  }
  b_.CreateRetVoid();
}

void SortEmitter::count(const std::string& name) {
  begin(name, 2, 2);
  find_row_and_tile();
  count_digits(digits_of(keys_of_tile(), function_->getArg(2)));
  Value* sum = c32(0);
  for (int warp = 0; warp < kThreads / warp_; ++warp)
    sum = b_.CreateAdd(sum,
                       load(i32_, counts_, b_.CreateAdd(thread_, c32(warp * SortShape::kDigits))));
  // Keys behind the last one have the largest digit.
  Value* none = b_.CreateSub(c32(tile_.size()), valid_);
  sum = b_.CreateSub(
      sum, b_.CreateSelect(b_.CreateICmpEQ(thread_, c32(SortShape::kDigits - 1)), none, c32(0)));
  const int64_t tiles = s_.tiles();
  Value* digit = b_.CreateAdd(b_.CreateMul(row_, c64(SortShape::kDigits)), wide(thread_));
  store(sum, function_->getArg(1), b_.CreateAdd(b_.CreateMul(digit, c64(tiles)), number_));
  b_.CreateRetVoid();
}

// A block has the tiles of a row and a digit, as many at once as it has threads.
void SortEmitter::add(const std::string& name) {
  begin(name, 2, 2);
  const int64_t tiles = s_.tiles();
  Value* id = wide(dialect_.block_in_grid(b_));
  Value* mine = b_.CreateMul(id, c64(tiles));
  BasicBlock *before = b_.GetInsertBlock(), *head = block("head"), *inside = block("inside"),
             *after = block("after");
  b_.CreateBr(head);
  b_.SetInsertPoint(head);
  PHINode *i = b_.CreatePHI(i64_, 2), *sum = b_.CreatePHI(i32_, 2);
  i->addIncoming(c64(0), before);
  sum->addIncoming(c32(0), before);
  b_.CreateCondBr(b_.CreateICmpULT(i, c64(tiles)), inside, after);
  b_.SetInsertPoint(inside);
  Value* tile = b_.CreateAdd(i, wide(thread_));
  Value* exists = b_.CreateICmpULT(tile, c64(tiles));
  Value* place = b_.CreateAdd(mine, tile);
  Value* keys = value_if(exists, c32(0), [&] { return load(i32_, function_->getArg(0), place); });
  Value* earlier = sum_of_earlier(keys);
  when(exists, [&] { store(b_.CreateAdd(sum, earlier), function_->getArg(0), place); });
  // The last thread knows the sum of all.
  when(b_.CreateICmpEQ(thread_, c32(kThreads - 1)),
       [&] { store(b_.CreateAdd(earlier, keys), counts_, c32(0)); });
  barrier();
  Value* more = load(i32_, counts_, c32(0));
  barrier();
  i->addIncoming(b_.CreateAdd(i, c64(kThreads)), b_.GetInsertBlock());
  sum->addIncoming(b_.CreateAdd(sum, more), b_.GetInsertBlock());
  b_.CreateBr(head);
  b_.SetInsertPoint(after);
  when(b_.CreateICmpEQ(thread_, c32(0)), [&] { store(sum, function_->getArg(1), id); });
  b_.CreateRetVoid();
}

// A tile is ordered in shared memory first, so that keys of one digit are written side by side.
void SortEmitter::move(const std::string& name, bool first) {
  begin(name, 6, 2);
  keys_ = shared(key_, tile_.size(), "keys");
  places_ = shared(i32_, tile_.size(), "places");
  Value* targets = shared(i64_, SortShape::kDigits, "targets");
  Value *counts = function_->getArg(1), *totals = function_->getArg(2);
  Value *shift = function_->getArg(6), *kept = function_->getArg(7);
  find_row_and_tile();
  const Words keys = keys_of_tile();
  Words places;
  Value* start = b_.CreateMul(number_, c64(tile_.size()));
  Value* of_row = b_.CreateMul(row_, c64(s_.n));
  for (int64_t i = 0; i < tile_.keys; ++i) {
    Value* place = place_of(i);
    Value* in_row = b_.CreateAdd(start, wide(place));
    places.push_back(first
                         ? b_.CreateTrunc(in_row, i32_)
                         : value_if(b_.CreateICmpULT(place, valid_), c32(0), [&] {
                             return load(i32_, function_->getArg(5), b_.CreateAdd(of_row, in_row));
                           }));
  }
  const Words found = ranks(digits_of(keys, shift));
  put(keys, places, found);
  // Where the keys of this thread's digit go, less where they begin in the tile.
  const int64_t tiles = s_.tiles();
  Value* digit = b_.CreateAdd(b_.CreateMul(row_, c64(SortShape::kDigits)), wide(thread_));
  Value* smaller = wide(sum_of_earlier(load(i32_, totals, digit)));
  Value* earlier = wide(load(i32_, counts, b_.CreateAdd(b_.CreateMul(digit, c64(tiles)), number_)));
  Value* begins = wide(load(i32_, counts_, thread_));  // of the first warp
  store(b_.CreateSub(b_.CreateAdd(smaller, earlier), begins), targets, thread_);
  barrier();
  Value* of_kept = b_.CreateMul(row_, kept);
  for (int64_t i = 0; i < tile_.keys; ++i) {
    Value* place = b_.CreateAdd(thread_, c32(i * kThreads));
    when(b_.CreateICmpULT(place, valid_), [&] {
      Value* key = load(key_, keys_, place);
      Value* target = b_.CreateAdd(load(i64_, targets, digits_of({key}, shift)[0]), wide(place));
      store(key, function_->getArg(3), b_.CreateAdd(of_row, target));
      when(b_.CreateICmpULT(target, kept), [&] {
        store(load(i32_, places_, place), function_->getArg(4), b_.CreateAdd(of_kept, target));
      });
    });
  }
  b_.CreateRetVoid();
}

}  // namespace
}  // namespace tinyshard::codegen::gpu

namespace tinyshard {

ObjectCode compile_row_sort(const SortShape& shape, const Target& target) {
  using namespace codegen::gpu;
  const SortTile tile{(shape.n + kThreads - 1) / kThreads};
  return built("sort_row", kThreads, shape.rows, 0, target, [&](llvm::Module& module) {
    SortEmitter(shape, tile, target, module).sort_row("sort_row");
  });
}

SortSteps compile_sort_steps(const SortShape& shape, const Target& target) {
  using namespace codegen::gpu;
  const SortTile tile{shape.tile() / kThreads};
  const int64_t tiles = shape.tiles();
  const auto emitter = [&](llvm::Module& module) {
    return SortEmitter(shape, tile, target, module);
  };
  SortSteps steps;
  steps.count = built("sort_count", kThreads, shape.rows * tiles, 2, target,
                      [&](llvm::Module& m) { emitter(m).count("sort_count"); });
  steps.add = built("sort_add", kThreads, shape.rows * SortShape::kDigits, 2, target,
                    [&](llvm::Module& m) { emitter(m).add("sort_add"); });
  steps.move_first = built("sort_move_first", kThreads, shape.rows * tiles, 2, target,
                           [&](llvm::Module& m) { emitter(m).move("sort_move_first", true); });
  steps.move = built("sort_move", kThreads, shape.rows * tiles, 2, target,
                     [&](llvm::Module& m) { emitter(m).move("sort_move", false); });
  return steps;
}

}  // namespace tinyshard
