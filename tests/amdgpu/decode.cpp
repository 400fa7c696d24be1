// Decodes instructions through LLVM's disassembler and looks their handlers up.
#include "tests/amdgpu/decode.h"

#include <algorithm>
#include <array>
#include <llvm-c/Disassembler.h>
#include <llvm-c/Target.h>
#include <mutex>

#include "tests/amdgpu/table.h"
#include "tests/amdgpu/text.h"
#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

void initialize_llvm() {
  static std::once_flag once;
  std::call_once(once, [] {
    LLVMInitializeAMDGPUTargetInfo();
    LLVMInitializeAMDGPUTargetMC();
    LLVMInitializeAMDGPUDisassembler();
  });
}

// Some take no operands in the usual sense; their handlers read the text.
bool takes_text(std::string_view name) {
  return name.starts_with("s_waitcnt") || name == "s_delay_alu" || name == "s_sendmsg" ||
         name == "s_clause" || name == "s_nop" || name == "s_waitcnt_depctr";
}

const Row* find_row(std::string& name) {
  for (const std::string_view suffix : {"", "_e64_dpp", "_e64", "_e32", "_dpp", "_sdwa"}) {
    if (name.ends_with(suffix)) {
      const std::string base = name.substr(0, name.size() - suffix.size());
      if (const auto found = table().find(base); found != table().end()) {
        name = base;
        return &found->second;
      }
    }
  }
  return nullptr;
}

void list_registers(Instruction& in, Effect effect) {
  for (int k = 0; k < in.operands; ++k) {
    const Operand& operand = in.operand[static_cast<std::size_t>(k)];
    const bool scalar = operand.kind == Kind::Scalar;
    if (operand.kind != Kind::Vector && !scalar) {
      continue;
    }
    if (scalar && operand.index >= kNull) {
      continue;  // null and exec are always there
    }
    const RegisterRange range{static_cast<std::int16_t>(operand.index + (scalar ? kScalars : 0)),
                              static_cast<std::int16_t>(operand.count)};
    if (k < in.results) {
      in.writes.push_back(range);
    }
    if (k >= in.results || effect == Effect::Partial || in.unused == 2) {
      in.reads.push_back(range);
    }
  }
}

void read_operands(Instruction& in, std::string_view rest, bool wave64) {
  const std::vector<std::string> pieces = split_outside(rest, ',');
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    std::vector<std::string> words = split_outside(pieces[i], ' ');
    for (std::size_t word = 0; word < words.size(); ++word) {
      if (word > 0) {
        parse_modifier(in, words[word]);
      } else if (in.operands < static_cast<int>(in.operand.size())) {
        in.operand[static_cast<std::size_t>(in.operands++)] = parse_operand(words[0], wave64);
      } else {
        throw Fault("too many operands");
      }
    }
  }
}

}  // namespace

std::unique_ptr<Instruction> parse_instruction(std::string_view text, bool gfx9) {
  auto in = std::make_unique<Instruction>();
  in->text = text;
  if (const std::size_t both = text.find(" :: "); both != std::string_view::npos) {
    in = parse_instruction(text.substr(0, both), gfx9);
    in->second = parse_instruction(text.substr(both + 4), gfx9);
    in->text = text;
    return in;
  }
  const std::size_t space = text.find(' ');
  in->name = text.substr(0, space);
  const std::string_view rest = space == std::string_view::npos ? "" : text.substr(space + 1);
  if (in->name.starts_with("v_dual_")) {
    in->name = "v_" + in->name.substr(7);
  }
  const Row* row = find_row(in->name);
  if (row == nullptr) {
    throw Fault("the instruction " + in->name + " is unknown to the emulator");
  }
  in->run = row->run;
  if (takes_text(in->name)) {
    in->operand[0].kind = Kind::Name;
    in->operand[0].name = rest;
    return in;
  }
  read_operands(*in, rest, gfx9);
  const int selections = in->data;
  in->results = row->effect == Effect::NoResult ? 0 : std::min(row->results, in->operands);
  in->loads = in->name.starts_with("global_load") || in->name.starts_with("buffer_load");
  const bool no_result = (in->name.starts_with("v_cmpx") && in->operands == 2) ||
                         (in->name.find("_atomic_") != std::string::npos && !in->returns);
  if (no_result) {
    in->results = 0;
  }
  if (selections > 0 && selections > in->operands - in->results && in->results == 1) {
    const std::uint32_t last = in->op_sel >> (selections - 1) & 1U;
    in->op_sel = (in->op_sel & ~(1U << (selections - 1))) | last << 3;
  }
  in->data = row->data;
  list_registers(*in, row->effect);
  return in;
}

Code::Code(std::string target, std::uint64_t address, std::span<const std::uint8_t> bytes)
    : gfx9_(target.starts_with("gfx9")),
      base_(address),
      bytes_(bytes.begin(), bytes.end()),
      decoded_(bytes.size() / 4 + 1) {
  initialize_llvm();
  disassembler_ =
      LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", target.c_str(), nullptr, 0, nullptr, nullptr);
  if (disassembler_ == nullptr) {
    throw Fault("LLVM has no disassembler for " + target);
  }
}

Code::~Code() { LLVMDisasmDispose(disassembler_); }

const Instruction& Code::decode(std::uint64_t pc) const {
  const std::uint64_t at = pc - base_;
  if (at >= bytes_.size() || at % 4 != 0) {
    throw Fault("the program counter has left the code");
  }
  const std::lock_guard lock(mutex_);
  if (const Instruction* known = decoded_[at / 4].load()) {
    return *known;
  }
  std::array<char, 512> text{};
  std::uint8_t* bytes = const_cast<std::uint8_t*>(bytes_.data()) + at;
  const std::size_t size =
      LLVMDisasmInstruction(disassembler_, bytes, bytes_.size() - at, pc, text.data(), text.size());
  if (size == 0) {
    throw Fault("there is no instruction at the program counter");
  }
  std::string_view line(text.data());
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  std::string plain(line.substr(0, line.find_last_not_of(" \t\n") + 1));
  std::replace(plain.begin(), plain.end(), '\t', ' ');
  try {
    owned_.push_back(parse_instruction(plain, gfx9_));
  } catch (const Fault& fault) {
    throw Fault(plain + ": " + fault.what());
  }
  owned_.back()->size = static_cast<std::uint32_t>(size);
  decoded_[at / 4].store(owned_.back().get(), std::memory_order_release);
  return *owned_.back();
}

}  // namespace amdgpu_emulator
