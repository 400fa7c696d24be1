// A value on the host, put together there from the parts that devices hold: rows of each part are
// copied to where they belong, so that no device holds more than its part. Where other ranks hold some
// of them, pieces of all parts are gathered, one after the other, in the hosts' memories:
//
//   f32[6, 4] by rows over ranks 0 and 1, pieces of 16 bytes     rows 0 and 3, then 1 and 4, then 2 and 5
#pragma once
#include <cstddef>
#include <memory>
#include <span>

#include "core/exec/storage.h"
#include "core/runtime/pending_copy.h"

namespace tinyshard {

// Puts the whole value there, row-major: the bytes of its global shape. The storage holds boxes of it
// (in_boxes() in state.h). Every rank that holds a device of its mesh calls this where not each has all
// parts.
void read_whole(Storage& storage, std::span<std::byte> to);

// Begins the same and, where all parts are here, waits for nothing.
std::unique_ptr<PendingCopy> begin_read_whole(Storage& storage);

}  // namespace tinyshard
