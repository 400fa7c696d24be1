// The whole way from roots to something that runs.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "core/base/steps.h"
#include "core/exec/executable.h"
#include "core/exec/providers.h"

namespace tinyshard {

// Rewrites, schedules and compiles; returns it bound and ready, not yet run.
// `inputs` are the placeholders that the caller will bind before it runs.
std::unique_ptr<Executable> make_executable(std::span<const UOp> roots, bool compare_ranks,
                                            std::span<const std::shared_ptr<Storage>> inputs = {},
                                            Providers providers = Providers::Fastest);

// Rewrites and schedules only: what would happen.
Schedule make_plan(std::span<const UOp> roots, Providers providers = Providers::Fastest);

// Lists what TS_DISABLE_PASSES may name: all passes, the steps of scheduling and those of kernels.
std::vector<StepName> known_steps();

}  // namespace tinyshard
