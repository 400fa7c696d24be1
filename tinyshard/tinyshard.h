// The one header that programs include: #include <tinyshard/tinyshard.h>.
#pragma once
#include <iostream>  // programs print tensors

#include "core/base/error.h"
#include "core/dtype/dtype.h"
#include "core/exec/explain.h"
#include "core/exec/runtime.h"
#include "core/nn/nn.h"
#include "core/tensor/jit.h"
#include "core/tensor/map_file.h"
#include "core/tensor/random.h"
#include "core/tensor/tensor.h"
#include "core/tensor/training.h"
#include "core/tensor/variable.h"
#include "io/corpus.h"
#include "io/dataset.h"
#include "launch/command_line.h"
#include "launch/failure.h"
#include "multi/mesh.h"
#include "report/jsonl.h"
#include "report/plot.h"
#include "report/progress.h"
