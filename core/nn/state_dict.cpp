#include "core/nn/state_dict.h"

#include "core/base/call.h"
#include "core/nn/write_over.h"
#include "core/tensor/map_file.h"
#include "io/safetensors.h"

namespace tinyshard::nn {

void load(const StateDict& into, const StateDict& from, const LoadOptions& options, Caller caller) {
  Call call("load_state_dict", caller);
  check_no_capture();
  std::map<std::string, Dims> found;
  for (const auto& [name, tensor] : from) found.emplace(name, tensor.shape());
  check_fits(into, found, options.strict);
  std::vector<std::pair<Tensor, Tensor>> pairs;
  for (const auto& [name, tensor] : into) {
    auto value = from.find(name);
    if (value != from.end()) pairs.emplace_back(tensor, value->second);
  }
  write_over(pairs, options.progress);
}

StateDict safe_load(const std::filesystem::path& path) {
  const io::SafetensorsSet set(path);
  StateDict dict;
  for (const io::SafetensorsFile& part : set.files()) {
    const SharedFile file = open_to_share(part.path());
    for (const io::TensorEntry& entry : part.tensors()) {
      if (set.find(entry.name) != &entry) continue;  // an index may leave tensors out
      dict.emplace(entry.name, load_from(file, part.path().native(), Ints(entry.shape), entry.dtype,
                                         entry.offset));
    }
  }
  return dict;
}

std::map<std::string, std::string> safe_load_metadata(const std::filesystem::path& path) {
  return io::SafetensorsSet(path).metadata();
}

}  // namespace tinyshard::nn
