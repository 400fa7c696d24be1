// The elements of ggml's quantised types.
#pragma once
#include <string_view>

#include "core/tensor/tensor.h"

namespace tinyshard::nn {

// f32 in the order of the elements, from blocks of that type, u8 [blocks, bytes].
Tensor gguf_values(std::string_view type, const Tensor& blocks);

}  // namespace tinyshard::nn
