#include "io/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <unordered_set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "io/checked.h"

namespace tinyshard::io {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

constexpr uint64_t kMaxHeader = 100'000'000;  // the reference implementation's limit
constexpr uint64_t kMaxIndex = 100'000'000;
constexpr size_t kMaxDims = 64;
constexpr uint64_t kAlignment = 64;  // of the data in files that we write
constexpr std::string_view kMetadataKey = "__metadata__";

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

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

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

// Writes text as a JSON string; a name that is not UTF-8 cannot be one.
std::string json_text(const std::string& text) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    throw UserError(fmt::format("safetensors: the name or value {} is not UTF-8", in_quotes(text)));
  }
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
  auto fail = [&](std::string_view why) {
    return FormatError(path.native(), fmt::format("not a valid index: {}", why));
  };
  const json index = json::parse(read_file(path, kMaxIndex), nullptr, false);
  if (index.is_discarded()) throw fail("it is not valid JSON");
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw fail("it has no object weight_map");
  }
  if (auto it = index.find("metadata"); it != index.end() && it->is_object()) {
    for (const auto& [key, value] : it->items()) {
      metadata_[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
  }
  std::map<std::string, std::vector<std::string>> names_of_file;
  for (const auto& [name, file] : index["weight_map"].items()) {
    if (!file.is_string())
      throw fail(fmt::format("weight_map of {} is not a file name", in_quotes(name)));
    const std::string& file_name = file.get_ref<const std::string&>();
    // A plain name: an index must not lead out of its own folder.
    if (file_name.empty() || file_name.find('/') != file_name.npos || file_name == "." ||
        file_name == ".." || file_name.find('\0') != file_name.npos) {
      throw fail(fmt::format("weight_map of {} is {}, which is not the name of a file beside it",
                             in_quotes(name), in_quotes(file_name)));
    }
    names_of_file[file_name].push_back(name);
  }
  files_.reserve(names_of_file.size());
  for (const auto& [file_name, names] : names_of_file) {
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
