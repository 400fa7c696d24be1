// A tar archive: "storages" and "tensors", both of pickles with bytes between them, and "pickle",
// which names tensors by number.
#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "io/byte_reader.h"
#include "io/checked.h"
#include "io/torch_internal.h"

namespace tinyshard::io {
namespace {

using Id = Pickle::Id;
using Kind = Pickle::Kind;

std::map<std::string, std::pair<uint64_t, uint64_t>> tar_members(std::span<const std::byte> file,
                                                                 std::string_view label) {
  std::map<std::string, std::pair<uint64_t, uint64_t>> out;  // offset and size
  ByteReader in(file, label);
  while (in.left() >= 512) {
    const uint64_t at = in.offset();
    const std::string_view header = in.text(512, "a tar header");
    if (header[0] == '\0') break;
    std::string name(header.substr(
        0, header.substr(0, 100).find('\0') == header.npos ? 100 : header.find('\0')));
    uint64_t size = 0;
    for (const char digit : header.substr(124, 12)) {
      if (digit == '\0' || digit == ' ') continue;
      if (digit < '0' || digit > '7' || size >> 60)
        throw in.fail_at(at, "a tar member whose size is no number");
      size = size * 8 + static_cast<uint64_t>(digit - '0');
    }
    if (name.starts_with("./")) name.erase(0, 2);
    const uint64_t begin = in.offset();
    in.take(size, fmt::format("tar member {}", in_quotes(name)));
    in.take(std::min((512 - size % 512) % 512, in.left()), "padding");
    const char type = header[156];
    if (type == '0' || type == '\0') out.insert_or_assign(name, std::pair(begin, size));
    if (out.size() > 64) throw in.fail_at(at, "not a torch file: a tar archive of many members");
  }
  return out;
}

class TarCollector final : public Collector {
 public:
  TarCollector(const Pickle& pickle, std::string_view label, Budget& budget, TorchFile& out)
      : Collector(pickle, label, budget, out) {}

  // The files "storages" and "tensors" of the archive.
  void read_storages(ByteReader in, Budget& budget) {
    const int64_t count = number(in, budget);
    for (int64_t i = 0; i < count; ++i) {
      const Pickle row(in, budget, is_allowed);
      const std::vector<Id>& items = tuple(row, row.root(), 3, in);
      const auto dtype =
          row.kind(items[2]) == Kind::Global ? type_of_storage(row.text(items[2])) : std::nullopt;
      if (!dtype) throw in.fail("a storage of no known type");
      const auto elements = in.number<uint64_t>("the size of a storage");
      const auto bytes = checked_mul(elements, itemsize(*dtype));
      if (!bytes) throw in.fail("a storage is too large for any memory");
      const uint64_t begin = in.offset();
      in.take(*bytes, "a storage");
      budget.charge(128);
      storages_.insert_or_assign(integer(row, items[0], in),
                                 Stored{dtype, {begin, *bytes, nullptr}});
    }
    const Pickle views(in, budget, is_allowed);
    if (views.kind(views.root()) != Kind::List) throw in.fail("the views of storages are no list");
    for (const Id row : views.items(views.root())) {
      const std::vector<Id>& items = tuple(views, row, 4, in);
      const auto root = storages_.find(integer(views, items[1], in));
      if (root == storages_.end()) throw in.fail("a view of a storage that is not there");
      const uint64_t size = itemsize(*root->second.dtype);
      const int64_t begin = integer(views, items[2], in), length = integer(views, items[3], in);
      const auto end = begin < 0 || length < 0 ? std::nullopt
                                               : checked_add(static_cast<uint64_t>(begin),
                                                             static_cast<uint64_t>(length));
      if (!end || *end > root->second.elements.size / size)
        throw in.fail("a view reaches beyond its storage");
      budget.charge(128);
      storages_.insert_or_assign(
          integer(views, items[0], in),
          Stored{root->second.dtype,
                 {root->second.elements.offset + static_cast<uint64_t>(begin) * size,
                  static_cast<uint64_t>(length) * size, nullptr}});
    }
  }
  void read_tensors(ByteReader in, Budget& budget) {
    const int64_t count = number(in, budget);
    for (int64_t i = 0; i < count; ++i) {
      const Pickle row(in, budget, is_allowed);
      const std::vector<Id>& items = tuple(row, row.root(), 3, in);
      const auto found = storages_.find(integer(row, items[1], in));
      if (found == storages_.end()) throw in.fail("a tensor of a storage that is not there");
      const auto dims = in.number<uint32_t>("the number of dims");
      in.take(4, "padding");
      if (dims > kMaxDepth) throw in.fail(fmt::format("a tensor of {} dims", dims));
      std::vector<int64_t> lists[2];
      for (std::vector<int64_t>& list : lists) {
        for (uint32_t d = 0; d < dims; ++d) {
          list.push_back(in.number<int64_t>("a size"));
          if (list.back() < 0) throw in.fail("a negative size or stride");
        }
      }
      const auto offset = in.number<uint64_t>("an offset");
      budget.charge(256);
      tensors_.insert_or_assign(integer(row, items[0], in), view(found->second, offset, lists[0],
                                                                 lists[1], fmt::format("#{}", i)));
    }
  }

