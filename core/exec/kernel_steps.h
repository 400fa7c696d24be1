// The steps between the kernels of a schedule and their code, as one list: what of a kernel comes
// with each call, so that kernels which differ in nothing else share their code. They are timed, and
// can be left out by name, as passes are (core/base/steps.h).
#pragma once
#include <span>
#include <vector>

#include "core/base/steps.h"
#include "core/codegen/kernel.h"
#include "core/runtime/target.h"

namespace tinyshard {

struct KernelsToCompile {
  struct One {
    KernelSource* kernel;
    const Target* target;
    int coordinates;  // of a call, before what the steps add
  };
  std::vector<One> kernels;
};

using KernelStep = Step<KernelsToCompile>;
std::span<const KernelStep> kernel_steps();

// Serves schedules that run once: captured steps are compiled once, with all that is known of them.
void run_kernel_steps(KernelsToCompile& state);

}  // namespace tinyshard
