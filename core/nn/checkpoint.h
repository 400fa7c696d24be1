// Checkpoints of a training run: the tensors of model and optimizer with the step they belong to,
// whole or not at all (io/checkpoint.h), and the state of the random numbers. All ranks of a job
// call these together, with the same tensors. One saved on N devices loads on M.
#pragma once
#include <filesystem>
#include <map>
#include <string>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct SaveOptions {
  int keep = 3;  // how many checkpoints stay under the root
  std::map<std::string, std::string> metadata = {};
  // Returns when this process has copied what it writes, and writes it beside what comes next. The
  // checkpoint is there when it is complete; wait_for_checkpoints(), or the next save or load, says
  // how it ended. A program that ends waits for it.
  bool asynchronous = false;
};

// Writes root/step-<step>; returns that folder. Each process writes the parts of its own devices,
// gathering nothing. The checkpoints before stand as they were if anything fails.
std::filesystem::path save_checkpoint(const StateDict& tensors, const std::filesystem::path& root,
                                      int64_t step, const SaveOptions& options = {});

// Waits until the asynchronous save that is under way, if there is one, has ended on all ranks, and
// throws what went wrong there.
void wait_for_checkpoints();

// Makes the root where it is missing, and tries to write there: better now than after an hour. From
// then on the root is this job's until its first process ends: a second job that prepares or saves
// there gets a UserError, and harms nothing.
void prepare_checkpoints(const std::filesystem::path& root);

// Tells whether there is a checkpoint under the root.
bool has_checkpoint(const std::filesystem::path& root);

struct CheckpointInfo {
  std::filesystem::path path;
  int64_t step = 0;
  std::map<std::string, std::string> metadata;
  LoadReport names = {};  // of load_checkpoint: what was not loaded
};

// Reads what is known of a checkpoint, or of the newest complete one of a root, but no tensors.
CheckpointInfo checkpoint_info(const std::filesystem::path& path);

// Reads it over the tensors, each process the parts of its own devices, straight into their places.
// UserError says what is missing or has another shape. Names are matched as by load(); a model
// without its optimizer is read with {.ignore_unexpected = true}.
CheckpointInfo load_checkpoint(const StateDict& tensors, const std::filesystem::path& path,
                               const LoadOptions& options = {}, Caller caller = Caller::current());

}  // namespace tinyshard::nn
