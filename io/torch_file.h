// Reads files that torch.save wrote, in any of its three formats: a zip archive (since
// torch 1.6), a sequence of pickles with the storages behind them, or a tar archive. No code of a
// pickle is ever run (io/pickle.h); names other than those of tensors, storages and containers are
// refused. FormatError with the offset for the rest.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/dtype/dtype.h"
#include "io/value.h"
#include "io/zip.h"

namespace tinyshard::io {

// Elements as they lie in the file, or in bytes that were inflated.
struct TorchTensor {
  DType dtype = DType::F32;
  std::vector<int64_t> shape, strides;  // in elements; a stride may be 0
  uint64_t offset = 0;                  // in bytes, of the element at index 0
  uint64_t elements = 0;                // from there to the last one that the view reaches
  bool negative = false;                // the elements are the negatives of what is stored
  std::shared_ptr<const std::vector<std::byte>> bytes;  // null: in the file
  std::shared_ptr<const PackedMember> packed;  // to be inflated when it is used; `offset` is in it
  std::string refusal;  // why it cannot be used, though others of the file can
};

struct TorchFile {
  TorchFile() = default;
  explicit TorchFile(const std::filesystem::path& path);

  // By dotted path: "model.0.weight", with items of lists by their index; a single tensor is "".
  std::map<std::string, TorchTensor> tensors;
  ValueMap other;                     // numbers, texts, bools and Nones
  std::vector<std::string> left_out;  // objects that are none of these: "args (argparse.Namespace)"
};

// Reads the bytes of a whole file; `label` names it in errors.
void parse_torch(std::span<const std::byte> file, std::string_view label, TorchFile& out);

}  // namespace tinyshard::io
