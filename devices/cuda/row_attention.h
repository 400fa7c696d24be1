// Attention of single rows over as many keys as a number in the GPU's memory tells: what a decoded
// token asks for. Scores, softmax and weighted sum are one kernel, PTX that is written for each
// shape.
//
//   q [32, 1, 64]   k, v [8, 4096, 64]   position [1]: keys 0 to position count
//
// Eight groups of four rows share their keys. A cluster of blocks has a group and its warps take
// pieces of the keys in turn; each keeps the largest score, the sum of the exponentials and the
// weighted values of its pieces, which the warps of a block and then the blocks of the cluster
// bring together. Nothing but the result is written to memory, and what lies behind the position is
// not read.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "core/runtime/target.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

// Where an operand lies, in elements: rows of neighbours, `row` from one to the next.
struct RowAttentionView {
  int64_t offset = 0, group = 0, row = 0;
};

struct RowAttentionShape {
  DType dtype = DType::BF16;          // or f16
  DType position_dtype = DType::I64;  // or i32
  int64_t position_offset = 0;        // in elements
  int64_t groups = 1;                 // keys and values of each are its own
  int64_t rows = 1;                   // of q in a group
  int64_t columns = 0;                // that keys and values have room for
  int64_t width = 0, values = 0;
  float scale = 1;
  RowAttentionView q, k, v;
};

// A product that a warp computes at once has room for eight rows, and a thread reads 16 bytes: keys
// are as wide as a multiple of 32 up to 128, values of 64, and all rows are aligned to that.
// Nothing, with the reason, for other calls.
std::optional<RowAttentionShape> row_attention_shape(const LibraryCall& call, std::string* why);

// Returns whether the call is of this kind, which is so if its node has positions.
bool is_row_attention(const LibraryCall& call);
bool row_attention_supports(const Target& target, const LibraryCall& call, std::string* why);
ObjectCode row_attention_code(const RowAttentionShape& shape, const Target& target);
std::unique_ptr<Program> make_row_attention(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
