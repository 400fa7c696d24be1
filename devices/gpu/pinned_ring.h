// Pinned host memory for copies, handed out in a circle: the way between ordinary host memory and a
// GPU that the GPU can take by itself. A piece is free again when its event is reached, so small
// copies follow each other without waiting.
#pragma once
#include <deque>
#include <memory>

#include "devices/gpu/gpu.h"

namespace tinyshard::gpu {

class PinnedRing {
 public:
  static constexpr size_t kBytes = size_t{16} << 20;
  static constexpr size_t kPiece = size_t{4} << 20;  // longer copies go in pieces

  explicit PinnedRing(Gpu& gpu) : gpu_(gpu) {}
  ~PinnedRing();
  PinnedRing(const PinnedRing&) = delete;

  // At most kPiece bytes; waits until there is room.
  void* take(size_t bytes);
  // The piece taken last is in use until `stream` gets here; returns that event, which stays valid
  // until the piece is handed out again.
  EventHandle used_by(Stream stream);

 private:
  struct Piece {
    size_t begin, end;
    std::unique_ptr<GpuEvent> event;
  };

  Gpu& gpu_;
  char* memory_ = nullptr;
  size_t next_ = 0;
  std::deque<Piece> pieces_;  // in use, oldest first
};

}  // namespace tinyshard::gpu
