// Makes random programs from a seed: the same seed, the same program. Each step is interpreted as
// it is chosen, so operands fit, values stay where something can be compared, and sizes stay small.
#pragma once
#include <cstdint>

#include "tests/fuzz/program.h"

namespace fuzz {

Program generate(uint64_t seed);

}  // namespace fuzz
