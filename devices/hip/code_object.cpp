// Looks through the dynamic symbols, as the loader does. Example: entry "add", symbol "add.kd" at 0x540
// in the section .rodata, which lies at 0x540 in the file: the descriptor's 64 bytes.
#include "devices/hip/code_object.h"

#include <cstring>
#include <elf.h>
#include <string>

namespace tinyshard::hip {
namespace {

template <class T>
bool read(std::span<const char> from, uint64_t at, T& value) {
  if (at > from.size() || sizeof(T) > from.size() - at) return false;
  std::memcpy(&value, from.data() + at, sizeof(T));
  return true;
}

bool section(std::span<const char> code, const Elf64_Ehdr& head, uint64_t i, Elf64_Shdr& out) {
  return i < head.e_shnum && read(code, head.e_shoff + i * sizeof(Elf64_Shdr), out);
}

bool is_named(std::span<const char> code, const Elf64_Shdr& strings, uint64_t at,
              std::string_view name) {
  const uint64_t begin = strings.sh_offset + at;
  return at < strings.sh_size && begin < code.size() && name.size() < code.size() - begin &&
         std::string_view(code.data() + begin, name.size()) == name &&
         code[begin + name.size()] == '\0';
}

}  // namespace

std::optional<KernelDescriptor> find_descriptor(std::span<const char> code,
                                                std::string_view entry) {
  const std::string wanted = std::string(entry) + ".kd";
  Elf64_Ehdr head{};
  if (!read(code, 0, head) || std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return {};
  Elf64_Shdr table{}, strings{}, place{};
  for (uint64_t i = 0; section(code, head, i, table); ++i) {
    if (table.sh_type != SHT_DYNSYM || !section(code, head, table.sh_link, strings)) continue;
    Elf64_Sym symbol{};
    for (uint64_t at = 0; at < table.sh_size && read(code, table.sh_offset + at, symbol);
         at += sizeof(Elf64_Sym)) {
      if (!is_named(code, strings, symbol.st_name, wanted)) continue;
      KernelDescriptor descriptor{};
      if (!section(code, head, symbol.st_shndx, place) || symbol.st_value < place.sh_addr ||
          !read(code, place.sh_offset + (symbol.st_value - place.sh_addr), descriptor))
        return {};
      return descriptor;
    }
  }
  return {};
}

}  // namespace tinyshard::hip
