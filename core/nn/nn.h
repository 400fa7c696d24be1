// Everything of nn: fields and state dicts, layers, optimizers, placement, checkpoints.
#pragma once
#include "core/nn/checkpoint.h"
#include "core/nn/checkpoint_activations.h"
#include "core/nn/conv.h"
#include "core/nn/fields.h"
#include "core/nn/gradient_sum.h"
#include "core/nn/linear.h"
#include "core/nn/norm.h"
#include "core/nn/optim.h"
#include "core/nn/parallel.h"
#include "core/nn/recurrent.h"
#include "core/nn/state_dict.h"
