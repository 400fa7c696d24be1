// The header of a .npy file is a Python dict, of which exactly this form is taken:
//
//   \x93NUMPY 1 0 <u16 size> {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
#include "io/npy.h"

#include <charconv>
#include <optional>

#include <fmt/ranges.h>

#include "io/budget.h"
#include "io/byte_reader.h"
#include "io/checked.h"
#include "io/zip.h"

namespace tinyshard::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMaxNpyDims = 64;

struct NpyType {
  std::string_view name;
  DType dtype;
};
constexpr NpyType kNpyTypes[] = {
    {"b1", DType::Bool}, {"i1", DType::I8},  {"i2", DType::I16}, {"i4", DType::I32},
    {"i8", DType::I64},  {"u1", DType::U8},  {"u2", DType::U16}, {"u4", DType::U32},
    {"u8", DType::U64},  {"f2", DType::F16}, {"f4", DType::F32}, {"f8", DType::F64},
};

class HeaderText {
 public:
  HeaderText(std::string_view text, const ByteReader& in, uint64_t base)
      : text_(text), in_(in), base_(base) {}

  void read(NpyArray& out) {
    bool seen[3] = {};
    need('{');
    while (!take('}')) {
      const std::string_view key = quoted();
      need(':');
      const size_t field = key == "descr" ? 0 : key == "fortran_order" ? 1 : key == "shape" ? 2 : 3;
      if (field == 3) throw fail(fmt::format("field {}, which no array has", in_quotes(key)));
      if (seen[field]) throw fail(fmt::format("field {} stands twice", in_quotes(key)));
      seen[field] = true;
      if (field == 0) read_type(out);
      if (field == 1) out.fortran_order = truth();
      if (field == 2) read_shape(out);
      if (!take(',') && !next_is('}')) throw fail("a comma is missing");
    }
    skip();
    if (at_ != text_.size()) throw fail("something follows the description");
    if (!seen[0] || !seen[1] || !seen[2]) throw fail("descr, fortran_order or shape is missing");
  }

 private:
  FormatError fail(std::string_view why) const {
    return in_.fail_at(base_ + at_, fmt::format("the array's description: {}", why));
  }
  void skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool next_is(char c) { return skip(), at_ < text_.size() && text_[at_] == c; }
  bool take(char c) {
    if (!next_is(c)) return false;
    ++at_;
    return true;
  }
  void need(char c) {
    if (!take(c)) throw fail(fmt::format("{} is missing", c));
  }
  std::string_view quoted() {
    skip();
    const char mark = at_ < text_.size() ? text_[at_] : '\0';
    if (mark != '\'' && mark != '"')
      throw fail("a text is missing (records and objects are not read)");
    const size_t end = text_.find(mark, at_ + 1);
    if (end == text_.npos) throw fail("a text without an end");
    const std::string_view out = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return out;
  }
  bool truth() {
    skip();
    for (const std::string_view word : {"True", "False"}) {
      if (text_.substr(at_, word.size()) == word) return at_ += word.size(), word == "True";
    }
    throw fail("fortran_order is neither True nor False");
  }
  void read_type(NpyArray& out) {
    const std::string_view name = quoted();
    for (const NpyType& type : kNpyTypes) {
      if (name.size() != 3 || name.substr(1) != type.name) continue;
      const char order = name[0];
      const bool single = itemsize(type.dtype) == 1;
      if (order != '<' && order != '>' && order != '=' && !(order == '|' && single)) break;
      out.dtype = type.dtype;
      out.big_endian = order == '>' && !single;
      return;
    }
    throw fail(fmt::format("element type {}, which is not supported", in_quotes(name)));
  }
  void read_shape(NpyArray& out) {
    need('(');
    while (!take(')')) {
      skip();
      int64_t size = 0;
      const char* end = text_.data() + text_.size();
      const auto [rest, error] = std::from_chars(text_.data() + at_, end, size);
      if (error != std::errc{} || size < 0) throw fail("a size is no number from 0 on");
      at_ = static_cast<size_t>(rest - text_.data());
      if (out.shape.size() == kMaxNpyDims)
        throw fail(fmt::format("more than {} dims", kMaxNpyDims));
      out.shape.push_back(size);
      if (at_ < text_.size() && text_[at_] == 'L') ++at_;  // as Python 2 wrote it: (3L, 4L)
      if (!take(',') && !next_is(')')) throw fail("a comma is missing");
    }
  }

  std::string_view text_;
  const ByteReader& in_;
  uint64_t base_;
  size_t at_ = 0;
};

