// State of a wave and of its workgroup while they are executed.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/amdgpu/instruction.h"

namespace amdgpu_emulator {

class DeviceMemory;
struct Code;
struct Workgroup;

// A fault of the program that is executed, found by the emulator.
struct Fault : std::runtime_error {
  explicit Fault(const std::string& text, int at_lane = -1)
      : std::runtime_error(text), lane(at_lane) {}
  int lane;
};

enum class Counter : std::uint8_t { None, Vector, Store, Local, Scalar };

// The operations that a counter saw: those up to `done` were waited for.
struct Outstanding {
  std::uint32_t issued = 0;
  std::uint32_t done = 0;
};

enum class WaveState : std::uint8_t { Running, AtBarrier, Ended };

constexpr int kMaxLanes = 64;
using Lanes32 = std::array<std::uint32_t, kMaxLanes>;

struct Wave {
  int lanes = 64;
  bool gfx9 = true;
  int number = 0;  // in its workgroup
  WaveState state = WaveState::Running;
  std::uint64_t pc = 0;
  std::uint64_t exec = 0;
  bool scc = false;
  bool scc_defined = false;
  int vector_registers = 0;
  int accumulators = 0;

  // The mode register's fields that arithmetic asks for.
  bool flush32 = false;
  bool flush16_64 = false;
  std::uint32_t mode = 0;

  std::uint64_t defined = 0;  // lanes whose sources of the present instruction were all written
  std::uint64_t enabled = 0;  // lanes that the present instruction may write

  std::vector<Lanes32> v;                           // 512
  std::array<std::uint64_t, 512> lane_defined{};    // a bit for each lane
  std::array<std::uint32_t, 128> s{};               // exec lies in `exec`
  std::array<std::uint32_t, 128> bits_defined{};    // a bit for each bit
  std::array<std::uint32_t, kRegisters> awaited{};  // counter in the upper 3 bits, number below
  int awaited_registers = 0;                        // an upper bound; 0: nothing is awaited
  std::array<Outstanding, 5> counters{};            // by Counter
  std::uint32_t local_writes = 0;                   // number of the last LDS write

  std::vector<std::uint8_t> scratch;  // of all lanes, one after the other
  std::uint32_t scratch_bytes = 0;    // a lane

  Workgroup* group = nullptr;
  const Code* code = nullptr;
  const DeviceMemory* memory = nullptr;
  int device = 0;
  std::uint64_t executed = 0;  // instructions

  [[nodiscard]] std::uint64_t all_lanes() const { return lanes == 64 ? ~0ULL : 0xffffffffULL; }
  [[nodiscard]] bool active(int lane) const { return ((exec >> lane) & 1U) != 0; }
};

// A dword of LDS: which wave wrote and read it since the last barrier, and which bytes ever were written.
struct LocalWord {
  std::uint32_t epoch = 0;
  std::uint16_t writer = 0xffff;
  std::uint16_t reader = 0xffff;  // 0xfffe: several
  std::uint8_t written = 0;       // bytes of `writer`
  std::uint8_t read = 0;
  std::uint8_t defined = 0;
};

struct Workgroup {
  std::array<std::uint32_t, 3> id{};
  std::vector<Wave> waves;
  int wave_count = 0;
  std::vector<std::uint8_t> local;
  std::vector<LocalWord> local_words;
  std::uint32_t epoch = 1;
};

// The step of a wave: executes one instruction.
void step(Wave& wave);

// Marks the registers of a range as awaited by the operation that `counter` has just counted.
void await_registers(Wave& wave, int first, int count, Counter counter);
std::uint32_t issue(Wave& wave, Counter counter);
void wait_for(Wave& wave, Counter counter, std::uint32_t left);

}  // namespace amdgpu_emulator
