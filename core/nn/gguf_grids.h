// The grids of llama.cpp's quantised types of one to three bits: points of eight or four elements
// that a short number stands for. They are facts of the format (ggml-common.h of
// https://github.com/ggml-org/llama.cpp, MIT licence), packed here.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace tinyshard::nn {

struct GgufGrid {
  std::string_view packed;  // letters of 6 bits, the lowest first
  int64_t points;
  int bits;   // of an element
  int width;  // elements of a point
  // Gives a number for each point, with the first element in its lowest bits.
  std::vector<int32_t> numbers() const;
};

extern const GgufGrid kGridIq2Xxs, kGridIq2Xs, kGridIq2S, kGridIq1, kGridIq3Xxs, kGridIq3S;

}  // namespace tinyshard::nn
