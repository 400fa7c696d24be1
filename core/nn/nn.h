// Everything of nn: fields and state dicts, layers, optimizers, placement, checkpoints.
//
// Types of layers: the result of a layer has its input's type, whatever type the weights are kept
// in, and sums run in f32 at least. Products (Linear, Conv*, LSTMCell) read their weights rounded
// to the input's type; norms, and the gates of an LSTMCell, compute in f32 with weights and
// statistics as they are and round the result once. An input of integers takes the weights' type,
// and so do the rows of an Embedding.
#pragma once
#include "core/nn/adaptive.h"
#include "core/nn/attention.h"
#include "core/nn/average.h"
#include "core/nn/checkpoint.h"
#include "core/nn/checkpoint_activations.h"
#include "core/nn/conv.h"
#include "core/nn/elastic.h"
#include "core/nn/embedding_bag.h"
#include "core/nn/fields.h"
#include "core/nn/files.h"
#include "core/nn/fully_shard.h"
#include "core/nn/gradient_sum.h"
#include "core/nn/linear.h"
#include "core/nn/load_hf.h"
#include "core/nn/mixture_of_experts.h"
#include "core/nn/norm.h"
#include "core/nn/optim.h"
#include "core/nn/parallel.h"
#include "core/nn/pipeline.h"
#include "core/nn/recurrent.h"
#include "core/nn/ring_attention.h"
#include "core/nn/safe_save.h"
#include "core/nn/schedules.h"
#include "core/nn/state_dict.h"
#include "core/nn/stochastic_depth.h"
#include "core/nn/tensor_parallel.h"
