#include "tests/core/codegen/machine.h"

#include "devices/cpu/program.h"

namespace tinyshard::test {
namespace {

class Processor : public Machine {
 public:
  const Target& target() const override {
    static const Target target = host_target();
    return target;
  }
  bool splits() const override { return true; }
  // Last part first.
  void run(const CompiledKernel& kernel, std::span<const MachineBuffer> buffers,
           std::span<const int64_t> coordinates, int parts) override {
    static ThreadPool pool(1);
    CpuProgram program(kernel.code, pool);
    std::vector<void*> pointers;
    for (const MachineBuffer& b : buffers) pointers.push_back(b.data);
    int64_t items = program.work_items();
    for (int64_t part = parts - 1; part >= 0; --part) {
      program.run(pointers.data(), coordinates.data(), items * part / parts,
                  items * (part + 1) / parts);
    }
  }
};

std::unique_ptr<Machine>& current() {
  static std::unique_ptr<Machine> machine = std::make_unique<Processor>();
  return machine;
}

}  // namespace

Machine& machine() { return *current(); }
void use_machine(std::unique_ptr<Machine> machine) { current() = std::move(machine); }

}  // namespace tinyshard::test
