// The PTX of ScatterAdd on a GPU: the gradient of an embedding or a gather, without atomics. Each
// element of the result is summed by one thread in the order of the source rows, so results are the same
// at every run. A kernel is written for each shape.
#pragma once
#include "core/runtime/scatter_shape.h"
#include "core/runtime/target.h"

namespace tinyshard::cuda {

ObjectCode scatter_code(const ScatterShape& shape);

}  // namespace tinyshard::cuda
