// Models as safetensors files that any tool reads, written by all ranks at once.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "core/nn/state_dict.h"

namespace tinyshard::nn {

struct SafeSaveOptions {
  uint64_t shard_bytes = 5'000'000'000;  // of tensors in one file of a folder
  bool folder = false;                   // a folder, whatever its name looks like
  ByteProgress progress = {};
};

// Writes a file where the path has an extension, "model.safetensors" or any other, or is a file by
// now. Writes a folder where the option says so, where the path ends in a slash or is a folder by
// now, and where it has no extension:
//
//   model.safetensors.index.json        which tensor is in which file
//   model-00001-of-00003.safetensors    whole tensors, about shard_bytes of them
//
// All ranks of a job call it with the same tensors and a path that leads to the same place. Each
// writes the parts of its own devices where they belong, whatever the mesh: nothing is gathered.
// A file is there whole or not at all; of a folder that is saved over, the index goes first and
// comes last. If any rank fails, all throw, the one at fault with the reason.
void safe_save(const StateDict& tensors, const std::filesystem::path& path,
               const std::map<std::string, std::string>& metadata = {},
               const SafeSaveOptions& options = {});

}  // namespace tinyshard::nn

namespace tinyshard {
using nn::safe_save;
}  // namespace tinyshard
