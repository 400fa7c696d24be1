// Links what LLVM writes for AMD's GPUs, an ELF object of one kernel, to a code object, the shared ELF
// file that the driver loads. LLVM's own linker would bring the code generators of all its targets.
//
//   note, dynsym, hash, dynstr, rodata     a segment to read: descriptor of the kernel, constants
//   text                                   to execute
//   dynamic                                to write
//
// Internal to core/codegen; no LLVM in here.
#pragma once
#include <span>
#include <vector>

namespace tinyshard::codegen::gpu {

// Throws InternalError for an object with anything else in it: data that kernels write, names that
// it does not define, another relocation than those between its own sections.
std::vector<char> link_code_object(std::span<const char> object);

}  // namespace tinyshard::codegen::gpu
