// A cursor over untrusted bytes. Each read is checked against what is left; an error names the
// file, the offset and what was to be read there.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "io/errors.h"

namespace tinyshard::io {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

class ByteReader {
 public:
  // `base` is where `bytes` begin in the file, for messages.
  ByteReader(std::span<const std::byte> bytes, std::string_view label, uint64_t base = 0)
      : bytes_(bytes), label_(label), base_(base) {}

  uint64_t position() const { return position_; }        // in the bytes
  uint64_t offset() const { return base_ + position_; }  // in the file
  uint64_t left() const { return bytes_.size() - position_; }
  bool at_end() const { return left() == 0; }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > left())
      throw fail(fmt::format("{} takes {} bytes, {} are left", what, count, left()));
    const auto out = bytes_.subspan(static_cast<size_t>(position_), static_cast<size_t>(count));
    position_ += count;
    return out;
  }
  std::string_view text(uint64_t count, std::string_view what) {
    const auto out = take(count, what);
    return {reinterpret_cast<const char*>(out.data()), out.size()};
  }
  template <class T>
  T number(std::string_view what) {
    T value;
    std::memcpy(&value, take(sizeof value, what).data(), sizeof value);
    return value;
  }
  // Up to a newline, which is passed over.
  std::string_view line(std::string_view what) {
    const char* begin = reinterpret_cast<const char*>(bytes_.data()) + position_;
    const std::string_view rest(begin, static_cast<size_t>(left()));
    const size_t end = rest.find('\n');
    if (end == rest.npos) throw fail(fmt::format("{} has no end", what));
    position_ += end + 1;
    return rest.substr(0, end);
  }
  void seek(uint64_t position) {
    if (position > bytes_.size())
      throw fail(fmt::format("byte {} lies behind the end", base_ + position));
    position_ = position;
  }

  FormatError fail(std::string_view why) const { return fail_at(offset(), why); }
  FormatError fail_at(uint64_t offset, std::string_view why) const {
    return FormatError(label_, fmt::format("at byte {}: {}", offset, why));
  }

 private:
  std::span<const std::byte> bytes_;
  std::string label_;
  uint64_t base_ = 0, position_ = 0;
};

}  // namespace tinyshard::io
