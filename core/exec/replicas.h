// TS_CHECK=replicas: what a run wrote and several devices hold is compared, bit for bit. Replicated
// values that differ make no error by themselves: ranks that drew their parameters from different
// seeds, or read different files, train on until somebody wonders about the losses.
#pragma once
#include <memory>
#include <span>

#include "core/exec/storage.h"

namespace tinyshard {

// Called after a run, with the storages of its roots, by all ranks that hold a device of theirs.
// Devices that hold the same part of a value are compared along each axis of its mesh. The first
// value that differs is a UserError on all of them where they belong to several ranks, and a
// DeviceError where they belong to one. It names the value, who holds another one than most, and
// the first elements that differ. Values private to each rank are not compared across ranks.
void check_replicas(std::span<const std::shared_ptr<Storage>> roots);

}  // namespace tinyshard
