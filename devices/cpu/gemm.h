// Our own matrix product: every float dtype, any strides, bias and activation on the way out.
// Chosen over oneDNN's for f32 because it was faster on the shapes we train, does not allocate, and
// because an element's bits depend on k alone: not on threads, on how rows were sharded, or on
// layouts. Products of one or two rows mostly do not come here (core/exec/make_executable.cpp).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "devices/cpu/library.h"

namespace tinyshard::gemm {

// dtype F32, F64, F16 or BF16 into the same (or F32 for the 16-bit types), strides of any kind
// (0 broadcasts an input). `why` (may be null) receives the reason for a no.
bool supports(const MatmulSpec& spec, std::string* why = nullptr);

// The program for `threads` threads, using the best instruction set of this CPU. Thread-safe; equal
// requests share one program. Runs may overlap. Throws UserError if supports() is false.
std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads);

LibraryReport library_report();

// For tests: the instruction sets that this CPU can run, and a program of one of them.
std::vector<std::string> instruction_sets();
std::shared_ptr<const MatmulProgram> make_program(const MatmulSpec& spec, int threads,
                                                  const std::string& isa);

}  // namespace tinyshard::gemm
