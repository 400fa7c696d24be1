// A zip archive: data.pkl, and the storages as data/<key>.
#include <fmt/format.h>

#include "io/byte_reader.h"
#include "io/torch_internal.h"
#include "io/zip.h"

namespace tinyshard::io {
namespace {

using Id = Pickle::Id;

class ZipCollector final : public Collector {
 public:
  ZipCollector(const Pickle& pickle, std::string_view label, Budget& budget, TorchFile& out,
               std::span<const std::byte> file,
               const std::map<std::string_view, ZipMember>& members, std::string prefix)
      : Collector(pickle, label, budget, out),
        file_(file),
        members_(members),
        prefix_(std::move(prefix)) {}

 private:
  Stored storage(Id persistent, std::string_view path) override {
    const StorageId id = storage_id(pickle_, persistent, label_);
    const std::string name = prefix_ + "data/" + std::string(id.key);
    const auto found = members_.find(name);
    if (found == members_.end())
      throw fail(path, fmt::format("the archive has no member {}", in_quotes(name)));
    const ZipMember& member = found->second;
    if (const uint64_t wanted = bytes_of(id, label_); member.size < wanted) {
      throw fail(path, fmt::format("its storage takes {} bytes, member {} at byte {} has {}",
                                   wanted, in_quotes(name), member.offset, member.size));
    }
    if (!member.deflated) return {id.dtype, {member.offset, member.size}, id.other_type};
    Bytes& bytes = inflated_[found->first];
    if (!bytes && !budget_.has(member.size)) {  // zeros, say: see parse_npz
      std::shared_ptr<const PackedMember>& packed = packed_[found->first];
      budget_.charge(sizeof(PackedMember) + name.size());
      if (!packed) packed = std::make_shared<const PackedMember>(later(member, label_));
      return {id.dtype, {0, member.size, nullptr, packed}, id.other_type};
    }
    if (!bytes)
      bytes =
          std::make_shared<const std::vector<std::byte>>(inflated(file_, member, label_, budget_));
    return {id.dtype, {0, member.size, bytes}, id.other_type};
  }

  std::span<const std::byte> file_;
  const std::map<std::string_view, ZipMember>& members_;
  std::string prefix_;
  std::map<std::string_view, Bytes> inflated_;
  std::map<std::string_view, std::shared_ptr<const PackedMember>> packed_;
};

}  // namespace

void parse_zip(std::span<const std::byte> file, std::string_view label, Budget& budget,
               TorchFile& out) {
  std::map<std::string_view, ZipMember> members;
  std::optional<ZipMember> pickle_member;
  for (const ZipMember& member : zip_members(file, label, budget)) {
    budget.charge(sizeof(ZipMember) + 64);
    if (!members.emplace(member.name, member).second)
      throw FormatError(label, fmt::format("at byte {}: member {} stands twice in the archive",
                                           member.offset, in_quotes(member.name)));
    const bool is_pickle = member.name == "data.pkl" || member.name.ends_with("/data.pkl");
    if (is_pickle && (!pickle_member || member.name.size() < pickle_member->name.size()))
      pickle_member = member;
  }
  if (!pickle_member)
    throw FormatError(label,
                      fmt::format("not a torch file: a zip archive of {} members without data.pkl",
                                  members.size()));
  const std::string prefix(pickle_member->name.substr(
      0, pickle_member->name.size() - std::string_view("data.pkl").size()));
  std::vector<std::byte> unpacked;
  const auto contents = [&](const ZipMember& member) {
    if (member.deflated)
      return std::span<const std::byte>(unpacked = inflated(file, member, label, budget));
    return file.subspan(static_cast<size_t>(member.offset), static_cast<size_t>(member.stored));
  };
  if (const auto order = members.find(prefix + "byteorder"); order != members.end()) {
    const auto bytes = contents(order->second);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (text != "little")
      throw FormatError(label, fmt::format("at byte {}: byte order {}, only little is read",
                                           order->second.offset, in_quotes(text)));
  }
  ByteReader in(contents(*pickle_member), label,
                pickle_member->deflated ? 0 : pickle_member->offset);
  const Pickle pickle(in, budget, is_allowed);
  ZipCollector(pickle, label, budget, out, file, members, prefix).collect();
}

}  // namespace tinyshard::io
