// Dot on cuBLASLt: what it takes, and the program of one call.
#pragma once
#include <memory>
#include <string>

#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

// f32, f64, f16 and bf16, results of the operands' type or, from 16 bits, f32; sums in f32 or
// wider. Either matrix of an operand may be transposed or lie apart; rows or columns must be
// contiguous. Batch dims that no single stride describes are looped over, up to a number of times.
// Epilogues: of products without batch, not in f64; GELU and the value before it in one call.
bool matmul_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
// Answers Device::worth_copying. Hopper's tensor cores read operands of 32 bits along the sum
// only. cuBLASLt copes with one operand that lies otherwise, but for two it falls back to kernels
// of the generation before.
int64_t matmul_worth_copying(const Target& target, const LibraryCall& call, int operand);
std::unique_ptr<Program> make_matmul(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
