// Reader and writer of safetensors files, and of sets of them behind model.safetensors.index.json.
// A file is untrusted: every size is checked against the bytes that are there, with arithmetic that
// cannot wrap; nothing is allocated that the file is too small for. Names, element types, shapes
// and bytes only; the layer above makes tensors of them. Reading is const and may be done by many
// threads.
//
// The format: u64 little-endian header size; a JSON object name -> {dtype, shape, data_offsets}
// with an optional "__metadata__" of strings, padded with spaces; then the data. The reader holds
// files to the letter of it: no gaps, no overlap, nothing after the last tensor, no name twice, at
// most 100 MB of header. It throws FormatError.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"
#include "core/dtype/dtype.h"
#include "io/atomic_file.h"
#include "io/errors.h"

namespace tinyshard::io {

using Metadata = std::map<std::string, std::string>;

// The format's spelling of an element type: "F32", "BOOL". Index has none (InternalError).
std::string_view safetensors_name(DType dtype);
std::optional<DType> dtype_of_safetensors(std::string_view name);

struct TensorEntry {
  std::string name;
  DType dtype = DType::F32;
  std::string other_type;  // of a type that is not known here: its name; `dtype` says nothing
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // row-major; not necessarily aligned to the element
  uint64_t offset = 0;               // of bytes, from the start of the file
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // in the order of their data
  Metadata metadata;
  uint64_t header_bytes = 0;  // what precedes the data, the length field included
};

// Checks the bytes of a whole file; `label` names it in errors. The spans point into `file`.
SafetensorsHeader parse_safetensors(std::span<const std::byte> file, std::string_view label);

// A file, mapped. Bytes are read from the disk when they are touched.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorEntry>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }
  uint64_t header_bytes() const { return header_.header_bytes; }
  std::span<const std::byte> file_bytes() const { return map_.bytes(); }

  const TensorEntry* find(std::string_view name) const;  // nullptr if it is not there
  const TensorEntry& at(std::string_view name) const;    // UserError, with the nearest name

 private:
  std::filesystem::path path_;
  MappedFile map_;
  SafetensorsHeader header_;
  std::vector<uint32_t> by_name_;
};

// A file, an index (*.index.json) with the files it names, or a folder that holds one of
// model.safetensors.index.json, model.safetensors or exactly one *.safetensors. The index decides
// which file a name comes from; tensors it does not mention are not part of the set.
class SafetensorsSet {
 public:
  explicit SafetensorsSet(const std::filesystem::path& path);

  const std::vector<const TensorEntry*>& tensors() const { return tensors_; }  // sorted by name
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const Metadata& metadata() const { return metadata_; }

  const TensorEntry* find(std::string_view name) const;
  const TensorEntry& at(std::string_view name) const;

 private:
  void open_file(const std::filesystem::path& path);
  void open_index(const std::filesystem::path& path);

  std::filesystem::path path_;
  std::vector<SafetensorsFile> files_;
  std::vector<const TensorEntry*> tensors_;
  Metadata metadata_;
};

// A tensor to write: `bytes` is borrowed until the writing function returns.
struct TensorView {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
};

// Lays out a file: its beginning, length of the header included, and where the bytes of each tensor
// lie, in the order of `tensors`. Ranks that write parts of tensors at their places use it. Data
// starts at a multiple of 64, larger elements first, so that each tensor is aligned to its element;
// equal input gives an equal layout. UserError: a name twice or reserved, a shape that is too
// large.
struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;
};
struct SafetensorsLayout {
  std::string header;
  std::vector<uint64_t> offsets;
  uint64_t bytes = 0;  // of the file
};
SafetensorsLayout layout_safetensors(std::span<const TensorInfo> tensors,
                                     const Metadata& metadata = {});

// The text of model.safetensors.index.json: the bytes of all tensors, and the file of each.
std::string index_text(uint64_t total_bytes, const std::map<std::string, std::string>& file_of,
                       const Metadata& metadata = {});

// Streams the tensors to `file`, which the caller commits; equal input gives equal bytes. UserError
// as above, and for a size that does not match the shape.
void write_safetensors(AtomicFile& file, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});
// Writes the file at `path`, whole or not at all.
void write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                       const Metadata& metadata = {});

// The name most like `name` among the sorted or unsorted `names`, or nothing if none is near.
std::string nearest_name(std::string_view name, std::span<const std::string_view> names);

}  // namespace tinyshard::io