 private:
  static int64_t number(ByteReader& in, Budget& budget) {
    const Pickle count(in, budget, is_allowed);
    return integer(count, count.root(), in);
  }
  static int64_t integer(const Pickle& pickle, Id id, const ByteReader& in) {
    if (pickle.kind(id) != Kind::Int) throw in.fail("a number is wanted");
    return pickle.integer(id);
  }
  static const std::vector<Id>& tuple(const Pickle& pickle, Id id, size_t count,
                                      const ByteReader& in) {
    if (pickle.kind(id) != Kind::Tuple || pickle.items(id).size() != count)
      throw in.fail(fmt::format("a tuple of {} is wanted", count));
    return pickle.items(id);
  }

  Stored storage(Id, std::string_view path) override {
    throw fail(path, "a tar archive names tensors, not storages");
  }
  std::optional<TorchTensor> tensor_of(Id persistent, std::string_view path) override {
    const Id id = pickle_.items(persistent)[0];
    int64_t key = -1;
    if (pickle_.kind(id) == Kind::Int) key = pickle_.integer(id);
    if (pickle_.kind(id) == Kind::Text) {
      for (const char digit : pickle_.text(id)) {
        if (digit < '0' || digit > '9' || key > INT64_MAX / 10 - 1)
          throw fail(path, "it is named by no number");
        key = std::max<int64_t>(key, 0) * 10 + (digit - '0');
      }
    }
    const auto found = tensors_.find(key);
    if (found == tensors_.end()) throw fail(path, "the archive has no such tensor");
    return found->second;
  }

  std::map<int64_t, Stored> storages_;
  std::map<int64_t, TorchTensor> tensors_;
};

}  // namespace

bool is_tar(std::span<const std::byte> file) {
  return file.size() >= 512 && std::memcmp(file.data() + 257, "ustar", 5) == 0;
}

void parse_tar(std::span<const std::byte> file, std::string_view label, Budget& budget,
               TorchFile& out) {
  const auto members = tar_members(file, label);
  const auto reader = [&](const char* name) {
    const auto found = members.find(name);
    if (found == members.end())
      throw FormatError(label,
                        fmt::format("not a torch file: a tar archive without {}", in_quotes(name)));
    const auto [offset, size] = found->second;
    return ByteReader(file.subspan(static_cast<size_t>(offset), static_cast<size_t>(size)), label,
                      offset);
  };
  ByteReader in = reader("pickle");
  const Pickle object(in, budget, is_allowed);
  TarCollector collector(object, label, budget, out);
  collector.read_storages(reader("storages"), budget);
  collector.read_tensors(reader("tensors"), budget);
  collector.collect();
}

}  // namespace tinyshard::io