// An array at `base` of a file, of which `behind` bytes follow what is here.
NpyArray parse(std::span<const std::byte> bytes, std::string_view label, uint64_t base,
               uint64_t behind = 0) {
  ByteReader in(bytes, label, base);
  if (bytes.size() < 10 || in.text(6, "the magic") != kMagic)
    throw in.fail_at(base, "not a .npy file");
  const auto major = in.number<uint8_t>("the version");
  in.number<uint8_t>("the version");
  if (major < 1 || major > 3)
    throw in.fail_at(base + 6, fmt::format("a .npy file of version {}; 1 to 3 are read", major));
  const uint64_t size = major == 1 ? in.number<uint16_t>("a size") : in.number<uint32_t>("a size");
  const uint64_t begin = in.offset();
  NpyArray out;
  HeaderText(in.text(size, "the array's description"), in, begin).read(out);
  const auto wanted = checked_bytes(out.shape, itemsize(out.dtype));
  if (!wanted) throw in.fail_at(begin, "a shape too large for any memory");
  if (*wanted != in.left() + behind) {
    throw in.fail(fmt::format("{} [{}] takes {} bytes, {} are there", name(out.dtype),
                              fmt::join(out.shape, ", "), *wanted, in.left() + behind));
  }
  out.offset = in.offset();
  return out;
}

// An array of zeros takes a thousandth of its size in the file: what is out of proportion to that is
// inflated when somebody uses it, and only its description now.
NpyArray parse_packed(std::span<const std::byte> file, const ZipMember& member,
                      std::string_view label, Budget& budget) {
  constexpr uint64_t kDescription = 16 << 10;
  const PackedMember packed = later(member, label);
  std::vector<std::byte> begin(static_cast<size_t>(std::min(member.size, kDescription)));
  inflate_part(file.subspan(static_cast<size_t>(member.offset), static_cast<size_t>(member.stored)),
               packed, label, 0, begin);
  NpyArray array = parse(begin, label, 0, member.size - begin.size());
  budget.charge(sizeof(PackedMember) + member.name.size());
  array.packed = std::make_shared<const PackedMember>(packed);
  return array;
}

}  // namespace

NpyArray parse_npy(std::span<const std::byte> file, std::string_view label) {
  return parse(file, label, 0);
}

std::map<std::string, NpyArray> parse_npz(std::span<const std::byte> file, std::string_view label) {
  Budget budget{std::string(label), file.size()};
  std::map<std::string, NpyArray> out;
  if (!is_zip(file)) throw FormatError(label, "at byte 0: not a .npz file, which is a zip archive");
  for (const ZipMember& member : zip_members(file, label, budget)) {
    std::string name(member.name);
    budget.charge(name.size() + 192);
    if (name.ends_with(".npy")) name.resize(name.size() - 4);
    NpyArray array;
    if (member.deflated && !budget.has(member.size)) {
      array = parse_packed(file, member, label, budget);
    } else if (member.deflated) {
      auto bytes =
          std::make_shared<const std::vector<std::byte>>(inflated(file, member, label, budget));
      array = parse(*bytes, label, 0);
      array.bytes = std::move(bytes);
    } else {
      array = parse(
          file.subspan(static_cast<size_t>(member.offset), static_cast<size_t>(member.stored)),
          label, member.offset);
    }
    if (!out.emplace(name, std::move(array)).second)
      throw FormatError(
          label, fmt::format("at byte {}: array {} stands twice", member.offset, in_quotes(name)));
  }
  return out;
}

std::string npy_header(DType dtype, std::span<const int64_t> shape) {
  const NpyType* found = nullptr;
  for (const NpyType& type : kNpyTypes) {
    if (type.dtype == dtype) found = &type;
  }
  if (found == nullptr)
    throw UserError(fmt::format("NumPy has no element type {}: cast it first", name(dtype)));
  std::string text = fmt::format("{{'descr': '{}{}', 'fortran_order': False, 'shape': ({}{}), }}",
                                 itemsize(dtype) == 1 ? '|' : '<', found->name,
                                 fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
  // Version 1 counts the description in 16 bits: 64 dims of 20 digits do not reach them.
  constexpr size_t kBefore = 10, kAlignment = 64;
  text.append((kAlignment - (kBefore + text.size() + 1) % kAlignment) % kAlignment, ' ');
  text += '\n';
  std::string out(kMagic);
  out += {1, 0, static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return out + text;
}

}  // namespace tinyshard::io
