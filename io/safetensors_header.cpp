// The header of a safetensors file, taken apart and held to the bytes that follow it.
#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/checked.h"
#include "io/safetensors.h"
#include "io/safetensors_internal.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

constexpr size_t kMaxDims = 64;

struct TypeName {
  std::string_view name;
  DType dtype;
};
constexpr TypeName kTypes[] = {
    {"BOOL", DType::Bool}, {"I8", DType::I8},   {"I16", DType::I16},   {"I32", DType::I32},
    {"I64", DType::I64},   {"U8", DType::U8},   {"U16", DType::U16},   {"U32", DType::U32},
    {"U64", DType::U64},   {"F16", DType::F16}, {"BF16", DType::BF16}, {"F32", DType::F32},
    {"F64", DType::F64},
};

// One tensor as its header entry states it, before it is checked against the file.
struct Entry {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;
};

// Takes the header apart while it is parsed. A DOM would keep the last of two equal keys silently.
// The handlers return false to stop; error_ then says why.
class HeaderReader final : public json::json_sax_t {
 public:
  std::vector<Entry> entries;
  Metadata metadata;
  std::string error;

  bool key(string_t& text) override {
    switch (at_) {
      case At::Top:
        if (!names_.insert(text).second)
          return fail(fmt::format("{} appears twice", in_quotes(text)));
        key_ = std::move(text);
        return true;
      case At::Metadata:
        if (metadata.contains(text)) {
          return fail(fmt::format("metadata {} appears twice", in_quotes(text)));
        }
        key_ = std::move(text);
        return true;
      case At::Tensor: {
        const auto field =
            static_cast<size_t>(std::find(kFields, std::end(kFields), text) - kFields);
        if (field == std::size(kFields)) {
          return fail_tensor("has an unknown field " + in_quotes(text));
        }
        if (seen_[field]) return fail_tensor(fmt::format("has {} twice", text));
        seen_[field] = true;
        field_ = field;
        return true;
      }
      default:
        return fail("an object where none belongs");
    }
  }

  bool start_object(size_t) override {
    switch (at_) {
      case At::Start:
        at_ = At::Top;
        return true;
      case At::Top:
        if (key_ == kMetadataKey) {
          at_ = At::Metadata;
        } else {
          at_ = At::Tensor;
          entries.emplace_back().name = std::move(key_);
          seen_[0] = seen_[1] = seen_[2] = false;
        }
        return true;
      default:
        return misplaced("an object");
    }
  }

  bool end_object() override {
    if (at_ == At::Tensor) {
      for (size_t i = 0; i < std::size(kFields); ++i) {
        if (!seen_[i]) return fail_tensor(fmt::format("has no {}", kFields[i]));
      }
    }
    at_ = at_ == At::Top ? At::End : At::Top;
    return true;
  }

  bool start_array(size_t) override {
    if (at_ != At::Tensor || field_ == kDtype) return misplaced("an array");
    at_ = At::Array;
    numbers_ = 0;
    return true;
  }

