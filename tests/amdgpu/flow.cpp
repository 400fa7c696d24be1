// Branches, calls, waits, barriers, and the mode register.
#include <cstdint>
#include <string>
#include <string_view>

#include "tests/amdgpu/decode.h"
#include "tests/amdgpu/operands.h"
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {
namespace {

void nothing(Wave&, const Instruction&) {}

void jump(Wave& w, const Instruction& in) {
  const auto words = static_cast<std::int16_t>(in.operand[0].bits32);
  w.pc += static_cast<std::uint64_t>(static_cast<std::int64_t>(words) * 4);
}

bool vcc_is_zero(const Wave& w) {
  const bool wide = w.lanes == 64;
  if (w.bits_defined[kVcc] != ~0U || (wide && w.bits_defined[kVcc + 1] != ~0U)) {
    throw Fault("a branch depends on vcc, which was never written");
  }
  return w.s[kVcc] == 0 && (!wide || w.s[kVcc + 1] == 0);
}

bool scc_of(const Wave& w) {
  if (!w.scc_defined) {
    throw Fault("a branch depends on a register that was never written");
  }
  return w.scc;
}

template <auto Taken>
void branch_if(Wave& w, const Instruction& in) {
  if (Taken(w)) {
    jump(w, in);
  }
}

void end_program(Wave& w, const Instruction&) { w.state = WaveState::Ended; }

void barrier(Wave& w, const Instruction&) {
  if (w.local_writes > w.counters[static_cast<std::size_t>(Counter::Local)].done) {
    throw Fault("a missing s_waitcnt: writes to LDS are not finished at the barrier (lgkmcnt)");
  }
  w.state = WaveState::AtBarrier;
}

void trap(Wave&, const Instruction& in) { throw Fault("the kernel trapped: " + in.text); }

void get_pc(Wave& w, const Instruction& in) {
  put_scalar(w, in.operand[0].index, static_cast<std::uint32_t>(w.pc), ~0U);
  put_scalar(w, in.operand[0].index + 1, static_cast<std::uint32_t>(w.pc >> 32), ~0U);
}

void set_pc(Wave& w, const Instruction& in) { w.pc = scalar64(w, in.operand[0]); }

void swap_pc(Wave& w, const Instruction& in) {
  const std::uint64_t to = scalar64(w, in.operand[1]);
  get_pc(w, in);
  w.pc = to;
}

void call(Wave& w, const Instruction& in) {
  get_pc(w, in);
  const auto words = static_cast<std::int16_t>(in.operand[1].bits32);
  w.pc += static_cast<std::uint64_t>(static_cast<std::int64_t>(words) * 4);
}

// Waits for a counter that the text names as "vmcnt(3)".
void wait_named(Wave& w, std::string_view text, std::string_view name, Counter counter) {
  const std::size_t at = text.find(name);
  if (at != std::string_view::npos) {
    const auto left =
        static_cast<std::uint32_t>(std::stoul(std::string(text.substr(at + name.size() + 1))));
    wait_for(w, counter, left);
  }
}

void wait(Wave& w, const Instruction& in) {
  const std::string_view text = in.operand[0].name;
  wait_named(w, text, "vmcnt", Counter::Vector);
  const std::size_t local = text.find("lgkmcnt(");
  if (local == std::string_view::npos) {
    return;
  }
  wait_named(w, text, "lgkmcnt", Counter::Local);
  if (text.substr(local).starts_with("lgkmcnt(0)")) {
    wait_for(w, Counter::Scalar,
             0);  // scalar loads come in any order: only nothing left is certain
  }
}

void wait_one(Wave& w, const Instruction& in) {
  const std::string_view text = in.operand[0].name;
  const std::string left(text.substr(text.find(',') + 1));
  const auto number = static_cast<std::uint32_t>(std::stoul(left, nullptr, 0));
  if (in.name == "s_waitcnt_vscnt") {
    wait_for(w, Counter::Store, number);
  } else if (in.name == "s_waitcnt_vmcnt") {
    wait_for(w, Counter::Vector, number);
  } else if (in.name == "s_waitcnt_lgkmcnt") {
    wait_for(w, Counter::Local, number);
    if (number == 0) {
      wait_for(w, Counter::Scalar, 0);
    }
  }
}

// Fields of the mode register: rounding in bits 0 to 3, denormals of f32 in 4 and 5, of f16 and f64 in 6 and 7.
void mode_changed(Wave& w) {
  if ((w.mode & 15U) != 0) {
    throw Fault("a rounding mode other than to nearest even");
  }
  w.flush32 = (w.mode >> 4 & 3U) == 0;
  w.flush16_64 = (w.mode >> 6 & 3U) == 0;
}

void set_denormals(Wave& w, const Instruction& in) {
  w.mode = (w.mode & ~0xf0U) | (in.operand[0].bits32 & 15U) << 4;
  mode_changed(w);
}

void set_rounding(Wave& w, const Instruction& in) {
  w.mode = (w.mode & ~15U) | (in.operand[0].bits32 & 15U);
  mode_changed(w);
}

struct HardwareField {
  bool is_mode = false;
  bool is_clock = false;
  unsigned from = 0;
  unsigned bits = 32;
};

HardwareField hardware_field(const Operand& operand) {
  HardwareField out;
  const std::string_view text = operand.name;
  out.is_mode = text.starts_with("hwreg(HW_REG_MODE");
  out.is_clock = text.find("CYCLES") != std::string_view::npos;
  const std::size_t first = text.find(',');
  if (first != std::string_view::npos) {
    out.from = static_cast<unsigned>(std::stoul(std::string(text.substr(first + 1))));
    const std::size_t second = text.find(',', first + 1);
    out.bits = static_cast<unsigned>(std::stoul(std::string(text.substr(second + 1))));
  }
  return out;
}

void set_register(Wave& w, const Instruction& in) {
  const HardwareField field = hardware_field(in.operand[0]);
  if (!field.is_mode) {
    throw Fault("only the mode register can be set here");
  }
  const std::uint32_t mask = (field.bits >= 32 ? ~0U : (1U << field.bits) - 1) << field.from;
  w.mode = (w.mode & ~mask) | (scalar32(w, in.operand[1]) << field.from & mask);
  mode_changed(w);
}

void get_register(Wave& w, const Instruction& in) {
  const HardwareField field = hardware_field(in.operand[1]);
  const auto whole = field.is_mode    ? w.mode
                     : field.is_clock ? static_cast<std::uint32_t>(w.executed)
                                      : 0;
  const std::uint32_t mask = field.bits >= 32 ? ~0U : (1U << field.bits) - 1;
  put_scalar(w, in.operand[0].index, (whole >> field.from) & mask, ~0U);
}

void clock(Wave& w, const Instruction& in) {
  issue(w, Counter::Scalar);
  put_scalar(w, in.operand[0].index, static_cast<std::uint32_t>(w.executed), ~0U);
  put_scalar(w, in.operand[0].index + 1, static_cast<std::uint32_t>(w.executed >> 32), ~0U);
  await_registers(w, kScalars + in.operand[0].index, 2, Counter::Scalar);
}

}  // namespace

void add_flow(Table& rows) {
  const auto add = [&](const char* name, Handler run, int results = 0) {
    rows[name] = {run, results, results == 0 ? Effect::NoResult : Effect::Generic};
  };
  for (const char* name : {"s_nop",
                           "s_clause",
                           "s_delay_alu",
                           "s_sendmsg",
                           "s_setprio",
                           "s_code_end",
                           "s_sethalt",
                           "s_inst_prefetch",
                           "s_set_inst_prefetch_distance",
                           "s_waitcnt_depctr",
                           "s_icache_inv",
                           "s_dcache_inv",
                           "s_dcache_wb",
                           "s_gl1_inv",
                           "s_sleep",
                           "s_wakeup",
                           "v_nop",
                           "s_ttracedata",
                           "s_ttracedata_imm",
                           "buffer_gl0_inv",
                           "buffer_gl1_inv",
                           "buffer_inv",
                           "buffer_wbl2",
                           "buffer_wbinvl1",
                           "buffer_wbinvl1_vol",
                           "s_waitcnt_expcnt",
                           "s_wait_idle",
                           "v_pipeflush"}) {
    add(name, nothing);
  }
  add("s_endpgm", end_program);
  add("s_endpgm_saved", end_program);
  add("s_barrier", barrier);
  add("s_trap", trap);
  add("s_branch", jump);
  add("s_cbranch_scc0", branch_if<[](const Wave& w) { return !scc_of(w); }>);
  add("s_cbranch_scc1", branch_if<[](const Wave& w) { return scc_of(w); }>);
  add("s_cbranch_vccz", branch_if<[](const Wave& w) { return vcc_is_zero(w); }>);
  add("s_cbranch_vccnz", branch_if<[](const Wave& w) { return !vcc_is_zero(w); }>);
  add("s_cbranch_execz", branch_if<[](const Wave& w) { return w.exec == 0; }>);
  add("s_cbranch_execnz", branch_if<[](const Wave& w) { return w.exec != 0; }>);
  add("s_getpc_b64", get_pc, 1);
  add("s_setpc_b64", set_pc);
  add("s_swappc_b64", swap_pc, 1);
  add("s_call_b64", call, 1);
  add("s_waitcnt", wait);
  add("s_waitcnt_vscnt", wait_one);
  add("s_waitcnt_vmcnt", wait_one);
  add("s_waitcnt_lgkmcnt", wait_one);
  add("s_denorm_mode", set_denormals);
  add("s_round_mode", set_rounding);
  add("s_setreg_b32", set_register);
  add("s_setreg_imm32_b32", set_register);
  add("s_getreg_b32", get_register, 1);
  add("s_memtime", clock, 1);
  add("s_memrealtime", clock, 1);
}

}  // namespace amdgpu_emulator
