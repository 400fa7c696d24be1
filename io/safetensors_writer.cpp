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

void write_safetensors(AtomicFile& file, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  std::vector<const TensorView*> order;
  std::set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    if (tensor.name == kMetadataKey) {
      throw UserError("safetensors: a tensor cannot be named __metadata__");
    }
    if (!names.insert(tensor.name).second) {
      throw UserError(
          fmt::format("safetensors: the name {} is given twice", in_quotes(tensor.name)));
    }
    const auto bytes = checked_bytes(tensor.shape, itemsize(tensor.dtype));
    if (!bytes || *bytes != tensor.bytes.size()) {
      throw UserError(fmt::format("safetensors: tensor {} is {} {}, but comes with {} bytes",
                                  in_quotes(tensor.name), safetensors_name(tensor.dtype),
                                  shape_text(tensor.shape), tensor.bytes.size()));
    }
    order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(), [](const TensorView* a, const TensorView* b) {
    const size_t size_a = itemsize(a->dtype), size_b = itemsize(b->dtype);
    return size_a != size_b ? size_a > size_b : a->name < b->name;
  });

  std::string header = "{";
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{{", kMetadataKey);
    for (const auto& [key, value] : metadata) {
      header += json_text(key) + ":" + json_text(value) + ",";
    }
    header.back() = '}';
    header += ',';
  }
  uint64_t position = 0;
  for (const TensorView* tensor : order) {
    const uint64_t end = position + tensor->bytes.size();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},",
                          json_text(tensor->name), safetensors_name(tensor->dtype),
                          fmt::join(tensor->shape, ","), position, end);
    position = end;
  }
  if (header.size() > 1) header.pop_back();
  header += '}';
  header.append(static_cast<size_t>((kAlignment - (8 + header.size()) % kAlignment) % kAlignment),
                ' ');
  if (header.size() > kMaxHeader) {
    throw UserError(fmt::format(
        "safetensors: {} names and their metadata make a header of {} bytes, the limit is {}",
        order.size(), header.size(), kMaxHeader));
  }

  const uint64_t length = header.size();
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const TensorView* tensor : order) file.write(tensor->bytes);
}

void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata) {
  AtomicFile file(path);
  write_safetensors(file, tensors, metadata);
  file.commit();
}

}  // namespace tinyshard::io
