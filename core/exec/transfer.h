// Moving values between the memories of devices, by the shortest way there is: between devices of a
// kind that can, else through the host.
#pragma once
#include <span>
#include <vector>

#include "core/runtime/communicator.h"
#include "core/runtime/device.h"

namespace tinyshard {

// A box of a contiguous source: from `begin`, `size` in each dim, of which what lies beyond the end
// of `shape` reads as zero. It becomes contiguous.
struct Box {
  Dims shape, begin, size;
  size_t element = 1;  // bytes
};
void copy_box(const Box& box, Device& source, void* in, Device& target, void* out);

// A collective whose communicator works on host memory, for devices whose memory the host cannot
// touch: copied out, done, copied back. Waits for it.
void run_through_host(Communicator& communicator, const Collective& call,
                      std::span<const CommBuffer> send, std::span<const CommBuffer> recv);

// Tells whether the communicator can be given these buffers as they are.
bool takes_buffers(const Communicator& communicator, std::span<const CommBuffer> buffers);

}  // namespace tinyshard
