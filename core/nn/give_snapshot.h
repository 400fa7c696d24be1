// A snapshot that some ranks have becomes the values of tensors on all of them, however these are divided.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "core/nn/snapshot.h"

namespace tinyshard::nn {

// The first participant of each rank in the communicator of the job.
std::vector<int> first_participants(int ranks);

// Writes the values of `from` over the tensors. `left`: the rank that each rank was when they were kept, or
// kNewcomer where it has none of them; what it has of `from` is then a description. All ranks call it.
// UserError where the tensors are others. The memory of a transfer that fails stays in the object: until the group
// that used it is gone.
class SnapshotGiver {
 public:
  void write(const Snapshot& from, const StateDict& tensors, const std::vector<int>& left);

 private:
  std::vector<std::vector<std::byte>> divide(const KeptValue& from, const Tensor& into,
                                             const std::vector<int>& left);
  std::vector<std::vector<std::byte>> sent_, received_;
};

// Tells which part of the snapshot no rank has that is left; empty where there is none.
std::string lost_part(const Snapshot& from, const std::vector<int>& left);

}  // namespace tinyshard::nn
