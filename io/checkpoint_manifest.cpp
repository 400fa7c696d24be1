// The manifest as text, and back. The reader trusts nothing: a digest at the front covers the rest,
// names are those that we give, and the slices of a tensor must be boxes inside of it that do not
// meet and whose volumes add up to its own. Example: of a tensor [4, 6], [0:4, 0:3] and [0:4, 3:6]
// are all of it; [0:4, 0:3] and [0:2, 3:6] leave a hole.
#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "io/checked.h"
#include "io/checkpoint_internal.h"
#include "io/digest.h"
#include "io/json.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "tinyshard-checkpoint";
constexpr uint64_t kVersion = 1;
// The text begins with its own digest, taken with zeros in the place of the digest.
constexpr std::string_view kPrologue = "{\"xxh64\":\"";
constexpr std::string_view kZeros = "0000000000000000";
constexpr uint64_t kMaxRanks = 1 << 20;

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// Takes a number of digits off the front of `text`; nothing if it does not fit.
std::optional<int64_t> parse_number(std::string_view text) {
  int64_t value = 0;
  if (!all_digits(text)) return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads fields of a manifest, naming what is wrong.
struct ManifestReader {
  std::string_view label;

  FormatError fail(std::string_view why) const {
    return FormatError(label, fmt::format("not a valid manifest: {}", why));
  }
  const json& field(const json& object, const char* key) const {
    const auto it = object.is_object() ? object.find(key) : object.end();
    if (!object.is_object() || it == object.end()) throw fail(fmt::format("{} is missing", key));
    return *it;
  }
  uint64_t number(const json& value, std::string_view what) const {
    if (!value.is_number_unsigned()) throw fail(fmt::format("{} is no unsigned number", what));
    return value.get<uint64_t>();
  }
  std::string text(const json& value, std::string_view what) const {
    if (!value.is_string()) throw fail(fmt::format("{} is no string", what));
    return value.get<std::string>();
  }
  uint64_t digest(const json& value, std::string_view what) const {
    uint64_t digest;
    if (!parse_digest(text(value, what), digest)) throw fail(fmt::format("{} is no digest", what));
    return digest;
  }
  void check_array(const json& value, std::string_view what) const {
    if (!value.is_array()) throw fail(fmt::format("{} is no array", what));
  }
  std::vector<int64_t> shape(const json& value, std::string_view what) const {
    std::vector<int64_t> dims;
    check_array(value, what);
    for (const json& dim : value) {
      const uint64_t size = number(dim, what);
      if (size > INT64_MAX) throw fail(fmt::format("{} holds {}", what, size));
      dims.push_back(static_cast<int64_t>(size));
    }
    return dims;
  }
};

bool disjoint(const Checkpoint::Slice& a, const Checkpoint::Slice& b) {
  for (size_t d = 0; d < a.shape.size(); ++d) {
    if (a.offset[d] >= b.offset[d] + b.shape[d] || b.offset[d] >= a.offset[d] + a.shape[d]) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::string checkpoint_name(int64_t step, int revision) {
  return fmt::format("step-{:08}{}", step, revision > 1 ? fmt::format("-r{}", revision) : "");
}

std::optional<CheckpointPath> parse_checkpoint_name(const std::filesystem::path& path) {
  const std::string name = path.filename().native();
  std::string_view rest = name;
  if (!rest.starts_with("step-")) return std::nullopt;
  rest.remove_prefix(5);
  CheckpointPath found{path};
  if (const size_t dash = rest.find("-r"); dash != rest.npos) {
    const auto revision = parse_number(rest.substr(dash + 2));
    if (!revision || *revision < 2 || *revision > INT32_MAX) return std::nullopt;
    found.revision = static_cast<int>(*revision);
    rest = rest.substr(0, dash);
  }
  const auto step = parse_number(rest);
  if (!step) return std::nullopt;
  found.step = *step;
  // Only what checkpoint_name() spells is ours.
  if (checkpoint_name(found.step, found.revision) != name) return std::nullopt;
  return found;
}

std::string part_name(int rank, int ranks) {
  return fmt::format("part-{:05}-of-{:05}.safetensors", rank, ranks);
}

bool is_part_name(std::string_view name) {
  constexpr std::string_view kHead = "part-", kTail = ".safetensors", kMiddle = "-of-";
  if (!name.starts_with(kHead) || !name.ends_with(kTail)) return false;
  name.remove_prefix(kHead.size());
  name.remove_suffix(std::min(name.size(), kTail.size()));
  const size_t middle = name.find(kMiddle);
  return middle != name.npos && all_digits(name.substr(0, middle)) &&
         all_digits(name.substr(middle + kMiddle.size()));
}

std::string box_text(std::span<const int64_t> offset, std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) {
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", offset[d], offset[d] + shape[d]);
  }
  return text + "]";
}

void check_tiling(Checkpoint::Tensor& tensor, std::string_view label) {
  using Slice = Checkpoint::Slice;
  auto fail = [&](std::string_view why) {
    return FormatError(label, fmt::format("tensor {} of shape [{}]: {}", in_quotes(tensor.name),
                                          fmt::join(tensor.shape, ", "), why));
  };
  const auto total = checked_bytes(tensor.shape, itemsize(tensor.dtype));
  if (!total) throw fail("the shape is too large for any memory");
  uint64_t covered = 0;
  for (const Slice& slice : tensor.slices) {
    if (slice.shape.size() != tensor.shape.size() || slice.offset.size() != tensor.shape.size()) {
      throw fail(fmt::format("a slice has {} dimensions", slice.shape.size()));
    }
    for (size_t d = 0; d < slice.shape.size(); ++d) {
      const int64_t size = slice.shape[d], offset = slice.offset[d];
      if (size <= 0 || offset < 0 || offset > tensor.shape[d] || size > tensor.shape[d] - offset) {
        throw fail(
            fmt::format("slice {} does not lie inside", box_text(slice.offset, slice.shape)));
      }
    }
    const auto bytes = checked_bytes(slice.shape, itemsize(tensor.dtype));
    const auto sum = bytes ? checked_add(covered, *bytes) : std::nullopt;
    if (!sum) throw fail("the slices overlap");
    covered = *sum;
  }
  std::sort(tensor.slices.begin(), tensor.slices.end(),
            [](const Slice& a, const Slice& b) { return a.offset < b.offset; });
  for (size_t i = 0; i < tensor.slices.size(); ++i) {
    const Slice& a = tensor.slices[i];
    for (size_t j = i + 1; j < tensor.slices.size(); ++j) {
      const Slice& b = tensor.slices[j];
      // Sorted by offset: those that begin behind the end of `a` cannot meet it.
      if (!a.shape.empty() && b.offset[0] >= a.offset[0] + a.shape[0]) break;
      if (!disjoint(a, b)) {
        throw fail(fmt::format("slices {} and {} overlap", box_text(a.offset, a.shape),
                               box_text(b.offset, b.shape)));
      }
    }
  }
  // Disjoint boxes inside of the tensor cover it when their volumes add up.
  if (covered != *total) {
    throw fail(fmt::format("the slices cover {} of {} bytes", covered, *total));
  }
}

std::string manifest_text(const Manifest& manifest) {
  // Each part and each tensor has a line: long, but a reader finds the place.
  std::string text =
      fmt::format("\",\n \"format\":\"{}\",\n \"version\":{},\n \"step\":{},\n \"metadata\":{},\n ",
                  kFormat, kVersion, manifest.step, json(manifest.metadata).dump());
  if (manifest.index_digest)
    text += fmt::format("\"index_xxh64\":\"{}\",\n ", digest_text(*manifest.index_digest));
  text += "\"parts\":[\n";
  for (const Checkpoint::Part& part : manifest.parts) {
    text +=
        fmt::format("  {{\"file\":{},\"bytes\":{},\"header_bytes\":{},\"header_xxh64\":\"{}\"}},\n",
                    json(part.path.native()).dump(), part.bytes, part.header_bytes,
                    digest_text(part.header_digest));
  }
  if (!manifest.parts.empty()) text.erase(text.size() - 2, 1);
  text += " ],\n \"tensors\":{\n";
  for (const Checkpoint::Tensor& tensor : manifest.tensors) {
    text +=
        fmt::format("  {}:{{\"dtype\":\"{}\",\"shape\":[{}],\"slices\":[", json(tensor.name).dump(),
                    safetensors_name(tensor.dtype), fmt::join(tensor.shape, ","));
    for (const Checkpoint::Slice& slice : tensor.slices) {
      text += fmt::format(
          "{}{{\"part\":{},\"begin\":{},\"end\":{},\"offset\":[{}],\"shape\":[{}],\"xxh64\":\"{}\"}"
          "}",
          &slice == tensor.slices.data() ? "" : ",", slice.part, slice.begin, slice.end,
          fmt::join(slice.offset, ","), fmt::join(slice.shape, ","), digest_text(slice.digest));
    }
    text += "]},\n";
  }
  if (!manifest.tensors.empty()) text.erase(text.size() - 2, 1);
  text += " }\n}\n";
  return signed_manifest(text);
}

std::string signed_manifest(std::string_view rest) {
  std::string text = fmt::format("{}{}{}", kPrologue, kZeros, rest);
  text.replace(kPrologue.size(), kZeros.size(), digest_text(digest_of(text)));
  return text;
}

Manifest parse_manifest(std::string_view text, std::string_view label) {
  const ManifestReader read{label};
  if (text.size() < kPrologue.size() + kZeros.size() || !text.starts_with(kPrologue)) {
    throw read.fail(
        fmt::format("it has {} bytes and does not begin with {}", text.size(), kPrologue));
  }
  const std::string_view stated_text = text.substr(kPrologue.size(), kZeros.size());
  uint64_t stated;
  if (!parse_digest(stated_text, stated)) throw read.fail("it does not begin with its digest");
  Digest digest;
  for (std::string_view piece :
       {kPrologue, kZeros, text.substr(kPrologue.size() + kZeros.size())}) {
    digest.update(std::as_bytes(std::span(piece.data(), piece.size())));
  }
  if (digest.value() != stated) {
    throw read.fail(
        fmt::format("it was altered or cut after it was written: its digest is {}, it says {}",
                    digest_text(digest.value()), stated_text));
  }
  std::string why;
  const json root = parse_json(text, why);
  if (root.is_discarded()) throw read.fail(why);
  if (read.text(read.field(root, "format"), "format") != kFormat) {
    throw read.fail(fmt::format("format is not {}", kFormat));
  }
  if (const uint64_t version = read.number(read.field(root, "version"), "version");
      version != kVersion) {
    throw read.fail(fmt::format("version is {}, this library reads {}", version, kVersion));
  }

  Manifest manifest;
  const uint64_t step = read.number(read.field(root, "step"), "step");
  if (step > INT64_MAX) throw read.fail(fmt::format("step is {}", step));
  manifest.step = static_cast<int64_t>(step);
  const json& metadata = read.field(root, "metadata");
  if (!metadata.is_object() && !metadata.is_null()) throw read.fail("metadata is no object");
  for (const auto& [key, value] : metadata.items()) {
    manifest.metadata[key] = read.text(value, "metadata " + in_quotes(key));
  }
  if (root.contains("index_xxh64"))
    manifest.index_digest = read.digest(root["index_xxh64"], "index_xxh64");
  const json& parts = read.field(root, "parts");
  read.check_array(parts, "parts");
  if (parts.size() > kMaxRanks) throw read.fail(fmt::format("it has {} parts", parts.size()));
  for (const json& entry : parts) {
    const std::string file = read.text(read.field(entry, "file"), "file");
    if (!is_part_name(file))
      throw read.fail(fmt::format("{} is not the name of a part", in_quotes(file)));
    Checkpoint::Part part{file, read.number(read.field(entry, "bytes"), "bytes"),
                          read.number(read.field(entry, "header_bytes"), "header_bytes"),
                          read.digest(read.field(entry, "header_xxh64"), "header_xxh64")};
    if (part.header_bytes > part.bytes) throw read.fail(file + " has a header larger than itself");
    manifest.parts.push_back(std::move(part));
  }
  const json& tensors = read.field(root, "tensors");
  if (!tensors.is_object()) throw read.fail("tensors is no object");
  for (const auto& [name, entry] : tensors.items()) {
    Checkpoint::Tensor tensor{
        name, DType::F32, read.shape(read.field(entry, "shape"), "shape"), {}};
    const std::string dtype = read.text(read.field(entry, "dtype"), "dtype");
    const auto known = dtype_of_safetensors(dtype);
    if (!known)
      throw read.fail(fmt::format("tensor {} has dtype {}", in_quotes(name), in_quotes(dtype)));
    tensor.dtype = *known;
    const json& slices = read.field(entry, "slices");
    read.check_array(slices, "slices");
    for (const json& cut : slices) {
      Checkpoint::Slice slice;
      const uint64_t part = read.number(read.field(cut, "part"), "part");
      slice.begin = read.number(read.field(cut, "begin"), "begin");
      slice.end = read.number(read.field(cut, "end"), "end");
      slice.offset = read.shape(read.field(cut, "offset"), "offset");
      slice.shape = read.shape(read.field(cut, "shape"), "shape");
      slice.digest = read.digest(read.field(cut, "xxh64"), "xxh64");
      const auto bytes = checked_bytes(slice.shape, itemsize(tensor.dtype));
      if (part >= manifest.parts.size() || slice.begin > slice.end ||
          slice.end > manifest.parts[static_cast<size_t>(part)].bytes || !bytes ||
          *bytes != slice.end - slice.begin) {
        throw read.fail(
            fmt::format("tensor {}: a slice at {} to {} of part {} of {} cannot be {} of {}",
                        in_quotes(name), slice.begin, slice.end, part, manifest.parts.size(),
                        fmt::join(slice.shape, "x"), dtype));
      }
      slice.part = static_cast<uint32_t>(part);
      tensor.slices.push_back(std::move(slice));
    }
    check_tiling(tensor, label);
    manifest.tensors.push_back(std::move(tensor));
  }
  // JSON objects come back sorted by name.
  return manifest;
}

}  // namespace tinyshard::io
