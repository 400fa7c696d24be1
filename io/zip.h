// The members of a zip archive, as far as model files use it: stored or deflated, with the 64-bit
// sizes of large ones, no encryption, one disk. Nothing is extracted to a folder.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/budget.h"

namespace tinyshard::io {

struct ZipMember {
  std::string_view name;  // in the file
  uint64_t offset = 0;    // of the stored bytes in the file
  uint64_t stored = 0;    // bytes in the file
  uint64_t size = 0;      // bytes when it is inflated
  bool deflated = false;
};

bool is_zip(std::span<const std::byte> file);

// The table of contents of the bytes of a whole file, checked: every member lies in the file.
// FormatError names the file and the offset.
std::vector<ZipMember> zip_members(std::span<const std::byte> file, std::string_view label,
                                   Budget& budget);

// The contents of a deflated member; `budget` is charged for them before they are inflated.
std::vector<std::byte> inflated(std::span<const std::byte> file, const ZipMember& member,
                                std::string_view label, Budget& budget);

// A deflated member that is inflated when it is used.
struct PackedMember {
  std::string name;
  uint64_t offset = 0, stored = 0;  // bytes in the file
};

// FormatError where it says that it holds more than deflate can make of its bytes.
PackedMember later(const ZipMember& member, std::string_view label);

// Fills `out` with the contents of such a member from byte `from` on; `stored` are its bytes in the
// file. Nothing but `out` is kept in memory, whatever the member's size. FormatError where there is
// less.
void inflate_part(std::span<const std::byte> stored, const PackedMember& member,
                  std::string_view label, uint64_t from, std::span<std::byte> out);

}  // namespace tinyshard::io
