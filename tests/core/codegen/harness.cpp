#include "tests/core/codegen/harness.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "core/codegen/interpret.h"

namespace tinyshard::test {

UOp fold(ReduceOp op, const UOp& value, std::vector<UOp> ranges) {
  ranges.insert(ranges.begin(), value);
  return UOp::make(Op::Fold, value.dtype(), ranges, Dims{static_cast<int64_t>(op)});
}

UOp exp(const UOp& x) { return unary(Op::Exp2, x * const_float(x.dtype(), 1.4426950408889634)); }

double ulp(DType dtype, double value) {
  int digits = dtype == DType::F64 ? 53 : dtype == DType::F32 ? 24 : dtype == DType::F16 ? 11 : 8;
  int lowest = dtype == DType::F64   ? -1074
               : dtype == DType::F16 ? -24
               : dtype == DType::F32 ? -149
                                     : -133;
  if (value == 0 || !std::isfinite(value)) return std::ldexp(1.0, lowest);
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - digits, lowest));
}

GuardedBuffer::GuardedBuffer(DType dtype, int64_t numel) : dtype_(dtype), numel_(numel) {
  size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  size_t room = (bytes() + 63) / 64 * 64 + 64;
  mapped_ = (room + page - 1) / page * page + 2 * page;
  memory_ = ::mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory_ == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(memory_);
  ::mprotect(begin, page, PROT_NONE);
  ::mprotect(begin + mapped_ - page, page, PROT_NONE);
  // Ends as near to the forbidden page as the alignment allows.
  data_ = begin + mapped_ - page - (bytes() + 63) / 64 * 64;
}

GuardedBuffer::~GuardedBuffer() { ::munmap(memory_, mapped_); }

void GuardedBuffer::set(int64_t i, double value) {
  write_element(data_, dtype_, i,
                {round_to(dtype_, value), is_float(dtype_) ? 0 : static_cast<int64_t>(value)});
}

void GuardedBuffer::fill(uint32_t seed, double low, double high) {
  std::mt19937 generator(seed);
  std::uniform_real_distribution<double> values(low, high);
  for (int64_t i = 0; i < numel_; ++i) {
    double v = values(generator);
    if (dtype_ == DType::Bool) v = v > (low + high) / 2;
    if (is_unsigned_int(dtype_)) v = std::abs(v);
    set(i, v);
  }
}

UOp Kernel::loop(int64_t size) {
  source_.loops.push_back(range(next_range_++, size, RangeKind::Loop));
  return source_.loops.back();
}

int Kernel::param(DType dtype, int64_t numel) {
  source_.params.push_back({dtype, numel, false, -1});
  buffers_.push_back(std::make_unique<GuardedBuffer>(dtype, numel));
  buffers_.back()->fill(static_cast<uint32_t>(buffers_.size()));
  return static_cast<int>(buffers_.size()) - 1;
}

UOp Kernel::load(int slot, const UOp& index, const UOp& valid) {
  DType dtype = source_.params[static_cast<size_t>(slot)].dtype;
  UOp param = UOp::make(Op::Param, dtype, {}, Dims{slot});
  return valid ? UOp::make(Op::Load, dtype, {param, index, valid})
               : UOp::make(Op::Load, dtype, {param, index});
}

void Kernel::store(int slot, const UOp& index, const UOp& value, const UOp& valid) {
  ParamInfo& info = source_.params[static_cast<size_t>(slot)];
  info.written = true;
  std::vector<UOp> src{UOp::make(Op::Param, info.dtype, {}, Dims{slot}), index, value};
  if (valid) src.push_back(valid);
  stores_.push_back(UOp::make(Op::Store, info.dtype, src));
}

KernelSource& Kernel::source() {
  source_.sink = UOp::make(Op::Sink, DType::Bool, stores_);
  return source_;
}

std::shared_ptr<const CompiledKernel> Kernel::compile() {
  const KernelSource* pointer = &source();
  return compile_kernels(std::span(&pointer, 1), target_.value_or(machine().target()))[0];
}

