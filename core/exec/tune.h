// BEAM for generated kernels: which of the generator's plans runs fastest on a device.
#pragma once
#include <span>

#include "core/codegen/codegen.h"
#include "core/runtime/device.h"

namespace tinyshard {

// Sets `choice` of each kernel to the fastest of the first `beam` (kernel.h says what they are),
// timed on the device with memory of its own, or as it was found before: choices are remembered in
// the folder of compiled kernels. A kernel whose buffers do not fit beside what is held keeps
// choice 0, and so does one with folds unless `folds`, where plans differ in the bits of folds: those
// of ranks that each choose for themselves would, too.
void tune_kernels(std::span<KernelSource* const> sources, Device& device, int beam, bool folds,
                  const ParallelFor& parallel);

}  // namespace tinyshard
