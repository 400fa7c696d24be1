// Where the kernels of the tests run: on this processor unless the program says otherwise.
#pragma once
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/codegen/codegen.h"

namespace tinyshard::test {

struct MachineBuffer {
  void* data;
  size_t bytes;
};

class Machine {
 public:
  virtual ~Machine() = default;
  virtual const Target& target() const = 0;
  virtual bool splits() const { return false; }   // runs kernels in parts
  virtual bool computes() const { return true; }  // there are results to look at
  // Buffers lie in this process; what the kernel writes is there when it returns.
  virtual void run(const CompiledKernel& kernel, std::span<const MachineBuffer> buffers,
                   std::span<const int64_t> coordinates, int parts) = 0;
};

Machine& machine();
void use_machine(std::unique_ptr<Machine> machine);

}  // namespace tinyshard::test
