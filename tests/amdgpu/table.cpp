// Collects the rows of all classes of instructions.
#include "tests/amdgpu/table.h"

namespace amdgpu_emulator {

const Table& table() {
  static const Table rows = [] {
    Table all;
    add_scalar(all);
    add_flow(all);
    add_float(all);
    add_double(all);
    add_half(all);
    add_integer(all);
    add_wide_integer(all);
    add_conversions(all);
    add_comparisons(all);
    add_lanes(all);
    add_packed(all);
    add_matrix(all);
    add_memory(all);
    add_scalar_memory(all);
    add_local(all);
    add_atomics(all);
    return all;
  }();
  return rows;
}

}  // namespace amdgpu_emulator
