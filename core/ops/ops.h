// The rows of this folder: each op that others spell, whole in one file.
#pragma once
#include <span>

#include "core/uop/composite.h"

namespace tinyshard {

// In the order of their numbers, from 1 on.
std::span<const Composite* const> composites();

}  // namespace tinyshard
