// A zip archive is read from its end: the last record says where the central directory is, and that
// says where each member begins.
//
//   [local header, name, data] ...   [directory entry, name] ...   [zip64 end]  [end record]
#include "io/zip.h"

#include <zlib.h>

#include "io/byte_reader.h"
#include "io/checked.h"

namespace tinyshard::io {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr uint64_t kEndBytes = 22, kLocatorBytes = 20;

struct Directory {
  uint64_t offset, size, entries;
};

uint32_t word(std::span<const std::byte> file, uint64_t at) {
  uint32_t value;
  std::memcpy(&value, file.data() + at, sizeof value);
  return value;
}

// Where the end record begins: a comment of up to 64 KiB may follow it.
uint64_t find_end(std::span<const std::byte> file, ByteReader& in) {
  if (file.size() >= kEndBytes) {
    const uint64_t first = file.size() - std::min<uint64_t>(file.size(), kEndBytes + 0xffff);
    for (uint64_t at = file.size() - kEndBytes + 1; at-- > first;) {
      if (word(file, at) == kEnd) return at;
    }
  }
  throw in.fail_at(file.size(), "a zip archive without its table of contents: it ends too early");
}

Directory find_directory(std::span<const std::byte> file, std::string_view label) {
  ByteReader in(file, label);
  const uint64_t end = find_end(file, in);
  in.seek(end + 4);
  const auto disk = in.number<uint16_t>("a disk"), start = in.number<uint16_t>("a disk");
  in.number<uint16_t>("a count");
  Directory out{};
  out.entries = in.number<uint16_t>("a count");
  out.size = in.number<uint32_t>("a size");
  out.offset = in.number<uint32_t>("an offset");
  if (disk != start) throw in.fail_at(end, "a zip archive on several disks");
  const bool large = out.entries == 0xffff || out.size == 0xffffffff || out.offset == 0xffffffff;
  if (!large || end < kLocatorBytes || word(file, end - kLocatorBytes) != kEnd64Locator) return out;
  in.seek(end - kLocatorBytes + 8);
  in.seek(in.number<uint64_t>("an offset"));
  const uint64_t at = in.offset();
  if (in.number<uint32_t>("a record") != kEnd64) throw in.fail_at(at, "no zip64 record");
  in.take(20, "a zip64 record");
  in.number<uint64_t>("a count");
  out.entries = in.number<uint64_t>("a count");
  out.size = in.number<uint64_t>("a size");
  out.offset = in.number<uint64_t>("an offset");
  return out;
}

// Sizes that do not fit 32 bits stand in an extra field, those that do not fit only.
void read_large(ByteReader extra, ZipMember& member, uint64_t& local) {
  while (extra.left() >= 4) {
    const auto id = extra.number<uint16_t>("a field"), bytes = extra.number<uint16_t>("a size");
    const uint64_t base = extra.offset();
    ByteReader field(extra.take(bytes, "an extra field"), "", base);
    if (id != 1) continue;
    for (uint64_t* value : {&member.size, &member.stored, &local}) {
      if (*value == 0xffffffff && field.left() >= 8) *value = field.number<uint64_t>("a size");
    }
  }
}

// A stream of deflated bytes, read in turn.
class Inflater {
 public:
  Inflater(std::span<const std::byte> stored, std::string_view name, uint64_t offset,
           std::string_view label)
      : stored_(stored), name_(name), offset_(offset), label_(label) {
    if (inflateInit2(&stream_, -MAX_WBITS) != Z_OK) throw fail("cannot be inflated: no memory");
  }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
  ~Inflater() { inflateEnd(&stream_); }

  // Fills `out` as far as there is something; returns how far.
  uint64_t read(std::span<std::byte> out) {
    // zlib counts in 32 bits: both sides come in pieces.
    constexpr uint64_t kPiece = 1 << 30;
    uint64_t written = 0;
    Bytef none = 0;  // zlib wants an address for no bytes, too
    while (status_ == Z_OK) {
      stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(stored_.data() + read_));
      stream_.avail_in = static_cast<uInt>(std::min<uint64_t>(kPiece, stored_.size() - read_));
      stream_.next_out = out.empty() ? &none : reinterpret_cast<Bytef*>(out.data() + written);
      stream_.avail_out = static_cast<uInt>(std::min<uint64_t>(kPiece, out.size() - written));
      const uInt in_before = stream_.avail_in, out_before = stream_.avail_out;
      const int status = inflate(&stream_, Z_NO_FLUSH);
      read_ += in_before - stream_.avail_in;
      written += out_before - stream_.avail_out;
      if (status != Z_BUF_ERROR) status_ = status;
      // Nothing moved: `out` is full, or what is stored has ended.
      if (status == Z_BUF_ERROR && in_before == stream_.avail_in && out_before == stream_.avail_out)
        break;
    }
    return written;
  }
  bool at_end() const { return status_ == Z_STREAM_END; }

