// The option JIT, which captured steps alone ask for.
#pragma once

namespace tinyshard {

// Off: the function of a step is called each time. Items: a step is captured, but replayed item by
// item instead of as one recording of its device.
enum class JitMode : int { Off = 0, On = 1, Items = 2 };
JitMode jit_mode();

}  // namespace tinyshard
