// `llama train`: a Llama from scratch, divided over any devices. See examples/llama_step.h.
#pragma once
#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "examples/llama_step.h"
#include "examples/parallel.h"
#include "examples/training_run.h"

namespace llama {

struct TrainFlags : training::RunFlags {
  TrainFlags() { steps = 1000, warmup = 50, lr = 1e-3; }

  int64_t layers = 4, width = 128, heads = 4, kv_heads = 2, hidden = 0, context = 128, batch = 16,
          accumulate = 1, vocabulary = 50257, eval_batches = 8;
  bool tied = false, plan = false, items = false;
  std::string tokens, save;
  Division division;
  training::OptimizerFlags optimizer;
};

void add_train_options(CLI::App& app, TrainFlags& f);
void train(const TrainFlags& f);

}  // namespace llama
