// Kernels for the tests, made of LLVM IR by LLVM's AMDGPU back end and linked by lld, and a device to run them on.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/amdgpu/code_object.h"
#include "tests/amdgpu/device_memory.h"
#include "tests/amdgpu/launch.h"

namespace amdgpu_emulator {

// The code object of IR. Throws std::runtime_error with LLVM's or lld's words.
std::vector<std::uint8_t> compile(const std::string& ir, const std::string& target);

// Functions that kernels declare: ids of threads and blocks, barriers, exchanges.
std::string declarations();

// A kernel's head with pointers %p0, %p1 and so on to global memory, then %t, %w (thread and block), %i their number
// (blocks of `threads`) and %x the same as i64; the body has to end with `ret void`.
std::string kernel_ir(const std::string& name, int pointers, int threads, const std::string& body);

// Replaces the `number`-th instruction of that name (as the disassembler prints it, up to the first space) by s_nop.
// False where there are not so many.
bool remove_instruction(std::vector<std::uint8_t>& file, const std::string& target,
                        std::string_view name, int number);

// Overwrites bits of the `number`-th instruction of a name: word `word` becomes (word & ~clear) | set.
bool change_instruction(std::vector<std::uint8_t>& file, const std::string& target,
                        std::string_view name, int number, unsigned word, std::uint32_t clear,
                        std::uint32_t set);

class Device {
 public:
  explicit Device(std::string target, int devices = 1)
      : target_(std::move(target)), memory_(devices, 1ULL << 30) {}

  void load(const std::vector<std::uint8_t>& file) {
    module_ = std::make_unique<CodeObject>(file, target_, memory_, 0);
  }
  void load_ir(const std::string& ir) { load(compile(ir, target_)); }

  template <class T>
  std::uint64_t upload(const std::vector<T>& values) {
    const std::uint64_t address = memory_.allocate(0, values.size() * sizeof(T));
    std::memcpy(memory_.find(address, values.size() * sizeof(T)), values.data(),
                values.size() * sizeof(T));
    return address;
  }
  template <class T>
  std::vector<T> download(std::uint64_t address, std::size_t count) const {
    std::vector<T> values(count);
    std::memcpy(values.data(), memory_.find(address, count * sizeof(T)), count * sizeof(T));
    return values;
  }

  // Arguments are 8 bytes each.
  LaunchCounts run(const std::string& kernel, std::uint32_t blocks, std::uint32_t threads,
                   std::vector<std::uint64_t> arguments, int host_threads = 2);
  // As run; gives the text of the fault, or nothing.
  std::string fault(const std::string& kernel, std::uint32_t blocks, std::uint32_t threads,
                    std::vector<std::uint64_t> arguments);

  [[nodiscard]] DeviceMemory& memory() { return memory_; }
  [[nodiscard]] const std::string& target() const { return target_; }
  [[nodiscard]] const CodeObject& module() const { return *module_; }

 private:
  std::string target_;
  DeviceMemory memory_;
  std::unique_ptr<CodeObject> module_;
};

inline const std::array<const char*, 2> kTargets = {"gfx942", "gfx1100"};

}  // namespace amdgpu_emulator
