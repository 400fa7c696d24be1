// Runs a kernel node by node in plain C++, slowly: the reference that generated code is compared
// to.
#pragma once
#include <cstdint>
#include <vector>

#include "core/codegen/kernel.h"

namespace tinyshard::test {

// A scalar: floats are held as double, already rounded to their type; integers and Bool as int64
// bits.
struct Scalar {
  double real = 0;
  int64_t whole = 0;
};

// Values of a buffer, converted from and to the memory of `dtype`.
Scalar read_element(const void* memory, DType dtype, int64_t index);
void write_element(void* memory, DType dtype, int64_t index, Scalar value);
double round_to(DType dtype, long double value);

void interpret(const KernelSource& kernel, const std::vector<void*>& buffers,
               const std::vector<int64_t>& coordinates = {});

}  // namespace tinyshard::test
