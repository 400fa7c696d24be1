// Decoding of machine code: LLVM's disassembler prints an instruction, and its text becomes operands and modifiers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/amdgpu/instruction.h"

namespace amdgpu_emulator {

// The code of a module. Instructions are decoded when they are first reached; any thread may ask.
struct Code {
  Code(std::string target, std::uint64_t address, std::span<const std::uint8_t> bytes);
  ~Code();
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;

  // Fails with a Fault where `pc` lies outside of the code or at no instruction.
  const Instruction& at(std::uint64_t pc) const {
    const std::uint64_t word = (pc - base_) / 4;
    if (word < decoded_.size()) {
      if (const Instruction* known = decoded_[word].load(std::memory_order_acquire)) {
        return *known;
      }
    }
    return decode(pc);
  }
  [[nodiscard]] bool wave64() const { return gfx9_; }
  [[nodiscard]] bool gfx9() const { return gfx9_; }

 private:
  const Instruction& decode(std::uint64_t pc) const;

  bool gfx9_;
  std::uint64_t base_;
  std::vector<std::uint8_t> bytes_;
  void* disassembler_;
  mutable std::mutex mutex_;
  mutable std::vector<std::atomic<const Instruction*>> decoded_;
  mutable std::vector<std::unique_ptr<Instruction>> owned_;
};

// The instruction of a text as the disassembler prints it, e.g. "v_fma_f32 v0, -|v1|, s2, 1.0 clamp". Fails with a Fault
// that names the instruction where it is unknown.
std::unique_ptr<Instruction> parse_instruction(std::string_view text, bool gfx9);

}  // namespace amdgpu_emulator
