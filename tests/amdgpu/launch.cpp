// Sets waves up as the hardware would, and runs them: waves of a workgroup take turns on one thread of the host, up to
// their barriers.
#include "tests/amdgpu/launch.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

#include "tests/amdgpu/device_memory.h"
#include "tests/amdgpu/wave.h"

namespace amdgpu_emulator {
namespace {

constexpr std::uint64_t kTurn = 1 << 20;  // instructions of a wave before others have their turn
constexpr std::uint64_t kForever = 1ULL << 33;  // more than any test needs

constexpr std::size_t kShown = 24;  // instructions before the one at fault

bool bit(std::uint32_t value, unsigned number) { return (value >> number & 1U) != 0; }

// Device memory for the arguments of one launch.
class ArgumentMemory {
 public:
  ArgumentMemory(DeviceMemory& memory, const Launch& launch) : memory_(memory) {
    address_ =
        memory.allocate(launch.kernel->device, std::max<std::size_t>(launch.kernarg.size(), 16));
    if (address_ == 0) {
      throw Fault("the device has no room for the arguments of a launch");
    }
    std::copy(launch.kernarg.begin(), launch.kernarg.end(),
              memory.find(address_, launch.kernarg.size()));
  }
  ~ArgumentMemory() { memory_.release(address_); }
  ArgumentMemory(const ArgumentMemory&) = delete;
  ArgumentMemory& operator=(const ArgumentMemory&) = delete;
  [[nodiscard]] std::uint64_t address() const { return address_; }

 private:
  DeviceMemory& memory_;
  std::uint64_t address_;
};

class Runner {
 public:
  Runner(const Launch& launch, DeviceMemory& memory)
      : launch_(launch), kernel_(*launch.kernel), memory_(memory), arguments_(memory, launch) {
    gfx9_ = kernel_.code->gfx9();
    lanes_ = kernel_.wave32() ? 32 : 64;
    threads_ = launch.threads[0] * launch.threads[1] * launch.threads[2];
    total_ = std::uint64_t{launch.blocks[0]} * launch.blocks[1] * launch.blocks[2];
  }

