// Loads code objects.
#include "tests/amdgpu/code_object.h"

#include <algorithm>
#include <cstring>
#include <elf.h>

#include <llvm/BinaryFormat/MsgPackDocument.h>

#include "tests/amdgpu/device_memory.h"
#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

constexpr std::uint16_t kMachine = 224;  // AMDGPU
constexpr std::uint32_t kMetadataNote = 32;
constexpr std::uint32_t kRelative64 = 13;  // R_AMDGPU_RELATIVE64

template <class T>
T at(std::span<const std::uint8_t> file, std::uint64_t offset) {
  if (offset + sizeof(T) > file.size()) {
    throw Fault("the code object is cut off at byte " + std::to_string(file.size()));
  }
  T out;
  std::memcpy(&out, file.data() + offset, sizeof(T));
  return out;
}

std::vector<Elf64_Phdr> segments(std::span<const std::uint8_t> file) {
  const auto header = at<Elf64_Ehdr>(file, 0);
  std::vector<Elf64_Phdr> out;
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    out.push_back(at<Elf64_Phdr>(file, header.e_phoff + i * sizeof(Elf64_Phdr)));
  }
  return out;
}

// Where the bytes of a virtual address lie in the file.
std::uint64_t file_offset(std::span<const std::uint8_t> file, std::uint64_t address) {
  for (const Elf64_Phdr& segment : segments(file)) {
    if (segment.p_type == PT_LOAD && address >= segment.p_vaddr &&
        address - segment.p_vaddr < segment.p_filesz) {
      return address - segment.p_vaddr + segment.p_offset;
    }
  }
  throw Fault("the code object has no segment at address " + std::to_string(address));
}

std::map<std::uint64_t, std::uint64_t> dynamic_entries(std::span<const std::uint8_t> file) {
  std::map<std::uint64_t, std::uint64_t> out;
  for (const Elf64_Phdr& segment : segments(file)) {
    for (std::uint64_t i = 0; segment.p_type == PT_DYNAMIC && i < segment.p_filesz;
         i += sizeof(Elf64_Dyn)) {
      const auto entry = at<Elf64_Dyn>(file, segment.p_offset + i);
      out[static_cast<std::uint64_t>(entry.d_tag)] = entry.d_un.d_val;
    }
  }
  return out;
}

// ELF flags of a processor, for those that are emulated.
std::uint32_t machine_flag(const std::string& target) {
  static const std::map<std::string, std::uint32_t> flags = {
      {"gfx90a", 0x3f}, {"gfx942", 0x4c}, {"gfx1100", 0x41}};
  const auto found = flags.find(target);
  if (found == flags.end()) {
    throw Fault("the target " + target + " is not emulated");
  }
  return found->second;
}

}  // namespace

CodeObject::CodeObject(std::span<const std::uint8_t> file, const std::string& target,
                       DeviceMemory& memory, int device)
    : memory_(memory), device_(device) {
  const auto header = at<Elf64_Ehdr>(file, 0);
  if (std::memcmp(header.e_ident, ELFMAG, 4) != 0 || header.e_machine != kMachine ||
      header.e_type != ET_DYN) {
    throw Fault("this is no linked AMDGPU code object");
  }
  if ((header.e_flags & 0xffU) != machine_flag(target)) {
    throw Fault("the code object was made for another processor than " + target);
  }
  place(file);
  relocate(file);
  std::span<const std::uint8_t> image(memory_.find(base_, size_), size_);
  code_ = std::make_unique<Code>(target, base_, image);
  read_kernels(file);
  read_notes(file);
}

CodeObject::~CodeObject() { memory_.release(base_); }

void CodeObject::place(std::span<const std::uint8_t> file) {
  for (const Elf64_Phdr& segment : segments(file)) {
    if (segment.p_type == PT_LOAD) {
      size_ = std::max(size_, segment.p_vaddr + segment.p_memsz);
    }
  }
  base_ = memory_.allocate(device_, size_);
  if (base_ == 0) {
    throw Fault("device " + std::to_string(device_) + " has no room for a module");
  }
  std::uint8_t* image = memory_.find(base_, size_);
  std::memset(image, 0, size_);
  for (const Elf64_Phdr& segment : segments(file)) {
    if (segment.p_type == PT_LOAD && segment.p_offset + segment.p_filesz <= file.size()) {
      std::memcpy(image + segment.p_vaddr, file.data() + segment.p_offset, segment.p_filesz);
    }
  }
}

