// cuBLASLt has matrices by columns, and a matrix by rows is a transposed
// one to it: c = a b is computed as c' = b' a', with the second operand
// first. Batch dims that one call cannot express become a loop of calls.
//
// An algorithm for a product with an epilogue may not exist, so one is looked for at once, with
// pointers of an assumed alignment; plain products of all shapes are there.
#include "devices/cuda/matmul.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "devices/cuda/gpu_target.h"
#include "devices/cuda/lt_product.h"

namespace tinyshard::cuda {
namespace {

// Multiplications that get faster by as much as the copy of one element takes, where one operand or
// both come to lie along the sum.
constexpr int64_t kGainOfOne = 600, kGainOfBoth = 4000;
// Smaller products take as long as the copies, whatever they gain.
constexpr int64_t kLeast = 1 << 28;

const char* at(const void* base, int64_t element, DType dtype) {
  return static_cast<const char*>(base) + element * int64_t(itemsize(dtype));
}
char* at(void* base, int64_t element, DType dtype) {
  return static_cast<char*>(base) + element * int64_t(itemsize(dtype));
}

LtProduct::Pointers pointers(const MatmulSpec& spec, void* const* buffers) {
  LtProduct::Pointers p{at(std::as_const(buffers[1]), spec.first.offset, spec.type),
                        at(std::as_const(buffers[0]), spec.second.offset, spec.type),
                        buffers[spec.result_slot]};
  if (spec.epilogue != Epilogue::None)
    p.third = at(std::as_const(buffers[2]), spec.third_offset, spec.result);
  if (spec.sum_slot > 0) p.sum = buffers[spec.sum_slot];
  if (spec.factors_slot > 0)
    p.factors = at(std::as_const(buffers[spec.factors_slot]), spec.factors_offset, DType::F32);
  return p;
}

class MatmulProgram final : public GpuProgram {
 public:
  MatmulProgram(Gpu& gpu, MatmulSpec spec)
      : GpuProgram(gpu),
        workspace_(gpu.workspace(kWorkspaceBytes, gpu.next_workspace())),
        product_(gpu, std::move(spec)) {}

  void enqueue(void* const* buffers, const int64_t*) override {
    const MatmulSpec& spec = product_.spec();
    LtProduct::Pointers all = pointers(spec, buffers);
    all.workspace = workspace_.get();
    for (int64_t call = 0; call < spec.calls(); ++call) {
      LtProduct::Pointers p = all;
      int64_t rest = call;
      for (const MatmulSpec::Loop& loop : spec.loops) {
        int64_t i = rest % loop.size;
        rest /= loop.size;
        p.first = at(p.first, i * loop.first, spec.type);
        p.second = at(p.second, i * loop.second, spec.type);
        p.out = at(p.out, i * loop.out, spec.result);
      }
      product_.run(p);
    }
  }

  const void* scratch() const override {
    return product_.uses_workspace() ? workspace_.get() : nullptr;
  }
  std::string describe() const override { return "cuBLASLt " + product_.spec().describe(); }

 private:
  std::shared_ptr<void> workspace_;
  LtProduct product_;
};

}  // namespace

bool matmul_supports(const Gpu& gpu, const LibraryCall& call, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return false;
  };
  if (!CublasLt::get().found()) return refuse("cuBLASLt is missing: " + CublasLt::get().why_not());
  auto spec = matmul_spec(call, why);
  if (!spec) return false;
  // The library takes plain products of all shapes; with epilogues it is asked, as for buffers
  // aligned as they are at least.
  if (spec->epilogue == Epilogue::None) return true;
  void* assumed = reinterpret_cast<void*>(uintptr_t{64});  // NOLINT(performance-no-int-to-ptr)
  void* const buffers[] = {assumed, assumed, assumed, assumed, assumed};
  LtProduct product(const_cast<Gpu&>(gpu), *spec);  // opens the library, launches nothing
  if (!product.exists(pointers(*spec, buffers)))
    return refuse("cuBLASLt has no algorithm for " + spec->describe());
  return true;
}

int64_t matmul_worth_copying(const Target& target, const LibraryCall& call, int operand) {
  auto spec = matmul_spec(call, nullptr);
  bool hopper_tf32 = spec && spec->type == DType::F32 && options().tf32 && spec->batch == 1 &&
                     spec->loops.empty() && is_hopper(target);
  if (!hopper_tf32) return 0;
  // Columns of spec.first run along the sum when it is transposed, those of the second as they are.
  bool other_lies_along = operand == 0 ? spec->first.transposed : !spec->second.transposed;
  int64_t multiplications = spec->m * spec->n * spec->k;
  if (multiplications < kLeast) return 0;
  return multiplications / (other_lies_along ? kGainOfBoth : kGainOfOne);
}

std::unique_ptr<Program> make_matmul(Gpu& gpu, const LibraryCall& call) {
  std::string why;
  auto spec = matmul_spec(call, &why);
  if (!spec) throw InternalError("a product that was refused: " + why);
  return std::make_unique<MatmulProgram>(gpu, std::move(*spec));
}

}  // namespace tinyshard::cuda