void Kernel::run(int parts) {
  std::vector<MachineBuffer> buffers;
  for (auto& b : buffers_) buffers.push_back({b->data(), b->bytes()});
  machine().run(*compile(), buffers, coordinates, parts);
}

// Checks the kernel by each of the generator's plans. If all plans give the same bits, its own plan
// and one other are enough; the other one changes from call to call.
void Kernel::check(double ulps, double absolute) {
  std::vector<std::vector<char>> advised;
  static int turn = 0;
  turn = turn % (kKernelChoices - 1) + 1;
  for (int choice = 0; choice < kKernelChoices; ++choice) {
    if (choices_keep_bits(machine().target()) && choice > 0 && choice != turn) continue;
    SCOPED_TRACE("choice " + std::to_string(choice));
    source().choice = choice;
    check_choice(ulps, absolute, advised);
  }
  source().choice = 0;
}

void Kernel::check_choice(double ulps, double absolute, std::vector<std::vector<char>>& advised) {
  std::vector<std::vector<char>> original, result;
  for (auto& b : buffers_)
    original.emplace_back(static_cast<char*>(b->data()),
                          static_cast<char*>(b->data()) + b->bytes());
  auto restore = [&] {
    for (size_t i = 0; i < buffers_.size(); ++i)
      std::memcpy(buffers_[i]->data(), original[i].data(), original[i].size());
  };
  if (!machine().computes()) return run();
  for (int parts : {1, 2, 3, 7, 1000}) {
    if (parts > 2 && !machine().splits()) break;
    restore();
    run(parts);
    for (size_t i = 0; i < buffers_.size(); ++i) {
      auto* begin = static_cast<char*>(buffers_[i]->data());
      std::vector<char> now(begin, begin + buffers_[i]->bytes());
      if (parts == 1) {
        result.push_back(std::move(now));
      } else {
        ASSERT_EQ(result[i], now) << source_.name << ": slot " << i << " differs when run in "
                                  << parts << " parts";
      }
    }
  }
  restore();
  if (advised.empty()) {
    advised = result;
  } else if (choices_keep_bits(machine().target())) {
    ASSERT_EQ(advised, result) << source_.name;
    return;
  }
  std::vector<void*> pointers;
  for (auto& b : buffers_) pointers.push_back(b->data());
  // The library's own interpreter, with its own bounds, finds nothing either.
  std::vector<const void*> before(pointers.begin(), pointers.end()), after;
  for (auto& r : result) after.push_back(r.data());
  const auto difference = first_difference(source_, before, after, coordinates,
                                           {.division_ulps = machine().target().division_ulps});
  if (difference) {
    ADD_FAILURE() << source_.name << ": slot " << difference->param << " element "
                  << difference->element << " is " << difference->actual << ", expected "
                  << difference->expected << " within " << difference->allowed;
  }
  interpret(source_, pointers, coordinates);
  for (size_t i = 0; i < buffers_.size(); ++i) {
    const GuardedBuffer& b = *buffers_[i];
    int wrong = 0;
    for (int64_t k = 0; k < b.numel() && wrong < 5; ++k) {
      Scalar expected = b.get(k), actual = read_element(result[i].data(), b.dtype(), k);
      if (!is_float(b.dtype())) {
        wrong += expected.whole != actual.whole;
        EXPECT_EQ(expected.whole, actual.whole)
            << source_.name << ": slot " << i << " element " << k;
        continue;
      }
      if (std::isnan(expected.real) && std::isnan(actual.real)) continue;
      double allowed = std::max(absolute, ulps * ulp(b.dtype(), expected.real));
      bool good = expected.real == actual.real || std::abs(expected.real - actual.real) <= allowed;
      wrong += !good;
      EXPECT_TRUE(good) << source_.name << ": slot " << i << " element " << k << ": expected "
                        << expected.real << ", got " << actual.real;
    }
  }
  restore();
}

}  // namespace tinyshard::test
