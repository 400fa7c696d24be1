// Products and convolutions spelled out as loops, for what no library takes.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/runtime/device.h"

namespace tinyshard {

// Products that no library need take, where a launch takes longer than to compute them. The
// defaults let none be one.
struct SmallProducts {
  // Sums of so few terms for so few elements are a part of the kernel that reads them.
  int64_t terms = 0, elements = 0;
  // So few columns with so few multiplications in all are sums of rows, in a kernel of their own:
  // libraries' tiles are wider than that.
  int64_t columns = 0, multiplications = 0;
  // So few rows, or columns, times a matrix of so many elements or more do little but read it, which
  // loops do as fast as memory goes: where it lies along the sums, and all of 16-bit floats.
  int64_t few = 0, matrix = 0;
};

// Every Dot and Conv* that `library_supports` refuses (asked with row-major operands) becomes
// expand, multiply and reduce, as plain small products do. Sums run in the type of the result,
// those of 16-bit floats in f32; a convolution of these becomes one of f32 where a library takes
// that.
std::vector<UOp> lower_products(std::span<const UOp> roots,
                                const std::function<bool(const LibraryCall&)>& library_supports,
                                SmallProducts small = {});

}  // namespace tinyshard
