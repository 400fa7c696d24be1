// How the communicators of a world behave; groups split from it inherit all but the name.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace tinyshard {

// Sizes in bytes at which algorithms change; the bits of a result do not. Every rank needs the same
// values. Tests make them small.
struct CommTuning {
  // all_reduce: everyone sends everything to everyone, while a rank sends no more than this.
  size_t direct_bytes = 128 << 10;
  // Longer ones move in pieces of this size, several of them under way.
  size_t segment_bytes = 512 << 10;
  // broadcast, from this size on: the ranks get a part each and pass it on.
  size_t split_broadcast_bytes = 256 << 10;
  size_t max_message_bytes = 1 << 20;  // longer ones are cut
};

struct CommOptions {
  std::string name = "world";
  // The limit for each call, from its start; also for connecting and splitting.
  std::chrono::nanoseconds timeout = std::chrono::seconds(300);
  // Compares (sequence, op, dtype, counts) of all ranks before any data moves.
  bool verify = false;
  // A wait polls, and lets others have the core, until nothing has moved for this long; then it
  // naps.
  std::chrono::nanoseconds spin = std::chrono::milliseconds(2);
  CommTuning tuning = {};
  // Runs body(0), ..., body(n - 1) in any order and on any threads: large reductions within one
  // process are such bodies. Empty: a loop.
  std::function<void(size_t n, const std::function<void(size_t)>& body)> parallel = {};
};

}  // namespace tinyshard
