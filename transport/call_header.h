// Headers by which the ranks of a group compare a call, and what they conclude when they differ.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "core/runtime/communicator.h"
#include "transport/channel.h"

namespace tinyshard {

// Plain bytes on the wire.
struct CallHeader {
  uint64_t sequence = 0, count = 0, counts_hash = 0;
  uint64_t run = 0, what = 0, inputs = 0;  // of the RunIdentity
  char label[32] = {};
  uint8_t op = 0, reduce = 0, dtype = 0, unused = 0;
  int32_t from = 0;
  char asked[72] =
      {};  // "item (train.cpp:13)" or, of a call of no run, "train.cpp:21"; not compared
  std::array<GivenValue, 3> given = {};
};
static_assert(sizeof(CallHeader) == 424);

CallHeader header_of(const Collective& call, uint64_t sequence);

// The ranks do not run the same. Thrown by all of them, with the same culprit where most agree.
struct Divergence : ChannelError {
  using ChannelError::ChannelError;
};

// Throws Divergence when headers differ: the culprit is the first rank that differs from most; of
// two it is the other one, and both are described. `ranks` are those of the headers, of which
// `self` is this one's.
void compare_headers(std::span<const CallHeader> headers, std::span<const int> ranks, size_t self);

}  // namespace tinyshard
