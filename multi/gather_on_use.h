// Parameters that lie in parts and are whole only while they are read (nn::fully_shard). A storage
// with this mark is gathered over `axes` by each op that reads it; optimizers, checkpoints, and
// arithmetic on parameters alone work on the parts as they lie.
//
//   w f32[8, 4] in parts over "data"        y = x.matmul(w)         w - 0.1 * gradient
//                                           all-gather, [8, 4]      stays [8@data, 4]
//
// What gathers of one block have in common is that they travel together; see
// core/passes/regather.h and core/schedule/turns.h for when.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tinyshard {

struct GatherOnUse {
  int64_t block = 0;       // a number of its own for each block, from 1
  int prefetch = 1;        // blocks that are gathered ahead of the one in use
  bool keep = false;       // gathered once for all of its uses, not again for the backward pass
  std::vector<bool> axes;  // of the mesh: those over which it is gathered
};

}  // namespace tinyshard
