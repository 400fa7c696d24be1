// Steps of a wave: checks that all instructions have in common come before the handler of each.
#include "tests/amdgpu/wave.h"

#include <algorithm>
#include <string>

#include "tests/amdgpu/decode.h"

namespace amdgpu_emulator {

void lane_move_mask(Wave& w, const Instruction& in);

namespace {

constexpr std::uint32_t kNumber = (1U << 29) - 1;

std::string register_name(int reg) {
  if (reg < kAccumulators) {
    return "v" + std::to_string(reg);
  }
  if (reg < kScalars) {
    return "a" + std::to_string(reg - kAccumulators);
  }
  const int scalar = reg - kScalars;
  return scalar == kVcc ? "vcc" : scalar == kVcc + 1 ? "vcc_hi" : "s" + std::to_string(scalar);
}

bool is_done(const Wave& w, std::uint32_t awaited) {
  return (awaited & kNumber) <= w.counters[awaited >> 29].done;
}

[[noreturn]] void not_waited_for(int reg, std::uint32_t awaited) {
  static constexpr const char* kNames[] = {"", "vmcnt", "vscnt", "lgkmcnt", "lgkmcnt"};
  throw Fault("a missing s_waitcnt: " + register_name(reg) +
              " is used before the instruction that loads it has finished (" +
              kNames[awaited >> 29] + ")");
}

// Loads from global memory end in the order in which they began, so the next one may have the register of the
// last: two sides of a branch, which are other lanes, each load the same value's.
void check_waits(Wave& w, const std::vector<RegisterRange>& ranges, bool loaded = false) {
  constexpr auto kLoads = static_cast<std::uint32_t>(Counter::Vector);
  for (const RegisterRange& range : ranges) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      std::uint32_t& awaited = w.awaited[static_cast<std::size_t>(r)];
      if (loaded && awaited >> 29 == kLoads) {
        continue;
      }
      if (awaited != 0 && !is_done(w, awaited)) {
        not_waited_for(r, awaited);
      }
      awaited = 0;
    }
  }
}

void check_limits(const Wave& w, const std::vector<RegisterRange>& ranges) {
  for (const RegisterRange& range : ranges) {
    const int last = range.first + range.count - 1;
    if ((last < kAccumulators && last >= w.vector_registers) ||
        (last >= kAccumulators && last < kScalars && last - kAccumulators >= w.accumulators)) {
      throw Fault(register_name(last) +
                  " lies beyond the registers that the kernel's descriptor asks for");
    }
  }
}

std::uint64_t defined_sources(const Wave& w, const Instruction& in) {
  std::uint64_t defined = ~0ULL;
  for (const RegisterRange& range : in.reads) {
    for (int r = range.first; r < range.first + range.count; ++r) {
      if (r < kScalars) {
        defined &= w.lane_defined[static_cast<std::size_t>(r)];
      } else if (w.bits_defined[static_cast<std::size_t>(r - kScalars)] != ~0U) {
        defined = 0;
      }
    }
  }
  return defined;
}

void before(Wave& w, const Instruction& in) {
  if (w.awaited_registers != 0) {
    check_waits(w, in.reads);
    check_waits(w, in.writes, in.loads);
  }
  check_limits(w, in.reads);
  check_limits(w, in.writes);
  w.enabled = w.exec;
  w.defined = defined_sources(w, in);
  if (in.move != LaneMove::None) {
    lane_move_mask(w, in);
  }
}

// Both halves of a dual instruction read before either writes.
void run_both(Wave& w, const Instruction& in) {
  const Instruction& second = *in.second;
  const auto result = static_cast<std::size_t>(in.operand[0].index);
  const Lanes32 old = w.v[result];
  const std::uint64_t old_defined = w.lane_defined[result];
  before(w, in);
  in.run(w, in);
  const Lanes32 fresh = w.v[result];
  const std::uint64_t fresh_defined = w.lane_defined[result];
  w.v[result] = old;
  w.lane_defined[result] = old_defined;
  before(w, second);
  second.run(w, second);
  w.v[result] = fresh;
  w.lane_defined[result] = fresh_defined;
}

}  // namespace

std::uint32_t issue(Wave& wave, Counter counter) {
  return ++wave.counters[static_cast<std::size_t>(counter)].issued;
}

void await_registers(Wave& wave, int first, int count, Counter counter) {
  const std::uint32_t number = wave.counters[static_cast<std::size_t>(counter)].issued & kNumber;
  for (int r = first; r < first + count; ++r) {
    wave.awaited[static_cast<std::size_t>(r)] = static_cast<std::uint32_t>(counter) << 29 | number;
  }
  wave.awaited_registers += count;
}

void wait_for(Wave& wave, Counter counter, std::uint32_t left) {
  Outstanding& operations = wave.counters[static_cast<std::size_t>(counter)];
  if (operations.issued >= left) {
    operations.done = std::max(operations.done, operations.issued - left);
  }
  const bool idle = std::all_of(wave.counters.begin(), wave.counters.end(),
                                [](const Outstanding& o) { return o.issued == o.done; });
  if (idle && wave.awaited_registers != 0) {
    wave.awaited.fill(0);
    wave.awaited_registers = 0;
  }
}

void step(Wave& wave) {
  const Instruction& in = wave.code->at(wave.pc);
  wave.pc += in.size;
  ++wave.executed;
  if (in.second == nullptr) {
    before(wave, in);
    in.run(wave, in);
  } else {
    run_both(wave, in);
  }
}

}  // namespace amdgpu_emulator
