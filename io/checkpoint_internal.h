// Shared by the writer and the reader of checkpoints: names on disk, the rule that slices tile a
// tensor, and the manifest's text. The manifest carries the digest of its own text, of each part's
// header and of the index for other tools; headers and slices are all the bytes of a part, so every
// byte of a checkpoint is under a digest.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/checkpoint.h"

namespace tinyshard::io {

inline constexpr std::string_view kManifestName = "manifest.json";
inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr std::string_view kSlicesKey = "tinyshard.slices";  // in a part's __metadata__

std::string checkpoint_name(int64_t step, int revision);
std::optional<CheckpointPath> parse_checkpoint_name(const std::filesystem::path& path);
std::string part_name(int rank, int ranks);
bool is_part_name(std::string_view name);

struct Manifest {
  int64_t step = 0;
  Metadata metadata;
  std::optional<uint64_t> index_digest;  // of kIndexName, where there is one
  std::vector<Checkpoint::Part> parts;   // path is the file's name
  std::vector<Checkpoint::Tensor> tensors;
};

std::string manifest_text(const Manifest& manifest);
// A manifest whose text after the digits of its own digest is `rest`.
std::string signed_manifest(std::string_view rest);
// Checks the text's digest and its structure, each slice against its part's size, and that slices
// tile.
Manifest parse_manifest(std::string_view text, std::string_view label);

// Sorts the slices of a tensor and throws FormatError unless they are boxes inside of it, disjoint
// and complete.
void check_tiling(Checkpoint::Tensor& tensor, std::string_view label);

std::string box_text(std::span<const int64_t> offset, std::span<const int64_t> shape);

}  // namespace tinyshard::io
