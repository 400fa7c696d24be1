// The layout is computed before anything is written: tensors by the size of their type, the widest
// first, then by name, so that each is aligned; the header is padded with spaces until the data
// begin at a multiple of 64. So the place of every byte is known to whoever writes parts of a file.
#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "io/checked.h"
#include "io/safetensors.h"
#include "io/safetensors_internal.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

constexpr uint64_t kAlignment = 64;  // of the data

// Writes text as a JSON string; a name that is not UTF-8 cannot be one.
std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw UserError(fmt::format("safetensors: the name or value {} is not UTF-8", in_quotes(text)));
  }
}

}  // namespace

SafetensorsLayout layout_safetensors(std::span<const TensorInfo> tensors,
                                     const Metadata& metadata) {
  std::vector<size_t> order;
  std::vector<uint64_t> sizes;
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == kMetadataKey) {
      throw UserError("safetensors: a tensor cannot be named __metadata__");
    }
    if (!names.insert(tensor.name).second) {
      throw UserError(
          fmt::format("safetensors: the name {} is given twice", in_quotes(tensor.name)));
    }
    const auto bytes = checked_bytes(tensor.shape, itemsize(tensor.dtype));
    if (!bytes) {
      throw UserError(fmt::format("safetensors: tensor {} is too large: {} {}",
                                  in_quotes(tensor.name), safetensors_name(tensor.dtype),
                                  shape_text(tensor.shape)));
    }
    order.push_back(order.size());
    sizes.push_back(*bytes);
  }
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const size_t size_a = itemsize(tensors[a].dtype), size_b = itemsize(tensors[b].dtype);
    return size_a != size_b ? size_a > size_b : tensors[a].name < tensors[b].name;
  });

  SafetensorsLayout layout;
  layout.offsets.resize(tensors.size());
  std::string text = "{";
  if (!metadata.empty()) {
    text += fmt::format("\"{}\":{{", kMetadataKey);
    for (const auto& [key, value] : metadata) {
      text += json_text(key) + ":" + json_text(value) + ",";
    }
    text.back() = '}';
    text += ',';
  }
  uint64_t position = 0;
  for (size_t i : order) {
    const auto end = checked_add(position, sizes[i]);
    if (!end) throw UserError("safetensors: the tensors are too large for one file");
    text += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                        json_text(tensors[i].name), safetensors_name(tensors[i].dtype),
                        fmt::join(tensors[i].shape, ","), position, *end);
    layout.offsets[i] = position;
    position = *end;
  }
  if (text.size() > 1) text.pop_back();
  text += '}';
  text.append(static_cast<size_t>((kAlignment - (8 + text.size()) % kAlignment) % kAlignment), ' ');
  if (text.size() > kMaxHeader) {
    throw UserError(fmt::format(
        "safetensors: {} names and their metadata make a header of {} bytes, the limit is {}",
        order.size(), text.size(), kMaxHeader));
  }
  const uint64_t length = text.size();
  layout.header.assign(reinterpret_cast<const char*>(&length), sizeof length);
  layout.header += text;
  for (uint64_t& offset : layout.offsets) offset += layout.header.size();
  layout.bytes = layout.header.size() + position;
  return layout;
}

std::string index_text(uint64_t total_bytes, const std::map<std::string, std::string>& file_of,
                       const Metadata& metadata) {
  try {
    json about = metadata;
    if (about.is_null()) about = json::object();
    about["total_size"] = total_bytes;
    return json{{"metadata", about}, {"weight_map", file_of}}.dump(1) + "\n";
  } catch (const json::exception&) {
    throw UserError("safetensors: a name or the metadata of an index is not UTF-8");
  }
}

void write_safetensors(AtomicFile& file, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  std::vector<TensorInfo> infos;
  for (const TensorView& tensor : tensors)
    infos.push_back({tensor.name, tensor.dtype, tensor.shape});
  const SafetensorsLayout layout = layout_safetensors(infos, metadata);
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorView& tensor = tensors[i];
    if (checked_bytes(tensor.shape, itemsize(tensor.dtype)) != tensor.bytes.size()) {
      throw UserError(fmt::format("safetensors: tensor {} is {} {}, but comes with {} bytes",
                                  in_quotes(tensor.name), safetensors_name(tensor.dtype),
                                  shape_text(tensor.shape), tensor.bytes.size()));
    }
    if (!tensor.bytes.empty()) order.push_back(i);
  }
  std::ranges::sort(order, {}, [&](size_t i) { return layout.offsets[i]; });
  file.write(layout.header);
  for (size_t i : order) file.write(tensors[i].bytes);
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  AtomicFile file(path);
  write_safetensors(file, tensors, metadata);
  file.commit();
}

}  // namespace tinyshard::io