void CodeObject::relocate(std::span<const std::uint8_t> file) {
  const auto entries = dynamic_entries(file);
  if (!entries.contains(DT_RELA)) {
    return;
  }
  std::uint8_t* image = memory_.find(base_, size_);
  for (std::uint64_t i = 0; i < entries.at(DT_RELASZ); i += sizeof(Elf64_Rela)) {
    const auto relocation = at<Elf64_Rela>(file, file_offset(file, entries.at(DT_RELA)) + i);
    if (ELF64_R_TYPE(relocation.r_info) != kRelative64) {
      throw Fault("a relocation of the code object is unknown");
    }
    const std::uint64_t value = base_ + static_cast<std::uint64_t>(relocation.r_addend);
    std::memcpy(image + relocation.r_offset, &value, sizeof value);
  }
}

void CodeObject::read_kernels(std::span<const std::uint8_t> file) {
  const auto entries = dynamic_entries(file);
  if (!entries.contains(DT_SYMTAB) || !entries.contains(DT_STRTAB) || !entries.contains(DT_HASH)) {
    throw Fault("the code object has no dynamic symbols");
  }
  // The hash table's second word is the number of symbols.
  const auto symbols = at<std::uint32_t>(file, file_offset(file, entries.at(DT_HASH)) + 4);
  for (std::uint32_t i = 0; i < symbols; ++i) {
    const auto symbol =
        at<Elf64_Sym>(file, file_offset(file, entries.at(DT_SYMTAB)) + i * sizeof(Elf64_Sym));
    const std::uint64_t name_at = file_offset(file, entries.at(DT_STRTAB)) + symbol.st_name;
    std::string name(reinterpret_cast<const char*>(file.data()) + name_at);
    if (!name.ends_with(".kd")) {
      continue;
    }
    name.resize(name.size() - 3);
    const std::uint64_t from = file_offset(file, symbol.st_value);
    Kernel& kernel = kernels_[name];
    kernel.name = name;
    kernel.local_bytes = at<std::uint32_t>(file, from);
    kernel.scratch_bytes = at<std::uint32_t>(file, from + 4);
    kernel.kernarg_bytes = at<std::uint32_t>(file, from + 8);
    kernel.entry = base_ + symbol.st_value + at<std::uint64_t>(file, from + 16);
    kernel.rsrc3 = at<std::uint32_t>(file, from + 44);
    kernel.rsrc1 = at<std::uint32_t>(file, from + 48);
    kernel.rsrc2 = at<std::uint32_t>(file, from + 52);
    kernel.properties = at<std::uint16_t>(file, from + 56);
    kernel.preload = at<std::uint16_t>(file, from + 58);
    kernel.code = code_.get();
    kernel.device = device_;
  }
}

namespace {

std::string text(llvm::msgpack::DocNode node) {
  return node.isString() ? node.getString().str() : std::string();
}

std::uint32_t number(llvm::msgpack::DocNode node) {
  if (node.getKind() == llvm::msgpack::Type::UInt) {
    return static_cast<std::uint32_t>(node.getUInt());
  }
  return node.getKind() == llvm::msgpack::Type::Int ? static_cast<std::uint32_t>(node.getInt()) : 0;
}

}  // namespace

void CodeObject::read_notes(std::span<const std::uint8_t> file) {
  for (const Elf64_Phdr& segment : segments(file)) {
    if (segment.p_type != PT_NOTE) {
      continue;
    }
    const auto note = at<Elf64_Nhdr>(file, segment.p_offset);
    if (note.n_type != kMetadataNote) {
      continue;
    }
    const std::uint64_t from = segment.p_offset + sizeof note + (note.n_namesz + 3) / 4 * 4;
    llvm::msgpack::Document document;
    if (from + note.n_descsz > file.size() ||
        !document.readFromBlob(
            llvm::StringRef(reinterpret_cast<const char*>(file.data()) + from, note.n_descsz),
            false)) {
      throw Fault("the notes of the code object cannot be read");
    }
    auto& kernels = document.getRoot().getMap()["amdhsa.kernels"].getArray(true);
    for (auto& entry : kernels) {
      auto& fields = entry.getMap();
      const auto kernel = kernels_.find(text(fields[".name"]));
      if (kernel == kernels_.end()) {
        throw Fault("the notes tell of a kernel without a descriptor: " + text(fields[".name"]));
      }
      if (number(fields[".kernarg_segment_size"]) != kernel->second.kernarg_bytes) {
        throw Fault("descriptor and notes of " + kernel->first +
                    " disagree on the size of its arguments");
      }
      for (auto& argument : fields[".args"].getArray(true)) {
        auto& facts = argument.getMap();
        kernel->second.arguments.push_back(
            {number(facts[".offset"]), number(facts[".size"]), text(facts[".value_kind"])});
      }
    }
  }
}

const Kernel* CodeObject::find(const std::string& name) const {
  const auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

}  // namespace amdgpu_emulator
