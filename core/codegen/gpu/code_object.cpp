// The sections of an object are laid out by what they are for, each kind from a page of its own in
// memory and without a gap in the file; then symbols have addresses and relocations can be applied.
// Example, of a kernel "foo" with a constant that it reads:
//
//   .rodata  at  0x540: foo.kd, 64 bytes, of which bytes 16..23 are .text - foo.kd (R_AMDGPU_REL64)
//   .text    at 0x1600: foo; it adds the distance of the constant to its own address, in two words
//                       (R_AMDGPU_REL32_LO and R_AMDGPU_REL32_HI)
#include "core/codegen/gpu/code_object.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <llvm/BinaryFormat/ELF.h>

#include "core/base/error.h"

namespace tinyshard::codegen::gpu {
namespace linking {
namespace {

using namespace llvm::ELF;  // NOLINT(google-build-using-namespace): its names are those of ELF

constexpr uint64_t kPage = 0x1000;
constexpr size_t kSegments = 7;

uint64_t align_up(uint64_t x, uint64_t by) { return by <= 1 ? x : (x + by - 1) / by * by; }

void need(bool holds, std::string_view what) {
  if (!holds) throw InternalError(fmt::format("a kernel's object cannot be linked: {}", what));
}

// Objects of this machine's byte order alone are read: that of AMD's GPUs.
template <class T>
T read(std::span<const char> from, uint64_t at) {
  need(at <= from.size() && sizeof(T) <= from.size() - at, "it ends too early");
  T value;
  std::memcpy(&value, from.data() + at, sizeof(T));
  return value;
}

std::string_view name_at(std::span<const char> strings, uint64_t at) {
  need(at < strings.size(), "a name lies outside");
  return {strings.data() + at, ::strnlen(strings.data() + at, strings.size() - at)};
}

// A section of the result; those of the object keep their bytes.
struct Section {
  std::string name;
  Elf64_Shdr head{};
  std::vector<char> bytes;
};

template <class T>
void append(std::vector<char>& bytes, const T& value) {
  const size_t end = bytes.size();
  bytes.resize(end + sizeof(T));
  std::memcpy(bytes.data() + end, &value, sizeof(T));
}

uint32_t elf_hash(std::string_view name) {
  uint32_t h = 0;
  for (char c : name) {
    h = (h << 4) + static_cast<unsigned char>(c);
    const uint32_t high = h & 0xf0000000u;
    if (high) h ^= high >> 24;
    h &= ~high;
  }
  return h;
}

class Linker {
 public:
  explicit Linker(std::span<const char> object) : object_(object) {
    read_sections();
    read_symbols();
    lay_out();
    relocate();
  }

  std::vector<char> file();

 private:
  std::span<const char> content(const Elf64_Shdr& section) const {
    need(section.sh_offset <= object_.size() &&
             section.sh_size <= object_.size() - section.sh_offset,
         "a section lies outside");
    return object_.subspan(section.sh_offset, section.sh_size);
  }
  void read_sections();
  void read_symbols();
  void lay_out();
  void relocate();
  void apply(const Elf64_Rela& relocation, Section& in);
  Section& add(std::string name, uint32_t type, uint64_t flags, uint64_t align);
  std::vector<char> symbol_table(std::vector<char>& names, bool dynamic) const;
  std::vector<char> hash_table() const;
  void fill_dynamic();
  void add_names();
  std::vector<Elf64_Phdr> segments() const;
  Section& at(int section) { return sections_[static_cast<size_t>(section)]; }
  const Section& at(int section) const { return sections_[static_cast<size_t>(section)]; }
  uint64_t address(const Elf64_Sym& symbol) const;

