// Where in its buffers a kernel begins to read. A slice of a buffer is read at an index with a
// constant; a slice that moves would be another kernel each time, equal to the one before but for
// that constant. It is added to the pointer instead, in whole units of 64 bytes, since kernels rely
// on buffers that are aligned to so many:
//
//   x of f32 [64, 48], x[5] + 1     load p1 [i + 240]     load p1 [i], its buffer at byte 960
//                      x[6] + 1     load p1 [i + 288]     load p1 [i], its buffer at byte 1152
//   v of f32 [64], v[37] * 2        load p1 [37]          load p1 [5], its buffer at byte 128
//
// So code is made once for each place of a slice within 64 bytes. It is the code that there would
// be for the whole buffer, as alignments and differences of indices stay what they are.
#pragma once

#include "core/codegen/kernel.h"

namespace tinyshard {

// Moves the begin of each parameter that is only read, by indices that are all known to be in range,
// to what is read of it: `offset` and `numel` of the kernel's params, and the indices of its loads.
void begin_at_slices(KernelSource& kernel);

}  // namespace tinyshard
