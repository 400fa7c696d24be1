// The header of a safetensors file, taken apart and held to the bytes that follow it.
//
// Each entry is checked when its object ends, in its place in the list of tensors: a header of a
// million entries takes no second list. The end checks that the tensors, in the order of their
// data, lie one right behind the other.
#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "io/checked.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_internal.h"

namespace tinyshard::io {
namespace {

constexpr size_t kMaxSafetensorsDims = 64;

struct SafetensorsType {
  std::string_view name;
  DType dtype;
};
constexpr SafetensorsType kSafetensorsTypes[] = {
    {"BOOL", DType::Bool},
    {"I8", DType::I8},
    {"I16", DType::I16},
    {"I32", DType::I32},
    {"I64", DType::I64},
    {"U8", DType::U8},
    {"U16", DType::U16},
    {"U32", DType::U32},
    {"U64", DType::U64},
    {"F16", DType::F16},
    {"BF16", DType::BF16},
    {"F32", DType::F32},
    {"F64", DType::F64},
    {"F8_E4M3", DType::F8E4M3FN},
    {"F8_E5M2", DType::F8E5M2},
    {"F8_E4M3FNUZ", DType::F8E4M3FNUZ},
    {"F8_E5M2FNUZ", DType::F8E5M2FNUZ},
};

// Types of the format that have no values here: a file may hold them beside others.
constexpr std::string_view kUnreadTypes[] = {"C64", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4"};

// Takes the header apart while it is parsed.
class HeaderReader final : public JsonReader {
 public:
  HeaderReader(std::span<const std::byte> data, uint64_t header_bytes) : data_(data) {
    header.header_bytes = header_bytes;
    first_byte = 8;
    // An entry takes more than 48 bytes of text, so this is room for all. Pages of the list that
    // stay empty cost nothing, as nobody touches them.
    header.tensors.reserve(static_cast<size_t>(header_bytes / 48 + 1));
  }

  SafetensorsHeader header;       // tensors in the order of the text
  bool failed_in_tensor = false;  // the last of them is what error() speaks of

  bool key(string_t& text) override {
    switch (at_) {
      case At::Top:
        key_ = std::move(text);
        return true;
      case At::Metadata:
        if (header.metadata.contains(text)) {
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
          header.tensors.emplace_back().name = std::move(key_);
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
      if (!place()) return false;
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
    if (field_ == kOffsets) {
      if (numbers_ < 2) (numbers_ == 0 ? begin_ : end_) = value;
    } else {
      std::vector<int64_t>& shape = header.tensors.back().shape;
      if (value > INT64_MAX) return fail_tensor(fmt::format("has a dimension of {}", value));
      if (shape.size() == kMaxSafetensorsDims) {
        return fail_tensor(fmt::format("has more than {} dimensions", kMaxSafetensorsDims));
      }
      shape.push_back(static_cast<int64_t>(value));
    }
    ++numbers_;
    return true;
  }

  bool string(string_t& text) override {
    if (at_ == At::Metadata) {
      header.metadata.emplace(std::move(key_), std::move(text));
      return true;
    }
    if (at_ != At::Tensor || field_ != kDtype) return misplaced("a string");
    const auto dtype = dtype_of_safetensors(text);
    const bool has_name = std::ranges::find(kUnreadTypes, text) != std::end(kUnreadTypes);
    if (!dtype && !has_name)
      return fail_tensor(fmt::format("has element type {}, which is not known", in_quotes(text)));
    if (dtype) header.tensors.back().dtype = *dtype;
    if (!dtype) header.tensors.back().other_type = text;
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

 private:
  enum class At { Start, Top, Metadata, Tensor, Array, End };
  static constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
  static constexpr size_t kDtype = 0, kOffsets = 2;

  bool fail_tensor(const std::string& why) {
    failed_in_tensor = true;
    return fail(fmt::format("tensor {} {}", in_quotes(header.tensors.back().name), why));
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

  // Finds the bytes of the entry that ends here, if they can be its bytes.
  bool place() {
    TensorEntry& entry = header.tensors.back();
    if (end_ < begin_ || end_ > data_.size()) {
      return fail_tensor(fmt::format("has data_offsets {} to {}, the file has {} bytes of data",
                                     begin_, end_, data_.size()));
    }
    const auto bytes = checked_bytes(entry.shape, itemsize(entry.dtype));
    if (!bytes) {
      return fail_tensor(
          fmt::format("has a shape too large for any memory, {}", shape_text(entry.shape)));
    }
    if (*bytes != end_ - begin_ && entry.other_type.empty()) {
      return fail_tensor(fmt::format("is {} {}, which takes {} bytes, but its data_offsets give {}",
                                     safetensors_name(entry.dtype), shape_text(entry.shape), *bytes,
                                     end_ - begin_));
    }
    entry.bytes = data_.subspan(static_cast<size_t>(begin_), static_cast<size_t>(end_ - begin_));
    entry.offset = header.header_bytes + begin_;
    return true;
  }

  std::span<const std::byte> data_;
  At at_ = At::Start;
  std::string key_;
  size_t field_ = 0, numbers_ = 0;
  uint64_t begin_ = 0, end_ = 0;  // of the current entry, in data_
  bool seen_[3] = {};
};

}  // namespace

std::optional<DType> dtype_of_safetensors(std::string_view name) {
  for (const SafetensorsType& type : kSafetensorsTypes) {
    if (type.name == name) return type.dtype;
  }
  return std::nullopt;
}

std::string_view safetensors_name(DType dtype) {
  for (const SafetensorsType& type : kSafetensorsTypes) {
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
  if (size == 0 || text[0] != '{') throw fail("at byte 8: its header does not begin with {");

  const std::span<const std::byte> data = file.subspan(8 + size);
  HeaderReader reader(data, 8 + length);
  if (!read_json({text, size}, reader)) {
    // JSON is read without its positions; the entry is found again where its name needs no escapes.
    constexpr size_t kLongest = 4096;
    const std::string_view whole(text, size);
    size_t at = whole.npos;
    if (reader.failed_in_tensor && reader.header.tensors.back().name.size() <= kLongest) {
      const std::string& name = reader.header.tensors.back().name;
      at = std::min(whole.find(fmt::format("\"{}\":{{", name)),
                    whole.find(fmt::format("\"{}\": {{", name)));
    }
    const bool found = at != whole.npos;
    throw fail(fmt::format("header{}: {}", found ? fmt::format(", at byte {}", 8 + at) : "",
                           reader.error()));
  }

  SafetensorsHeader header = std::move(reader.header);
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              if (a.offset != b.offset) return a.offset < b.offset;
              if (a.bytes.size() != b.bytes.size()) return a.bytes.size() < b.bytes.size();
              return a.name < b.name;
            });
  uint64_t position = 0;
  for (const TensorEntry& entry : header.tensors) {
    const auto fail_tensor = [&](std::string_view why) {
      return fail(
          fmt::format("at byte {}: tensor {} {}", entry.offset, in_quotes(entry.name), why));
    };
    const uint64_t begin = entry.offset - header.header_bytes;
    if (begin < position) {
      throw fail_tensor(fmt::format("begins at {}, inside of the tensor before it", begin));
    }
    if (begin > position) {
      throw fail_tensor(
          fmt::format("begins at {}, after a gap of {} bytes", begin, begin - position));
    }
    position = begin + entry.bytes.size();
  }
  if (position != data.size()) {
    throw fail(fmt::format("{} bytes follow the last tensor", data.size() - position));
  }
  return header;
}

}  // namespace tinyshard::io
