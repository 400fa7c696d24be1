#include "core/nn/state_dict.h"

#include <fmt/format.h>

#include "core/base/call.h"
#include "io/safetensors.h"

namespace tinyshard::nn {
namespace {

// "a, b, c and 12 more"
std::string abridged(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

}  // namespace

void load(const StateDict& into, const StateDict& from, const LoadOptions& options, Caller caller) {
  Call call("load_state_dict", caller);
  std::vector<std::string> missing, unexpected, different;
  for (const auto& [name, tensor] : into) {
    auto found = from.find(name);
    if (found == from.end()) {
      missing.push_back(name);
    } else if (found->second.shape() != tensor.shape()) {
      different.push_back(fmt::format("{} (model {}, file {})", name, to_string(tensor.shape()),
                                      to_string(found->second.shape())));
    }
  }
  for (const auto& [name, tensor] : from) {
    if (!into.contains(name)) unexpected.push_back(name);
  }
  std::string problems;
  auto report = [&](const char* what, const std::vector<std::string>& names, bool counts) {
    if (!names.empty() && counts) {
      problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", what, abridged(names));
    }
  };
  report("missing", missing, options.strict);
  report("unexpected", unexpected, options.strict);
  report("shapes differ", different, true);
  if (!problems.empty()) fail(problems);

  std::vector<Tensor> written;
  for (const auto& [name, tensor] : into) {
    auto found = from.find(name);
    if (found == from.end()) continue;
    tensor.assign(found->second.cast(tensor.dtype()).shard_like(tensor));
    written.push_back(tensor);
  }
  Tensor::realize(written);
}

StateDict safe_load(const std::filesystem::path& path) {
  io::SafetensorsSet file(path);
  StateDict dict;
  for (const io::TensorEntry* entry : file.tensors()) {
    dict.emplace(entry->name, Tensor(entry->bytes, Ints(entry->shape), entry->dtype));
  }
  return dict;
}

void safe_save(const StateDict& tensors, const std::filesystem::path& path,
               const std::map<std::string, std::string>& metadata) {
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back(tensor);
  Tensor::realize(all);
  std::vector<std::vector<std::byte>> bytes;
  std::vector<io::TensorView> views;
  for (const auto& [name, tensor] : tensors) {
    bytes.push_back(tensor.data());
    views.push_back({name, tensor.dtype(), tensor.shape(), bytes.back()});
  }
  if (world().rank == 0) io::write_safetensors(path, views, metadata);
}

}  // namespace tinyshard::nn
