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
    // Its elements, row-major: the memory of the device where that is what it holds, else a copy.
    std::span<const std::byte> bytes;
  };
  const std::vector<Whole>& tensors() const { return tensors_; }  // sorted by name
  const std::vector<Part>& parts() const { return parts_; }       // of this process

  // From here on the parts are copies of what they are now, whatever becomes of the tensors.
  void take_snapshot();

 private:
  void add(size_t number, Storage& storage, size_t device, LocalBox box);

  std::vector<Whole> tensors_;
  std::vector<Part> parts_;
  std::vector<Tensor> kept_;  // whose memory the parts are
  std::vector<std::vector<std::byte>> copies_;
  std::shared_ptr<std::byte> snapshot_;
};

}  // namespace tinyshard::nn
