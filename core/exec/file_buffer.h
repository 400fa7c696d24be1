// The bytes of a file as a value.
#pragma once
#include <string>

#include "core/uop/uop.h"

namespace tinyshard {

// A Buffer on DISK:0 over `shape` elements of the file from byte `offset` on, in the machine's byte
// order. The file is mapped, not read; writes to the value stay in memory. An offset that is not a
// multiple of 64, which kernels cannot work on, is read at once instead. UserError names the path,
// what it holds and what was asked for.
UOp file_buffer(const std::string& path, DimSpan shape, DType dtype, int64_t offset);

}  // namespace tinyshard