  std::span<const char> object_;
  Elf64_Ehdr head_{};
  std::vector<Elf64_Shdr> heads_;  // of the object
  std::vector<int> placed_;        // by section of the object: of sections_, or -1
  std::vector<Section> sections_;
  std::vector<Elf64_Sym> symbols_;
  std::vector<std::string_view> names_;  // of the symbols
  int dynsym_ = 0, hash_ = 0, dynstr_ = 0, dynamic_ = 0, first_text_ = 0;
};

void Linker::read_sections() {
  head_ = read<Elf64_Ehdr>(object_, 0);
  need(std::memcmp(head_.e_ident, ElfMagic, 4) == 0 && head_.e_type == ET_REL &&
           head_.e_machine == EM_AMDGPU,
       "it is none of AMD's GPUs");
  for (uint64_t i = 0; i < head_.e_shnum; ++i)
    heads_.push_back(read<Elf64_Shdr>(object_, head_.e_shoff + i * sizeof(Elf64_Shdr)));
  need(head_.e_shstrndx < heads_.size(), "its sections have no names");
}

void Linker::read_symbols() {
  for (const Elf64_Shdr& table : heads_) {
    if (table.sh_type != SHT_SYMTAB) continue;
    need(table.sh_link < heads_.size(), "its symbols have no names");
    const auto content_of = content(table), strings = content(heads_[table.sh_link]);
    for (uint64_t at = 0; at < content_of.size(); at += sizeof(Elf64_Sym)) {
      symbols_.push_back(read<Elf64_Sym>(content_of, at));
      names_.push_back(name_at(strings, symbols_.back().st_name));
      const Elf64_Sym& s = symbols_.back();
      need(at == 0 || s.getType() == STT_FILE ||
               (s.st_shndx != SHN_UNDEF && s.st_shndx < heads_.size()),
           fmt::format("it does not define {}", names_.back()));
    }
  }
}

Section& Linker::add(std::string name, uint32_t type, uint64_t flags, uint64_t align) {
  Section section{.name = std::move(name), .bytes = {}};
  section.head.sh_type = type;
  section.head.sh_flags = flags;
  section.head.sh_addralign = align;
  return sections_.emplace_back(std::move(section));
}

// Sizes of all that is loaded are known before addresses are.
void Linker::lay_out() {
  const auto strings = content(heads_[head_.e_shstrndx]);
  placed_.assign(heads_.size(), -1);
  auto take = [&](auto&& wanted) {
    for (size_t i = 0; i < heads_.size(); ++i) {
      const Elf64_Shdr& h = heads_[i];
      if (!(h.sh_flags & SHF_ALLOC) || h.sh_size == 0 || !wanted(h)) continue;
      placed_[i] = static_cast<int>(sections_.size());
      Section& s = add(std::string(name_at(strings, h.sh_name)), h.sh_type,
                       h.sh_flags & (SHF_ALLOC | SHF_EXECINSTR), h.sh_addralign);
      const auto bytes = content(h);
      s.bytes.assign(bytes.begin(), bytes.end());
    }
  };
  add("", SHT_NULL, 0, 0);
  take([](const Elf64_Shdr& h) { return h.sh_type == SHT_NOTE; });
  need(sections_.size() > 1, "it has no notes");
  dynsym_ = static_cast<int>(sections_.size());
  std::vector<char> names;
  add(".dynsym", SHT_DYNSYM, SHF_ALLOC, 8).bytes = symbol_table(names, true);
  hash_ = static_cast<int>(sections_.size());
  add(".hash", SHT_HASH, SHF_ALLOC, 4).bytes = hash_table();
  dynstr_ = static_cast<int>(sections_.size());
  add(".dynstr", SHT_STRTAB, SHF_ALLOC, 1).bytes = names;
  auto is_data = [](const Elf64_Shdr& h) { return h.sh_type == SHT_PROGBITS; };
  for (const Elf64_Shdr& h : heads_) {
    need(!(h.sh_flags & SHF_ALLOC) || h.sh_size == 0 ||
             (!(h.sh_flags & SHF_WRITE) && (is_data(h) || h.sh_type == SHT_NOTE)),
         "it has data that kernels write");
  }
  take([&](const Elf64_Shdr& h) { return is_data(h) && !(h.sh_flags & SHF_EXECINSTR); });
  first_text_ = static_cast<int>(sections_.size());
  take([&](const Elf64_Shdr& h) { return is_data(h) && (h.sh_flags & SHF_EXECINSTR) != 0; });
  dynamic_ = static_cast<int>(sections_.size());
  add(".dynamic", SHT_DYNAMIC, SHF_ALLOC | SHF_WRITE, 8).bytes.resize(6 * sizeof(Elf64_Dyn));
  need(first_text_ < dynamic_, "it has no code");

  uint64_t offset = sizeof(Elf64_Ehdr) + kSegments * sizeof(Elf64_Phdr), pages = 0;
  for (int i = 1; i <= dynamic_; ++i) {
    Section& s = sections_[static_cast<size_t>(i)];
    if (i == first_text_ || i == dynamic_) pages += kPage;
    offset = align_up(offset, s.head.sh_addralign);
    s.head.sh_offset = offset;
    s.head.sh_addr = offset + pages;
    s.head.sh_size = s.bytes.size();
    offset += s.bytes.size();
  }
  names.clear();
  sections_[static_cast<size_t>(dynsym_)].bytes = symbol_table(names, true);  // with addresses
  fill_dynamic();
}

uint64_t Linker::address(const Elf64_Sym& symbol) const {
  const int placed = symbol.st_shndx < placed_.size() ? placed_[symbol.st_shndx] : -1;
  return placed < 0 ? 0 : sections_[static_cast<size_t>(placed)].head.sh_addr + symbol.st_value;
}

// Lists what others look for, the kernel and its descriptor; or all that is there, for people.
std::vector<char> Linker::symbol_table(std::vector<char>& names, bool dynamic) const {
  std::vector<char> table;
  names.assign(1, '\0');
  append(table, Elf64_Sym{});
  for (size_t i = 1; i < symbols_.size(); ++i) {
    Elf64_Sym s = symbols_[i];
    if (s.getType() == STT_FILE || s.getType() == STT_SECTION) continue;
    if (dynamic && s.getBinding() == STB_LOCAL) continue;
    s.st_name = static_cast<Elf64_Word>(names.size());
    names.insert(names.end(), names_[i].begin(), names_[i].end());
    names.push_back('\0');
    s.st_value = address(s);
    const int placed = placed_[s.st_shndx];
    s.st_shndx = static_cast<Elf64_Half>(std::max(placed, 0));
    append(table, s);
  }
  return table;
}

// Chains symbols from as many buckets: number of buckets, of symbols, first of each bucket, next of each symbol.
std::vector<char> Linker::hash_table() const {
  std::vector<std::string_view> exported{""};
  for (size_t i = 1; i < symbols_.size(); ++i) {
    const Elf64_Sym& s = symbols_[i];
    if (s.getBinding() != STB_LOCAL && s.getType() != STT_SECTION && s.getType() != STT_FILE)
      exported.push_back(names_[i]);
  }
  const auto count = static_cast<uint32_t>(exported.size());
  std::vector<uint32_t> words{count, count};
  words.resize(2 + 2 * size_t{count});
  for (uint32_t i = 1; i < count; ++i) {
    uint32_t& first = words[2 + elf_hash(exported[i]) % count];
    words[2 + count + i] = first;
    first = i;
  }
  std::vector<char> bytes;
  for (uint32_t word : words) append(bytes, word);
  return bytes;
}

void Linker::fill_dynamic() {
  auto of = [&](int section) -> const Elf64_Shdr& {
    return sections_[static_cast<size_t>(section)].head;
  };
  const std::pair<int64_t, uint64_t> rows[] = {
      {DT_SYMTAB, of(dynsym_).sh_addr}, {DT_SYMENT, sizeof(Elf64_Sym)},
      {DT_STRTAB, of(dynstr_).sh_addr}, {DT_STRSZ, of(dynstr_).sh_size},
      {DT_HASH, of(hash_).sh_addr},     {DT_NULL, 0}};
  std::vector<char>& bytes = sections_[static_cast<size_t>(dynamic_)].bytes;
  bytes.clear();
  for (const auto& [tag, value] : rows) {
    Elf64_Dyn row{};
    row.d_tag = tag;
    row.d_un.d_val = value;
    append(bytes, row);
  }
}

void Linker::relocate() {
  for (const Elf64_Shdr& h : heads_) {
    if (h.sh_type == SHT_REL) need(h.sh_size == 0, "a relocation without an addend");
    if (h.sh_type != SHT_RELA) continue;
    need(h.sh_info < placed_.size(), "relocations of no section");
    const int placed = placed_[h.sh_info];
    if (placed < 0) continue;
    const auto rows = content(h);
    for (uint64_t at = 0; at < rows.size(); at += sizeof(Elf64_Rela))
      apply(read<Elf64_Rela>(rows, at), sections_[static_cast<size_t>(placed)]);
  }
}

// All are distances: code objects may lie anywhere.
void Linker::apply(const Elf64_Rela& relocation, Section& in) {
  need(relocation.getSymbol() < symbols_.size(), "a relocation of no symbol");
  const Elf64_Sym& symbol = symbols_[relocation.getSymbol()];
  need(symbol.st_shndx < placed_.size() && placed_[symbol.st_shndx] >= 0,
       "a relocation to what is not loaded");
  const uint64_t here = in.head.sh_addr + relocation.r_offset;
  const uint64_t distance = address(symbol) + static_cast<uint64_t>(relocation.r_addend) - here;
  auto put = [&](auto value) {
    need(relocation.r_offset <= in.bytes.size() &&
             sizeof(value) <= in.bytes.size() - relocation.r_offset,
         "a relocation outside of its section");
    std::memcpy(in.bytes.data() + relocation.r_offset, &value, sizeof(value));
  };
  switch (relocation.getType()) {
    case R_AMDGPU_REL64:
      return put(distance);
    case R_AMDGPU_REL32_LO:
      return put(static_cast<uint32_t>(distance));
    case R_AMDGPU_REL32_HI:
      return put(static_cast<uint32_t>(distance >> 32));
    default:
      need(false, fmt::format("a relocation of type {}", relocation.getType()));
  }
}

// Adds what is not loaded: names, and all symbols for people.
void Linker::add_names() {
  std::vector<char> names;
  std::vector<char> table = symbol_table(names, false);
  const int symtab = static_cast<int>(sections_.size());
  add(".symtab", SHT_SYMTAB, 0, 8).bytes = table;
  add(".strtab", SHT_STRTAB, 0, 1).bytes = names;
  add(".shstrtab", SHT_STRTAB, 0, 1);
  std::vector<char>& section_names = sections_.back().bytes;
  for (Section& s : sections_) {
    s.head.sh_name = static_cast<Elf64_Word>(section_names.size());
    section_names.insert(section_names.end(), s.name.begin(), s.name.end());
    section_names.push_back('\0');
  }
  uint32_t locals = 1;
  for (size_t i = 1; i < symbols_.size(); ++i) {
    const Elf64_Sym& s = symbols_[i];
    const bool shown = s.getType() != STT_SECTION && s.getType() != STT_FILE;
    if (shown && s.getBinding() == STB_LOCAL) ++locals;
  }
  auto link = [&](int from, int to, uint32_t info, uint64_t entry) {
    Elf64_Shdr& h = at(from).head;
    h.sh_link = static_cast<Elf64_Word>(to), h.sh_info = info, h.sh_entsize = entry;
  };
  link(dynsym_, dynstr_, 1, sizeof(Elf64_Sym));
  link(hash_, dynsym_, 0, sizeof(uint32_t));
  link(dynamic_, dynstr_, 0, sizeof(Elf64_Dyn));
  link(symtab, symtab + 1, locals, sizeof(Elf64_Sym));
  uint64_t offset = at(dynamic_).head.sh_offset + at(dynamic_).head.sh_size;
  for (auto i = static_cast<size_t>(symtab); i < sections_.size(); ++i) {
    Elf64_Shdr& h = sections_[i].head;
    h.sh_offset = offset = align_up(offset, h.sh_addralign);
    h.sh_size = sections_[i].bytes.size();
    offset += h.sh_size;
  }
}

std::vector<Elf64_Phdr> Linker::segments() const {
  std::vector<Elf64_Phdr> all;
  auto segment = [&](uint32_t type, uint32_t flags, uint64_t from, uint64_t address, uint64_t size,
                     uint64_t align) {
    all.push_back({.p_type = type,
                   .p_flags = flags,
                   .p_offset = from,
                   .p_vaddr = address,
                   .p_paddr = address,
                   .p_filesz = size,
                   .p_memsz = size,
                   .p_align = align});
  };
  auto span = [&](uint32_t type, uint32_t flags, int first, int end, uint64_t align) {
    const Elf64_Shdr &a = at(first).head, &b = at(end - 1).head;
    segment(type, flags, a.sh_offset, a.sh_addr, b.sh_offset + b.sh_size - a.sh_offset, align);
  };
  const Elf64_Shdr& readable = at(first_text_ - 1).head;
  segment(PT_PHDR, PF_R, sizeof(Elf64_Ehdr), sizeof(Elf64_Ehdr), kSegments * sizeof(Elf64_Phdr), 8);
  segment(PT_LOAD, PF_R, 0, 0, readable.sh_offset + readable.sh_size, kPage);
  span(PT_LOAD, PF_R | PF_X, first_text_, dynamic_, kPage);
  span(PT_LOAD, PF_R | PF_W, dynamic_, dynamic_ + 1, kPage);
  span(PT_DYNAMIC, PF_R | PF_W, dynamic_, dynamic_ + 1, 8);
  segment(PT_GNU_STACK, PF_R | PF_W, 0, 0, 0, 0);
  span(PT_NOTE, PF_R, 1, dynsym_, 4);
  check_internal(all.size() == kSegments, "room for all segments");
  return all;
}

std::vector<char> Linker::file() {
  add_names();
  const Elf64_Shdr& last = sections_.back().head;
  Elf64_Ehdr head = head_;
  head.e_type = ET_DYN;
  head.e_phoff = sizeof(Elf64_Ehdr);
  head.e_phentsize = sizeof(Elf64_Phdr);
  head.e_phnum = static_cast<Elf64_Half>(kSegments);
  head.e_shoff = align_up(last.sh_offset + last.sh_size, 8);
  head.e_shnum = static_cast<Elf64_Half>(sections_.size());
  head.e_shstrndx = static_cast<Elf64_Half>(sections_.size() - 1);

  std::vector<char> bytes;
  append(bytes, head);
  for (const Elf64_Phdr& s : segments()) append(bytes, s);
  for (const Section& s : sections_) {
    if (s.head.sh_type == SHT_NULL) continue;
    bytes.resize(s.head.sh_offset);
    bytes.insert(bytes.end(), s.bytes.begin(), s.bytes.end());
  }
  bytes.resize(head.e_shoff);
  for (const Section& s : sections_) append(bytes, s.head);
  return bytes;
}

}  // namespace
}  // namespace linking

std::vector<char> link_code_object(std::span<const char> object) {
  return linking::Linker(object).file();
}

}  // namespace tinyshard::codegen::gpu
