// Kernels put together by hand, run by generated code and by the interpreter.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/codegen/codegen.h"
#include "tests/core/codegen/interpreter.h"
#include "tests/core/codegen/machine.h"

namespace tinyshard::test {

// Shorthands for expressions.
inline UOp operator+(const UOp& a, const UOp& b) { return binary(Op::Add, a, b); }
inline UOp operator-(const UOp& a, const UOp& b) { return binary(Op::Sub, a, b); }
inline UOp operator*(const UOp& a, const UOp& b) { return binary(Op::Mul, a, b); }
inline UOp operator+(const UOp& a, int64_t b) { return a + index_const(b); }
inline UOp operator*(const UOp& a, int64_t b) { return a * index_const(b); }
inline UOp operator<(const UOp& a, const UOp& b) { return binary(Op::CmpLt, a, b); }
inline UOp max(const UOp& a, const UOp& b) { return binary(Op::Max, a, b); }
inline UOp real(double value, DType dtype = DType::F32) { return const_float(dtype, value); }
UOp fold(ReduceOp op, const UOp& value, std::vector<UOp> ranges);
inline UOp sum(const UOp& value, std::vector<UOp> ranges) {
  return fold(ReduceOp::Sum, value, std::move(ranges));
}
UOp exp(const UOp& x);

// A block of memory aligned as kernels expect, followed by a page that must not be touched.
class GuardedBuffer {
 public:
  GuardedBuffer(DType dtype, int64_t numel);
  ~GuardedBuffer();
  GuardedBuffer(const GuardedBuffer&) = delete;
  void* data() const { return data_; }
  DType dtype() const { return dtype_; }
  int64_t numel() const { return numel_; }
  size_t bytes() const { return static_cast<size_t>(numel_) * itemsize(dtype_); }
  Scalar get(int64_t i) const { return read_element(data_, dtype_, i); }
  void set(int64_t i, double value);
  // Small values of both signs, the same for the same seed.
  void fill(uint32_t seed, double low = -2, double high = 2);

 private:
  DType dtype_;
  int64_t numel_;
  void* memory_ = nullptr;
  size_t mapped_ = 0;
  void* data_ = nullptr;
};

class Kernel {
 public:
  explicit Kernel(std::string name = "test") { source_.name = std::move(name); }

  UOp loop(int64_t size);
  UOp fold_range(int64_t size) { return range(1000 + next_range_++, size, RangeKind::Fold); }
  // A parameter with a buffer of its own; returns its slot.
  int param(DType dtype, int64_t numel);
  UOp load(int slot, const UOp& index, const UOp& valid = UOp());
  void store(int slot, const UOp& index, const UOp& value, const UOp& valid = UOp());

  GuardedBuffer& buffer(int slot) { return *buffers_[static_cast<size_t>(slot)]; }
  KernelSource& source();
  std::vector<int64_t> coordinates;

  void compile_for(const Target& target) { target_ = target; }  // instead of the machine's own
  std::shared_ptr<const CompiledKernel> compile();
  // Runs generated code in `parts` parts, last part first, where the machine can.
  void run(int parts = 1);
  // Runs the code, then the interpreter on the original data, and compares every written buffer:
  // integers exactly, floats within `ulps` of their type or `absolute`. Also checks that splits
  // and repeated runs give the same bits.
  void check(double ulps = 2, double absolute = 0);

 private:
  // `advised`: results of choice 0, which sets them.
  void check_choice(double ulps, double absolute, std::vector<std::vector<char>>& advised);

  KernelSource source_;
  std::vector<UOp> stores_;
  std::vector<std::unique_ptr<GuardedBuffer>> buffers_;
  int64_t next_range_ = 0;
  std::optional<Target> target_;
};

double ulp(DType dtype, double value);

}  // namespace tinyshard::test