  FormatError fail(std::string_view why) const {
    return FormatError(label_,
                       fmt::format("at byte {}: member {} {}", offset_, in_quotes(name_), why));
  }

 private:
  std::span<const std::byte> stored_;
  std::string_view name_;
  uint64_t offset_;
  std::string_view label_;
  z_stream stream_{};
  int status_ = Z_OK;
  uint64_t read_ = 0;
};

}  // namespace

bool is_zip(std::span<const std::byte> file) {
  return file.size() >= 4 && (word(file, 0) == kLocal || word(file, 0) == kEnd);
}

std::vector<ZipMember> zip_members(std::span<const std::byte> file, std::string_view label,
                                   Budget& budget) {
  const Directory directory = find_directory(file, label);
  ByteReader in(file, label);
  in.seek(directory.offset);
  std::vector<ZipMember> out;
  for (uint64_t i = 0; i < directory.entries; ++i) {
    const uint64_t entry = in.offset();
    if (in.number<uint32_t>("a directory entry") != kEntry)
      throw in.fail_at(entry, fmt::format("entry {} of {} of the zip archive's contents is none", i,
                                          directory.entries));
    in.take(4, "versions");
    const auto flags = in.number<uint16_t>("flags"), method = in.number<uint16_t>("a method");
    in.take(8, "a date and a checksum");
    ZipMember member;
    member.stored = in.number<uint32_t>("a size");
    member.size = in.number<uint32_t>("a size");
    const auto name = in.number<uint16_t>("a size"), extra = in.number<uint16_t>("a size"),
               comment = in.number<uint16_t>("a size");
    in.take(8, "attributes");
    uint64_t local = in.number<uint32_t>("an offset");
    member.name = in.text(name, "a name");
    const uint64_t base = in.offset();
    read_large(ByteReader(in.take(extra, "extra fields"), label, base), member, local);
    in.take(comment, "a comment");

    const auto fail = [&](std::string_view why) {
      return in.fail_at(entry, fmt::format("member {} {}", in_quotes(member.name), why));
    };
    if (flags & 1) throw fail("is encrypted");
    if (method != 0 && method != 8)
      throw fail(fmt::format("is compressed by method {}; 0 and 8 are known", method));
    member.deflated = method == 8;
    if (!member.deflated && member.stored != member.size)
      throw fail("is stored, in another size than its own");
    ByteReader at(file, label);
    at.seek(local);
    if (at.number<uint32_t>("a local header") != kLocal)
      throw fail(fmt::format("does not begin at byte {}", local));
    at.take(22, "a local header");
    const uint64_t names = at.number<uint16_t>("a size");
    at.take(names + at.number<uint16_t>("a size"), "a local header");
    member.offset = at.offset();
    if (member.stored > at.left())
      throw fail(fmt::format("has {} bytes from byte {} on, {} are left", member.stored,
                             member.offset, at.left()));
    budget.charge(2 * sizeof(ZipMember));
    out.push_back(member);
  }
  return out;
}

std::vector<std::byte> inflated(std::span<const std::byte> file, const ZipMember& member,
                                std::string_view label, Budget& budget) {
  budget.charge(member.size);
  std::vector<std::byte> out(static_cast<size_t>(member.size));
  Inflater inflater(
      file.subspan(static_cast<size_t>(member.offset), static_cast<size_t>(member.stored)),
      member.name, member.offset, label);
  const uint64_t written = inflater.read(out);
  if (written != member.size || !inflater.at_end())
    throw inflater.fail(
        fmt::format("cannot be inflated: {} of {} bytes came out", written, member.size));
  return out;
}

PackedMember later(const ZipMember& member, std::string_view label) {
  constexpr uint64_t kMostTimes = 1032, kSlack = 64;  // of the format
  if (member.size > kSlack && (member.size - kSlack) / kMostTimes > member.stored)
    throw FormatError(
        label, fmt::format("at byte {}: member {} is said to have {} bytes, which {} deflated "
                           "ones cannot hold",
                           member.offset, in_quotes(member.name), member.size, member.stored));
  return {std::string(member.name), member.offset, member.stored};
}

void inflate_part(std::span<const std::byte> stored, const PackedMember& member,
                  std::string_view label, uint64_t from, std::span<std::byte> out) {
  Inflater inflater(stored, member.name, member.offset, label);
  std::vector<std::byte> passed_over(static_cast<size_t>(std::min<uint64_t>(from, 64 << 10)));
  for (uint64_t at = 0; at < from;) {
    const auto piece =
        std::span(passed_over)
            .first(static_cast<size_t>(std::min<uint64_t>(passed_over.size(), from - at)));
    const uint64_t got = inflater.read(piece);
    if (got < piece.size()) throw inflater.fail("cannot be inflated: it ends too early");
    at += got;
  }
  if (inflater.read(out) < out.size())
    throw inflater.fail(fmt::format("cannot be inflated to {} bytes", from + out.size()));
}

}  // namespace tinyshard::io
