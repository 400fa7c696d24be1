// Sorting on the CPU: the order of the elements of each row, by radix; of the first few places of a
// long row by selection. The result is the stable permutation, of which there is one, so that it
// does not depend on the number of threads.
#pragma once
#include <cstdint>

#include "core/dtype/dtype.h"

namespace tinyshard {

class ThreadPool;

struct SortSpec {
  DType key = DType::U32;  // U8, U16, U32 or U64
  int64_t rows = 1, n = 0;
  int64_t k = 0;  // of each row the k smallest, in order; k = n sorts it

  bool operator==(const SortSpec&) const = default;
};

// Rows whose places an i32 counts, of unsigned keys.
bool sort_supports(const SortSpec& spec);

// Returns how many bytes a sort needs beside keys and order, on a pool of so many threads.
int64_t sort_scratch_bytes(const SortSpec& spec, int threads);

// order[row][i] is the place of the i-th smallest key of the row, for i < k; of equal keys the
// earlier one comes first. keys is [rows, n], order is [rows, k], both contiguous; scratch is
// aligned to 64 bytes.
void sort_rows(const SortSpec& spec, const void* keys, int32_t* order, void* scratch,
               ThreadPool& pool);

}  // namespace tinyshard
