// Files and sets of them, and how a tensor is found in them.
#include "io/safetensors.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "io/safetensors_internal.h"

namespace tinyshard::io {
namespace {

constexpr uint64_t kMaxIndex = 100'000'000;

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t swapped = diagonal + (a[i] != b[j] ? 1 : 0);
      diagonal = row[j + 1];
      row[j + 1] = std::min({row[j] + 1, diagonal + 1, swapped});
    }
  }
  return row.back();
}

template <class Names>
UserError no_such_tensor(const std::filesystem::path& path, std::string_view name,
                         const Names& tensors) {
  std::vector<std::string_view> names;
  for (const auto& tensor : tensors) {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(tensor)>>) {
      names.push_back(tensor->name);
    } else {
      names.push_back(tensor.name);
    }
  }
  const std::string nearest = nearest_name(name, names);
  return UserError(fmt::format(
      "{} has no tensor {} ({} tensors{})", path.native(), in_quotes(name), names.size(),
      nearest.empty() ? "" : "; did you mean " + in_quotes(nearest) + "?"));
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string_view> names) {
  constexpr size_t kMostCompared = 10'000;
  std::string_view best;
  size_t best_distance = name.size() / 3 + 2;
  if (name.size() > 256) return {};
  for (std::string_view candidate : names.subspan(0, std::min(names.size(), kMostCompared))) {
    if (candidate.size() > 256) continue;
    const size_t distance = edit_distance(name, candidate);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return std::string(best);
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), map_(path), header_(parse_safetensors(map_.bytes(), path.native())) {
  by_name_.resize(header_.tensors.size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  std::sort(by_name_.begin(), by_name_.end(), [this](uint32_t a, uint32_t b) {
    return header_.tensors[a].name < header_.tensors[b].name;
  });
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto it = std::lower_bound(
      by_name_.begin(), by_name_.end(), name,
      [this](uint32_t i, std::string_view wanted) { return header_.tensors[i].name < wanted; });
  if (it == by_name_.end() || header_.tensors[*it].name != name) return nullptr;
  return &header_.tensors[*it];
}

const TensorEntry& SafetensorsFile::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  throw no_such_tensor(path_, name, tensors());
}

SafetensorsSet::SafetensorsSet(const std::filesystem::path& path) : path_(path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    if (fs::exists(path / "model.safetensors.index.json", ignored)) {
      open_index(path / "model.safetensors.index.json");
    } else if (fs::exists(path / "model.safetensors", ignored)) {
      open_file(path / "model.safetensors");
    } else {
      std::vector<fs::path> found;
      std::error_code error;
      for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
        if (it->path().extension() == ".safetensors") found.push_back(it->path());
      }
      if (error) throw IoError("list folder", path, error.value());
      if (found.size() != 1) {
        throw UserError(
            fmt::format("{} holds {} .safetensors files and no model.safetensors.index.json: name "
                        "the file to load",
                        path.native(), found.size()));
      }
      open_file(found[0]);
    }
  } else if (path.extension() == ".json") {
    open_index(path);
  } else {
    open_file(path);
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const TensorEntry* a, const TensorEntry* b) { return a->name < b->name; });
}

void SafetensorsSet::open_file(const std::filesystem::path& path) {
  files_.emplace_back(path);
  metadata_ = files_[0].metadata();
  for (const TensorEntry& tensor : files_[0].tensors()) tensors_.push_back(&tensor);
}

void SafetensorsSet::open_index(const std::filesystem::path& path) {
  SafetensorsIndex index = parse_index(read_file(path, kMaxIndex), path.native());
  metadata_ = std::move(index.metadata);
  files_.reserve(index.names_of_file.size());
  for (const auto& [file_name, names] : index.names_of_file) {
    const SafetensorsFile& file = files_.emplace_back(path.parent_path() / file_name);
    for (const std::string& name : names) {
      const TensorEntry* tensor = file.find(name);
      if (tensor == nullptr) {
        throw FormatError(path.native(), fmt::format("tensor {} is said to be in {}, but it is not",
                                                     in_quotes(name), file_name));
      }
      tensors_.push_back(tensor);
    }
  }
}

const TensorEntry* SafetensorsSet::find(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const TensorEntry* entry, std::string_view wanted) { return entry->name < wanted; });
  return it != tensors_.end() && (*it)->name == name ? *it : nullptr;
}

const TensorEntry& SafetensorsSet::at(std::string_view name) const {
  if (const TensorEntry* entry = find(name)) return *entry;
  throw no_such_tensor(path_, name, tensors_);
}

}  // namespace tinyshard::io
