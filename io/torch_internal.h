// Shared by the three kinds of PyTorch's files: tensors that a pickle rebuilds from storages, and
// the names in it that are allowed. See torch_file.cpp.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/budget.h"
#include "io/pickle.h"
#include "io/torch_file.h"

namespace tinyshard::io {

// Returns whether a pickle may name this: only names that a state dict needs are allowed.
bool is_allowed(std::string_view name);

inline constexpr size_t kMaxDepth = 64;  // containers inside of each other

using Bytes = std::shared_ptr<const std::vector<std::byte>>;

// Elements of a storage: bytes of the file, or inflated ones.
struct Elements {
  uint64_t offset = 0, size = 0;  // in bytes
  Bytes bytes = nullptr;
  std::shared_ptr<const PackedMember> packed = nullptr;
};

// A tensor or a storage that a persistent id stands for.
struct Stored {
  std::optional<DType> dtype;  // none: bytes, whose type the tensor says
  Elements elements;
  std::string other_type = {};  // one that is not known here, "torch.complex64"
};

// Walks over what a pickle made and collects tensors and other leaves.
class Collector {
 public:
  Collector(const Pickle& pickle, std::string_view label, Budget& budget, TorchFile& out)
      : pickle_(pickle), label_(label), budget_(budget), out_(out) {}
  virtual ~Collector() = default;

  void collect() { visit(pickle_.root(), {}, 0); }

 protected:
  FormatError fail(std::string_view path, std::string_view why) const;
  // The storage that a persistent id names, or a tensor where the format has such ids.
  virtual Stored storage(Pickle::Id persistent, std::string_view path) = 0;
  virtual std::optional<TorchTensor> tensor_of(Pickle::Id, std::string_view) {
    return std::nullopt;
  }

  // A view of that storage, checked to lie inside of it. Offset and strides are in elements.
  TorchTensor view(const Stored& from, uint64_t begin, std::vector<int64_t> shape,
                   std::vector<int64_t> strides, std::string_view path) const;

  const Pickle& pickle_;
  std::string_view label_;
  Budget& budget_;
  TorchFile& out_;

 private:
  std::string name_of(Pickle::Id key, std::string_view path);
  std::string join(std::string_view path, std::string_view name);

  void visit(Pickle::Id id, const std::string& path, size_t depth);
  void visit_all(const std::vector<Pickle::Id>& items, const std::string& path, size_t depth);

  void leaf(const std::string& path, Value value);
  // The bytes that a text in UTF-8 spells as letters up to 255.
  std::string latin1(std::string_view text, std::string_view path);
  void add(const std::string& path, TorchTensor tensor);

  void visit_call(std::string_view name, const std::vector<Pickle::Id>& arguments,
                  const std::string& path, size_t depth);

  // Whole numbers of a tuple, none negative.
  std::vector<int64_t> sizes(Pickle::Id id, const char* what, std::string_view path);

  // True if the dict behind the arguments of a tensor says so: {"neg": True}.
  bool is_negative(Pickle::Id metadata, std::string_view path) const;
  TorchTensor rebuilt(const std::vector<Pickle::Id>& arguments, bool typed, std::string_view path);
  // A tensor of that kind, which has no values here.
  TorchTensor refused(std::string_view kind, std::vector<int64_t> shape,
                      std::string_view path) const;
};

// Persistent ids of the zip archive and of the sequence of pickles:
// ('storage', type, key, location, elements, view of another storage or None)
struct StorageId {
  std::optional<DType> dtype;
  std::string_view key;
  uint64_t elements = 0;
  std::string other_type = {};  // as in Stored
};
uint64_t width_of(const StorageId& id);  // bytes of an element

StorageId storage_id(const Pickle& pickle, Pickle::Id persistent, std::string_view label);
uint64_t bytes_of(const StorageId& id, std::string_view label);
// The type of a class of storages: "torch FloatStorage".
std::optional<DType> type_of_storage(std::string_view name);

bool is_tar(std::span<const std::byte> file);
// Returns whether it begins with the magic number of a sequence of pickles.
bool is_pickles(std::span<const std::byte> file);

void parse_zip(std::span<const std::byte> file, std::string_view label, Budget& budget,
               TorchFile& out);
void parse_pickles(std::span<const std::byte> file, std::string_view label, Budget& budget,
                   TorchFile& out);
void parse_tar(std::span<const std::byte> file, std::string_view label, Budget& budget,
               TorchFile& out);

}  // namespace tinyshard::io