  bool end_array() override {
    at_ = At::Tensor;
    if (field_ == kOffsets && numbers_ != 2) {
      return fail_tensor(fmt::format("has {} data_offsets, it needs 2", numbers_));
    }
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (at_ != At::Array) return misplaced("a number");
    Entry& entry = entries.back();
    if (field_ == kOffsets) {
      if (numbers_ < 2) (numbers_ == 0 ? entry.begin : entry.end) = value;
    } else {
      if (value > INT64_MAX) return fail_tensor(fmt::format("has a dimension of {}", value));
      if (entry.shape.size() == kMaxDims) {
        return fail_tensor(fmt::format("has more than {} dimensions", kMaxDims));
      }
      entry.shape.push_back(static_cast<int64_t>(value));
    }
    ++numbers_;
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::Metadata) {
      metadata.emplace(std::move(key_), std::move(text));
      return true;
    }
    if (at_ != At::Tensor || field_ != kDtype) return misplaced("a string");
    const auto dtype = dtype_of_safetensors(text);
    if (!dtype)
      return fail_tensor(
          fmt::format("has element type {}, which is not supported", in_quotes(text)));
    entries.back().dtype = *dtype;
    return true;
  }

  bool number_integer(number_integer_t value) override {
    return at_ == At::Array ? fail_tensor(fmt::format("has a negative number {} in its {}", value,
                                                      kFields[field_]))
                            : misplaced("a number");
  }
  bool number_float(number_float_t, const string_t&) override {
    return at_ == At::Array
               ? fail_tensor(fmt::format("has a number in its {} that is no 64-bit integer",
                                         kFields[field_]))
               : misplaced("a number");
  }
  bool null() override { return misplaced("null"); }
  bool boolean(bool) override { return misplaced("a boolean"); }
  bool binary(binary_t&) override { return misplaced("binary data"); }

  bool parse_error(size_t position, const std::string&, const json::exception&) override {
    // The parser's own text quotes the input, of any length: ours does not.
    return fail(fmt::format("it is not valid JSON at byte {}", 8 + position));
  }

 private:
  enum class At { Start, Top, Metadata, Tensor, Array, End };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  static constexpr size_t kDtype = 0, kOffsets = 2;

  bool fail(std::string why) {
    error = std::move(why);
    return false;
  }
  bool fail_tensor(const std::string& why) {
    return fail(fmt::format("tensor {} {}", in_quotes(entries.back().name), why));
  }
  bool misplaced(std::string_view what) {
    switch (at_) {
      case At::Start:
        return fail(fmt::format("it is {}, not an object", what));
      case At::Top:
        return fail(fmt::format("{} is {}, not an object", in_quotes(key_), what));
      case At::Metadata:
        return fail(fmt::format("metadata {} is {}, not a string", in_quotes(key_), what));
      case At::Tensor:
      case At::Array:
        return fail_tensor(fmt::format("has {} in its {}", what, kFields[field_]));
      case At::End:
        break;
    }
    return fail("something follows the object");
  }

  At at_ = At::Start;
  std::string key_;
  size_t field_ = 0, numbers_ = 0;
  bool seen_[3] = {};
  std::unordered_set<std::string> names_;
};

}  // namespace

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (const TypeName& type : kTypes) {
    if (type.name == name) return type.dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  for (const TypeName& type : kTypes) {
    if (type.dtype == dtype) return type.name;
  }
  throw InternalError("an index type does not reach a file");
}

SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view label) {
  auto fail = [&](std::string_view why) {
    return FormatError(label, fmt::format("not a valid safetensors file: {}", why));
  };
  if (file.size() < 8) {
    throw fail(fmt::format("it has {} bytes, the length of the header alone takes 8", file.size()));
  }
  uint64_t length;
  std::memcpy(&length, file.data(), 8);
  if (length > file.size() - 8) {
    throw fail(
        fmt::format("its header is said to have {} bytes, {} are left", length, file.size() - 8));
  }
  if (length > kMaxHeader) {
    throw fail(fmt::format("its header has {} bytes, the limit is {}", length, kMaxHeader));
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + 8;
  const auto size = static_cast<size_t>(length);
  if (size == 0 || text[0] != '{') throw fail("its header does not begin with {");

  HeaderReader reader;
  if (!json::sax_parse(text, text + size, &reader)) throw fail("header: " + reader.error);

  const std::span<const std::byte> data = file.subspan(8 + size);
  std::vector<Entry>& entries = reader.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });

  SafetensorsHeader header;
  header.header_bytes = 8 + length;
  header.metadata = std::move(reader.metadata);
  header.tensors.reserve(entries.size());
  uint64_t position = 0;
  for (Entry& entry : entries) {
    auto fail_tensor = [&](std::string_view why) {
      return fail(fmt::format("tensor {} {}", in_quotes(entry.name), why));
    };
    if (entry.end < entry.begin || entry.end > data.size()) {
      throw fail_tensor(fmt::format("has data_offsets {} to {}, the file has {} bytes of data",
                                    entry.begin, entry.end, data.size()));
    }
    const auto bytes = checked_bytes(entry.shape, itemsize(entry.dtype));
    if (!bytes) {
      throw fail_tensor(
          fmt::format("has a shape too large for any memory, {}", shape_text(entry.shape)));
    }
    if (*bytes != entry.end - entry.begin) {
      throw fail_tensor(fmt::format("is {} {}, which takes {} bytes, but its data_offsets give {}",
                                    safetensors_name(entry.dtype), shape_text(entry.shape), *bytes,
                                    entry.end - entry.begin));
    }
    if (entry.begin < position) {
      throw fail_tensor(fmt::format("begins at {}, inside of the tensor before it", entry.begin));
    }
    if (entry.begin > position) {
      throw fail_tensor(fmt::format("begins at {}, after a gap of {} bytes", entry.begin,
                                    entry.begin - position));
    }
    position = entry.end;
    header.tensors.push_back(
        {std::move(entry.name), entry.dtype, std::move(entry.shape),
         data.subspan(static_cast<size_t>(entry.begin), static_cast<size_t>(*bytes)),
         header.header_bytes + entry.begin});
  }
  if (position != data.size()) {
    throw fail(fmt::format("{} bytes follow the last tensor", data.size() - position));
  }
  return header;
}

}  // namespace tinyshard::io
