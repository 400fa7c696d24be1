// Pieces follow each other around the ring, with the oldest right ahead of the newest. A piece that
// does not fit before the end begins at 0 again. Pieces in its way are waited for in their order.
#include "devices/gpu/pinned_ring.h"

#include <algorithm>

namespace tinyshard::gpu {

PinnedRing::~PinnedRing() {
  if (memory_) gpu_.driver().host_free(memory_);
}

void* PinnedRing::take(size_t bytes) {
  constexpr size_t kPortable = 1;
  if (!memory_) {
    void* memory = nullptr;
    gpu_.check(gpu_.driver().host_allocate(&memory, kBytes, kPortable), "pinned host memory");
    memory_ = static_cast<char*>(memory);
  }
  size_t size = (std::max<size_t>(bytes, 1) + 255) / 256 * 256;
  size_t begin = next_ + size <= kBytes ? next_ : 0;
  // Older pieces lie ahead in the circle: those in the way go first, in their order.
  auto in_the_way = [&] {
    return std::ranges::any_of(
        pieces_, [&](const Piece& p) { return p.begin < begin + size && begin < p.end; });
  };
  while (in_the_way()) {
    if (pieces_.front().event) gpu_.wait_on_host(pieces_.front().event->handle());
    pieces_.pop_front();
  }
  pieces_.push_back({begin, begin + size, nullptr});
  next_ = begin + size;
  return memory_ + begin;
}

EventHandle PinnedRing::used_by(Stream stream) {
  Piece& piece = pieces_.back();
  piece.event = std::make_unique<GpuEvent>(gpu_);
  gpu_.check(gpu_.driver().event_record(piece.event->handle(), stream), "recording an event");
  return piece.event->handle();
}

}  // namespace tinyshard::gpu
