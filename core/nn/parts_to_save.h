// Each process writes its boxes of a state dict that all of them save: those of its own devices, so
// that nothing is gathered. A box that several processes hold is written by the one that writes
// least so far; all processes come to the same answer without asking each other.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/exec/bulk_copies.h"
#include "core/exec/locked_memory.h"
#include "core/exec/storage.h"
#include "core/nn/state_dict.h"
#include "multi/local_box.h"

namespace tinyshard::nn {

class PartsToSave {
 public:
  // Computes the tensors. All ranks make one of the same ones.
  explicit PartsToSave(const StateDict& tensors);

  struct Whole {
    std::string name;
    DType dtype;
    Dims shape;
  };
  struct Part {
    size_t tensor;  // number in tensors()
    LocalBox box;
    size_t bytes;
  };
  const std::vector<Whole>& tensors() const { return tensors_; }  // sorted by name
  const std::vector<Part>& parts() const { return parts_; }       // of this process

  // Gives bytes [from, to) of the elements of a part, row-major, in their order and in pieces. By
  // several threads at once, which let devices bring the next piece while they take one.
  void read(size_t part, size_t from, size_t to, const BoxReader::Put& put);

  // From here on the parts are copies of what they are now, whatever becomes of the tensors. All
  // devices copy at once.
  void take_snapshot();

 private:
  std::vector<Whole> tensors_;
  std::vector<Part> parts_;
  std::vector<Tensor> kept_;  // whose memory the parts are
  std::shared_ptr<LockedMemory> snapshot_;
  std::vector<const std::byte*> in_snapshot_;  // by part
  std::unique_ptr<BoxReader> reader_;          // ends before the memory that it copies to
};

}  // namespace tinyshard::nn
