// Slices come before constants: kernels that differ by the place of a slice are equal by then, and
// so share one family of constants (core/codegen/scalars.cpp).
#include "core/exec/kernel_steps.h"

#include <array>
#include <string>

#include <fmt/format.h>

#include "core/codegen/offsets.h"
#include "core/codegen/scalars.h"
#include "core/uop/uop.h"

namespace tinyshard {
namespace {

using One = KernelsToCompile::One;

void move_slices(KernelsToCompile& s) {
  for (const One& one : s.kernels) begin_at_slices(*one.kernel);
}

void note_constants(KernelsToCompile& s) {
  for (const One& one : s.kernels) choose_scalars(*one.kernel, *one.target, one.coordinates);
}

constexpr auto kSteps = std::to_array<KernelStep>({
    {"offsets", "a slice is a pointer into its buffer, and no other kernel when it moves", false,
     move_slices},
    {"constants", "constants that change from run to run come with the calls", false,
     note_constants},
});

struct Watcher {
  static std::string count(const KernelsToCompile& s) {
    return fmt::format("{} kernels", s.kernels.size());
  }
  static std::string text(const KernelsToCompile& s) {
    std::string text;
    for (const One& one : s.kernels) {
      text += fmt::format("  kernel {}", one.kernel->name);
      for (size_t i = 0; i < one.kernel->params.size(); ++i) {
        const int64_t offset = one.kernel->params[i].offset;
        if (offset > 0) text += fmt::format(", p{} from byte {}", i, offset);
      }
      for (const UOp& c : one.kernel->scalars.constants)
        text += fmt::format(", {} by the call", describe(*c));
      text += "\n";
    }
    return text;
  }
  static void verify(const KernelsToCompile&, const KernelStep&) {}
  static bool done(const KernelsToCompile&) { return false; }
};

}  // namespace

std::span<const KernelStep> kernel_steps() { return kSteps; }

void run_kernel_steps(KernelsToCompile& state) {
  if (state.kernels.empty()) return;
  run_steps<KernelsToCompile>("kernel step", kSteps, state, Watcher());
}

}  // namespace tinyshard
