// A sequence of pickles: a magic number, a version, facts of the system, the object, the list of
// keys; then for each key the number of elements and the elements.
#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "io/byte_reader.h"
#include "io/checked.h"
#include "io/torch_internal.h"

namespace tinyshard::io {
namespace {

using Id = Pickle::Id;
using Kind = Pickle::Kind;

class PicklesCollector final : public Collector {
 public:
  PicklesCollector(const Pickle& pickle, std::string_view label, Budget& budget, TorchFile& out,
                   const std::map<std::string_view, Elements>& storages)
      : Collector(pickle, label, budget, out), storages_(storages) {}

 private:
  Stored storage(Id persistent, std::string_view path) override {
    const StorageId id = storage_id(pickle_, persistent, label_);
    const auto found = storages_.find(id.key);
    if (found == storages_.end())
      throw fail(path, fmt::format("the file has no storage {}", in_quotes(id.key)));
    if (bytes_of(id, label_) > found->second.size)
      throw fail(path, fmt::format("its storage at byte {} is said to have {} elements",
                                   found->second.offset, id.elements));
    return {id.dtype, found->second, id.other_type};
  }

  const std::map<std::string_view, Elements>& storages_;
};

// Finds the type of each storage: it stands in the persistent ids only.
void find_types(const Pickle& pickle, Id id, std::map<std::string_view, uint64_t>& widths,
                std::string_view label, Budget& budget, size_t depth) {
  budget.charge(sizeof(Id));
  if (depth > 2 * kMaxDepth) throw FormatError(label, "containers are nested too deeply");
  switch (pickle.kind(id)) {
    case Kind::Persistent: {
      const StorageId storage = storage_id(pickle, id, label);
      const uint64_t width = width_of(storage);
      if (widths.emplace(storage.key, width).first->second != width)
        throw FormatError(label, fmt::format("storage {} has two types", in_quotes(storage.key)));
      return;
    }
    case Kind::List:
    case Kind::Tuple:
    case Kind::Dict:
    case Kind::Call:
      for (const Id item : pickle.items(id))
        find_types(pickle, item, widths, label, budget, depth + 1);
      return;
    default:
      return;
  }
}

}  // namespace

bool is_pickles(std::span<const std::byte> file) {
  // 0x1950a86a20f9469cfc6c as the protocols write it: 0 and 1 in decimal digits, 2 and later as
  // PROTO and LONG1 of ten bytes, 4 and later with a FRAME of eight bytes between the two.
  constexpr std::string_view kDigits = "L119547037146038801333356L\n.";
  constexpr std::string_view kBytes = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.";
  std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.starts_with(kDigits)) return true;
  if (text.size() < 2 || text[0] != '\x80') return false;
  text.remove_prefix(2);
  if (text.starts_with('\x95')) text.remove_prefix(std::min<size_t>(9, text.size()));
  return text.starts_with(kBytes);
}

void parse_pickles(std::span<const std::byte> file, std::string_view label, Budget& budget,
                   TorchFile& out) {
  ByteReader in(file, label);
  const auto next = [&] { return Pickle(in, budget, is_allowed); };
  next();  // the magic number
  const Pickle version = next();
  if (version.kind(version.root()) != Kind::Int || version.integer(version.root()) != 1001)
    throw in.fail("not the version 1001 of the torch format");
  next();  // facts of the system
  const Pickle object = next(), keys = next();
  if (keys.kind(keys.root()) != Kind::List) throw in.fail("the keys of storages are no list");
  std::map<std::string_view, uint64_t> widths;
  find_types(object, object.root(), widths, label, budget, 0);
  std::map<std::string_view, Elements> storages;
  for (const Id key : keys.items(keys.root())) {
    if (keys.kind(key) != Kind::Text) throw in.fail("the key of a storage is no text");
    const std::string_view name = keys.text(key);
    const uint64_t at = in.offset();
    const auto elements = in.number<uint64_t>("the size of a storage");
    const auto width = widths.find(name);
    if (width == widths.end())
      throw in.fail_at(at, fmt::format("nothing says the type of storage {}", in_quotes(name)));
    const auto bytes = checked_mul(elements, width->second);
    if (!bytes)
      throw in.fail_at(at, fmt::format("storage {} has {} elements", in_quotes(name), elements));
    const uint64_t begin = in.offset();
    in.take(*bytes, fmt::format("storage {}", in_quotes(name)));
    budget.charge(128);
    if (!storages.emplace(name, Elements{begin, *bytes, nullptr}).second)
      throw in.fail_at(at, fmt::format("storage {} stands twice", in_quotes(name)));
  }
  PicklesCollector(object, label, budget, out, storages).collect();
}

}  // namespace tinyshard::io