  LaunchCounts run(int host_threads) {
    const auto wanted = std::min<std::uint64_t>(static_cast<std::uint64_t>(host_threads), total_);
    std::vector<std::thread> helpers;
    for (std::uint64_t i = 1; i < wanted; ++i) {
      helpers.emplace_back([this] { work(); });
    }
    work();
    for (std::thread& helper : helpers) {
      helper.join();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return {instructions_, instructions_ * static_cast<std::uint64_t>(lanes_)};
  }

 private:
  void work();
  void run_groups();
  bool advance(Workgroup& group);
  void set_up(Workgroup& group, std::uint64_t number) const;
  void set_up_wave(Wave& wave, int number) const;
  void set_scalars(Wave& wave) const;
  [[noreturn]] void tell(const Wave& wave, std::uint64_t pc, const Fault& fault) const;
  [[nodiscard]] std::string group_name(const Workgroup& group) const;

  const Launch& launch_;
  const Kernel& kernel_;
  DeviceMemory& memory_;
  ArgumentMemory arguments_;
  bool gfx9_;
  int lanes_;
  std::uint32_t threads_;
  std::uint64_t total_;
  std::atomic<std::uint64_t> next_{0};
  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> instructions_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

void Runner::work() {
  try {
    run_groups();
  } catch (...) {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = std::current_exception();
    }
    stop_ = true;
  }
}

// Keeps several workgroups under way only where one has used its turn up, as one does that waits for another.
void Runner::run_groups() {
  std::deque<std::unique_ptr<Workgroup>> waiting;
  std::unique_ptr<Workgroup> spare;
  std::uint64_t mine = 0;
  while (!stop_) {
    const std::uint64_t number = next_ < total_ ? next_++ : total_;
    std::unique_ptr<Workgroup> group;
    if (number < total_) {
      group = spare ? std::move(spare) : std::make_unique<Workgroup>();
      set_up(*group, number);
    } else if (!waiting.empty()) {
      group = std::move(waiting.front());
      waiting.pop_front();
    } else {
      break;
    }
    if (advance(*group)) {
      for (int i = 0; i < group->wave_count; ++i) {
        mine += group->waves[static_cast<std::size_t>(i)].executed;
      }
      spare = std::move(group);
    } else {
      waiting.push_back(std::move(group));
    }
  }
  instructions_ += mine;
}

std::string Runner::group_name(const Workgroup& group) const {
  return "(" + std::to_string(group.id[0]) + ", " + std::to_string(group.id[1]) + ", " +
         std::to_string(group.id[2]) + ")";
}

void Runner::tell(const Wave& wave, std::uint64_t pc, const Fault& fault) const {
  std::ostringstream out;
  out << fault.what() << "\n  kernel " << kernel_.name << ", workgroup " << group_name(*wave.group)
      << ", wave " << wave.number;
  if (fault.lane >= 0) {
    out << ", lane " << fault.lane;
  }
  out << ", device " << kernel_.device << "\n  at +0x" << std::hex << pc - kernel_.entry << ": ";
  try {
    out << kernel_.code->at(pc).text << "\n  behind";
    std::deque<std::uint64_t> before;
    for (std::uint64_t at = kernel_.entry; at < pc; at += kernel_.code->at(at).size) {
      before.push_back(at);
      if (before.size() > kShown) {
        before.pop_front();
      }
    }
    for (const std::uint64_t at : before) {
      out << "\n    +0x" << at - kernel_.entry << ": " << kernel_.code->at(at).text;
    }
  } catch (const Fault&) {
    out << " (not decoded)";
  }
  throw Fault(out.str(), fault.lane);
}

// Runs each wave to its barrier or its end. True when the workgroup has ended, false when a wave's turn was over.
bool Runner::advance(Workgroup& group) {
  const auto count = static_cast<std::size_t>(group.wave_count);
  for (;;) {
    bool turn_over = false;
    for (std::size_t i = 0; i < count; ++i) {
      Wave& wave = group.waves[i];
      const std::uint64_t end = wave.executed + kTurn;
      std::uint64_t pc = wave.pc;
      try {
        while (wave.state == WaveState::Running && wave.executed < end) {
          pc = wave.pc;
          step(wave);
        }
        if (wave.executed > kForever) {
          throw Fault("the wave does not end");
        }
      } catch (const Fault& fault) {
        tell(wave, pc, fault);
      }
      turn_over = turn_over || wave.state == WaveState::Running;
    }
    if (turn_over) {
      return false;
    }
    std::size_t ended = 0;
    for (std::size_t i = 0; i < count; ++i) {
      ended += group.waves[i].state == WaveState::Ended ? 1 : 0;
    }
    if (ended == count) {
      return true;
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (ended != 0 && group.waves[i].state == WaveState::AtBarrier) {
        tell(group.waves[i], group.waves[i].pc - 4,
             Fault("a barrier that not all waves reach: " + std::to_string(ended) + " of " +
                   std::to_string(count) + " waves have ended"));
      }
      group.waves[i].state = WaveState::Running;
    }
    ++group.epoch;
  }
}

void Runner::set_up(Workgroup& group, std::uint64_t number) const {
  group.id[0] = static_cast<std::uint32_t>(number % launch_.blocks[0]);
  group.id[1] = static_cast<std::uint32_t>(number / launch_.blocks[0] % launch_.blocks[1]);
  group.id[2] = static_cast<std::uint32_t>(number / launch_.blocks[0] / launch_.blocks[1]);
  const std::size_t local_bytes = kernel_.local_bytes + launch_.dynamic_local_bytes;
  group.local.assign(local_bytes, 0xcd);
  group.local_words.assign(local_bytes / 4 + 1, {});
  group.epoch = 1;
  const auto lanes = static_cast<std::uint32_t>(lanes_);
  group.wave_count = static_cast<int>((threads_ + lanes - 1) / lanes);
  group.waves.resize(static_cast<std::size_t>(group.wave_count));
  for (int i = 0; i < group.wave_count; ++i) {
    group.waves[static_cast<std::size_t>(i)].group = &group;
    set_up_wave(group.waves[static_cast<std::size_t>(i)], i);
  }
}

void Runner::set_up_wave(Wave& wave, int number) const {
  const std::uint32_t granules = (kernel_.rsrc1 & 63U) + 1;
  wave.lanes = lanes_;
  wave.gfx9 = gfx9_;
  wave.number = number;
  wave.state = WaveState::Running;
  wave.pc = kernel_.entry;
  wave.code = kernel_.code;
  wave.memory = &memory_;
  wave.device = kernel_.device;
  wave.executed = 0;
  wave.scc_defined = false;
  const int registers = static_cast<int>(granules) * (lanes_ == 32 || gfx9_ ? 8 : 4);
  const int first_accumulator = gfx9_ ? (static_cast<int>(kernel_.rsrc3 & 63U) + 1) * 4 : registers;
  wave.vector_registers = std::min(registers, first_accumulator);
  wave.accumulators = std::max(0, registers - first_accumulator);
  wave.v.resize(512);
  for (int r = 0; r < wave.vector_registers; ++r) {
    wave.v[static_cast<std::size_t>(r)].fill(0x7fc0dead);
  }
  wave.lane_defined.fill(0);
  wave.bits_defined.fill(0);
  wave.bits_defined[kNull] = ~0U;
  wave.s.fill(0);
  wave.awaited.fill(0);
  wave.awaited_registers = 0;
  wave.counters = {};
  wave.local_writes = 0;
  wave.mode = kernel_.rsrc1 >> 12 & 255U;
  wave.flush32 = (wave.mode >> 4 & 3U) == 0;
  wave.flush16_64 = (wave.mode >> 6 & 3U) == 0;
  wave.scratch_bytes = kernel_.scratch_bytes;
  wave.scratch.assign(static_cast<std::size_t>(lanes_) * wave.scratch_bytes, 0xcd);
  wave.exec = 0;
  const unsigned dimensions = kernel_.rsrc2 >> 11 & 3U;
  for (int l = 0; l < lanes_; ++l) {
    const std::uint32_t thread = static_cast<std::uint32_t>(number * lanes_ + l);
    if (thread >= threads_) {
      break;
    }
    const std::uint32_t x = thread % launch_.threads[0];
    const std::uint32_t y = thread / launch_.threads[0] % launch_.threads[1];
    const std::uint32_t z = thread / launch_.threads[0] / launch_.threads[1];
    wave.exec |= 1ULL << l;
    wave.v[0][static_cast<std::size_t>(l)] =
        x | (dimensions >= 1 ? y << 10 : 0) | (dimensions >= 2 ? z << 20 : 0);
  }
  wave.lane_defined[0] = wave.exec;
  set_scalars(wave);
}

// The scalars that a kernel asks for come in this order.
void Runner::set_scalars(Wave& wave) const {
  std::size_t at = 0;
  const auto add = [&](std::uint64_t value, unsigned words) {
    for (unsigned i = 0; i < words; ++i) {
      wave.s[at] = static_cast<std::uint32_t>(i < 2 ? value >> (32 * i) : 0);
      wave.bits_defined[at++] = ~0U;
    }
  };
  const std::uint32_t properties = kernel_.properties;
  if (bit(properties, 0)) {
    add(0, 4);  // a buffer over scratch: of no use where scratch is reached otherwise
  }
  for (const unsigned number : {1U, 2U}) {
    if (bit(properties, number)) {
      throw Fault("kernel " + kernel_.name +
                  " asks for its dispatch or queue packet, which the emulator does not have");
    }
  }
  if (bit(properties, 3)) {
    add(arguments_.address(), 2);
  }
  if (bit(properties, 4)) {
    add(1, 2);
  }
  if (bit(properties, 5)) {
    add(0, 2);
  }
  if (bit(properties, 6)) {
    add(kernel_.scratch_bytes, 1);
  }
  const std::uint32_t preloaded = kernel_.preload & 127U;
  const std::uint32_t from = kernel_.preload >> 7;
  for (std::uint32_t i = 0; i < preloaded; ++i) {
    std::uint32_t value = 0;
    if ((from + i) * 4 + 4 <= launch_.kernarg.size()) {
      std::memcpy(&value, launch_.kernarg.data() + std::size_t{(from + i)} * 4, 4);
    }
    add(value, 1);
  }
  // Some gfx11 want 16 scalars set up at least: the count says how many come before the workgroup's numbers.
  at = std::max<std::size_t>(at, kernel_.rsrc2 >> 1 & 31U);
  for (unsigned dimension = 0; dimension < 3; ++dimension) {
    if (bit(kernel_.rsrc2, 7 + dimension)) {
      add(wave.group->id[dimension], 1);
    }
  }
  if (bit(kernel_.rsrc2, 10)) {
    add(0, 1);
  }
  if (bit(kernel_.rsrc2, 0)) {
    add(0, 1);
  }
}

std::uint32_t hidden_value(const std::string& kind, const std::array<std::uint32_t, 3>& blocks,
                           const std::array<std::uint32_t, 3>& threads) {
  const auto starts = [&](const char* text) { return kind.starts_with(text); };
  const std::size_t dimension = kind.ends_with("_y") ? 1 : kind.ends_with("_z") ? 2 : 0;
  if (starts("hidden_block_count")) {
    return blocks[dimension];
  }
  if (starts("hidden_group_size")) {
    return threads[dimension];
  }
  if (kind == "hidden_grid_dims") {
    return blocks[2] * threads[2] > 1 ? 3 : blocks[1] * threads[1] > 1 ? 2 : 1;
  }
  return 0;
}

}  // namespace

std::vector<std::uint8_t> argument_block(const Kernel& kernel, void* const* params,
                                         const std::array<std::uint32_t, 3>& blocks,
                                         const std::array<std::uint32_t, 3>& threads) {
  std::vector<std::uint8_t> out(kernel.kernarg_bytes, 0);
  std::size_t next = 0;
  for (const Argument& argument : kernel.arguments) {
    if (argument.offset + argument.size > out.size()) {
      throw Fault("an argument of kernel " + kernel.name + " lies outside of its argument block");
    }
    if (!argument.kind.starts_with("hidden_")) {
      if (params == nullptr || params[next] == nullptr) {
        throw Fault("argument " + std::to_string(next) + " of kernel " + kernel.name +
                    " was not given");
      }
      std::memcpy(out.data() + argument.offset, params[next++], argument.size);
      continue;
    }
    const std::uint32_t value = hidden_value(argument.kind, blocks, threads);
    std::memcpy(out.data() + argument.offset, &value,
                std::min<std::size_t>(argument.size, sizeof value));
  }
  return out;
}

LaunchCounts run(const Launch& launch, DeviceMemory& memory, int host_threads) {
  const Kernel& kernel = *launch.kernel;
  const std::uint64_t threads =
      std::uint64_t{launch.threads[0]} * launch.threads[1] * launch.threads[2];
  if (threads == 0 || threads > 1024 || launch.blocks[0] == 0 || launch.blocks[1] == 0 ||
      launch.blocks[2] == 0) {
    throw Fault("kernel " + kernel.name + " is launched with " + std::to_string(threads) +
                " threads a block");
  }
  if (kernel.local_bytes + launch.dynamic_local_bytes > 65536) {
    throw Fault("kernel " + kernel.name + " wants more than 65536 bytes of LDS");
  }
  return Runner(launch, memory).run(std::max(host_threads, 1));
}

}  // namespace amdgpu_emulator
