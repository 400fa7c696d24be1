// Draws the next word on the devices that made its scores, so that a loop of steps need not wait for
// the host: what is drawn is the next step's input.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <tinyshard/tinyshard.h>

namespace llama {

using namespace tinyshard;

struct Sampling {
  double temperature = 0.8;  // 0: the best word
  int64_t top_k = 0;         // of so many best words; 0: of all
  double top_p = 1;          // of the fewest words that have this probability together
};

// A word [n] for each row of scores [n, words], by the Gumbel-max trick: the largest of scores /
// temperature + g, each with a g of Gumbel's distribution of its own, is drawn with the probabilities
// of their softmax.
inline Tensor drawn(const Tensor& scores, const Sampling& s) {
  if (s.temperature <= 0) return scores.argmax(-1).cast(DType::I32);
  const int64_t all = scores.shape(-1);
  const int64_t most = s.top_k > 0 ? std::min(s.top_k, all) : all;
  Tensor x = scores / s.temperature, words;
  if (most < all || s.top_p < 1) std::tie(x, words) = x.topk(most);  // the best one first
  if (s.top_p < 1) {
    const Tensor p = x.softmax(-1), better = p.cumsum(-1) - p;  // what better words have together
    x = x.masked_fill(better >= s.top_p, -std::numeric_limits<double>::infinity());
  }
  const Tensor g = -(-Tensor::rand(x.shape(), x.dtype()).log()).log();
  Tensor place = (x + g).argmax(-1, true);
  if (words.defined()) place = words.gather(-1, place);
  return place.squeeze(-1).cast(DType::I32);
}

}  // namespace llama
