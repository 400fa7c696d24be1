#include "devices/cuda/matmul.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "devices/cuda/cublaslt.h"

namespace tinyshard::cuda {
namespace {

constexpr int64_t kMostCalls = 32;

// A matrix as cuBLASLt has them: columns one after the other, `ld` apart.
struct Matrix {
  int64_t rows, cols, ld;
  bool transposed;  // relative to what the product wants
  int64_t batch_stride = 0;
  int64_t offset = 0;  // elements from the start of the buffer
};

// One batched product, repeated over loops that its batch cannot express. Our results are row
// major, so it computes the transposed product: (A B)^T = B^T A^T.
struct Spec {
  DType type, result;
  int64_t m, n, k;
  Matrix first, second, out;  // B^T, A^T and the result
  int64_t batch = 1;
  struct Loop {
    int64_t size, first, second, out;
  };
  std::vector<Loop> loops;
  int64_t calls() const {
    int64_t n = 1;
    for (const Loop& loop : loops) n *= loop.size;
    return n;
  }
};

// rows x cols elements with these strides, as a column-major matrix or as the transpose of one.
std::optional<Matrix> matrix(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride) {
  if (rows == 1) row_stride = 1;
  if (cols == 1) col_stride = row_stride == 1 ? rows : 1;
  if (rows == 1 && cols > 1 && col_stride < 1) return std::nullopt;
  if (row_stride == 1 && col_stride >= rows) return Matrix{rows, cols, col_stride, false};
  if (col_stride == 1 && row_stride >= cols) return Matrix{cols, rows, row_stride, true};
  return std::nullopt;
}

bool types(const LibraryCall& call, DType* type, DType* result) {
  *type = call.node.src(0).dtype();
  *result = call.node.dtype();
  if (call.node.src(1).dtype() != *type) return false;
  switch (*type) {
    case DType::F32:
    case DType::F64:
      return *result == *type;
    case DType::F16:
    case DType::BF16:
      return *result == *type || *result == DType::F32;
    default:
      return false;
  }
}

std::optional<Spec> spec_of(const LibraryCall& call, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return std::nullopt;
  };
  Spec spec;
  if (!types(call, &spec.type, &spec.result))
    return refuse(fmt::format("cuBLASLt has no product of {} and {} to {}",
                              name(call.node.src(0).dtype()), name(call.node.src(1).dtype()),
                              name(call.node.dtype())));
  const StridedView &a = call.operands[0], &b = call.operands[1];
  size_t batch = a.shape.size() - 2;
  spec.m = a.shape[batch];
  spec.k = a.shape[batch + 1];
  spec.n = b.shape[batch + 1];
  if (product(a.shape) == 0 || product(b.shape) == 0) return refuse("the product is empty");
  auto first = matrix(spec.n, spec.k, b.strides[batch + 1], b.strides[batch]);
  auto second = matrix(spec.k, spec.m, a.strides[batch + 1], a.strides[batch]);
  if (!first || !second) return refuse("neither rows nor columns of an operand are contiguous");
  spec.first = *first;
  spec.second = *second;
  spec.first.offset = b.offset;
  spec.second.offset = a.offset;
  spec.out = {spec.n, spec.m, spec.n, false};
  constexpr int64_t kLargest = 2147483647;
  for (const Matrix* x : {&spec.first, &spec.second, &spec.out}) {
    if (x->rows > kLargest || x->cols > kLargest) return refuse("a dim is too long");
  }
  // Batch dims, innermost first; a dim that continues the one inside of it in all three joins it.
  int64_t out_stride = spec.m * spec.n;
  std::vector<Spec::Loop> dims;
  for (size_t i = batch; i-- > 0;) {
    int64_t size = a.shape[i];
    if (size == 1) continue;
    Spec::Loop dim{size, b.strides[i], a.strides[i], out_stride};
    out_stride *= size;
    if (!dims.empty()) {
      Spec::Loop& inner = dims.back();
      if (dim.first == inner.first * inner.size && dim.second == inner.second * inner.size &&
          dim.out == inner.out * inner.size) {
        inner.size *= size;
        continue;
      }
    }
    dims.push_back(dim);
  }
  // The longest is the batch of a call.
  if (!dims.empty()) {
    auto longest = std::ranges::max_element(dims, {}, &Spec::Loop::size);
    spec.batch = longest->size;
    spec.first.batch_stride = longest->first;
    spec.second.batch_stride = longest->second;
    spec.out.batch_stride = longest->out;
    dims.erase(longest);
  }
  spec.loops = std::move(dims);
  if (spec.calls() > kMostCalls)
    return refuse(fmt::format("batches that lie so apart need {} calls", spec.calls()));
  return spec;
}

LtType lt_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return kLtF64;
    case DType::F16:
      return kLtF16;
    case DType::BF16:
      return kLtBf16;
    default:
      return kLtF32;
  }
}

// Handles with their ends, so that a plan half made leaks nothing.
template <class Handle, LtStatus (*CublasLt::*Destroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  ~Owned() {
    if (handle) (CublasLt::get().*Destroy)(handle);
  }
};
using OwnedMatmul = Owned<LtMatmul, &CublasLt::matmul_destroy>;
using OwnedLayout = Owned<LtLayout, &CublasLt::layout_destroy>;
using OwnedPreference = Owned<LtPreference, &CublasLt::preference_destroy>;
using OwnedHandle = Owned<LtHandle, &CublasLt::destroy>;

class MatmulProgram final : public CudaProgram {
 public:
  MatmulProgram(Gpu& gpu, Spec spec)
      : CudaProgram(gpu), lt_(CublasLt::get()), spec_(std::move(spec)) {
    bool wide = spec_.type == DType::F64;
    bool tf32 = spec_.type == DType::F32 && options().tf32;
    if (!gpu.library_state) {
      auto handle = std::make_shared<OwnedHandle>();
      check(lt_.create(&handle->handle), "a handle");
      gpu.library_state = handle;
    }
    handle_ = std::static_pointer_cast<OwnedHandle>(gpu.library_state)->handle;
    check(lt_.matmul_create(&matmul_.handle,
                            wide   ? kLtComputeF64
                            : tf32 ? kLtComputeTf32
                                   : kLtComputeF32,
                            wide ? kLtF64 : kLtF32),
          "a product");
    transpose(kLtTransposeA, spec_.first.transposed);
    transpose(kLtTransposeB, spec_.second.transposed);
    layout(first_, spec_.first, spec_.type);
    layout(second_, spec_.second, spec_.type);
    layout(out_, spec_.out, spec_.result);
  }

  void enqueue(void* const* buffers, const int64_t*) override {
    const char* a = at(buffers[0], spec_.second.offset, spec_.type);
    const char* b = at(buffers[1], spec_.first.offset, spec_.type);
    if (spec_.loops.empty()) return run(b, a, buffers[2]);
    for (int64_t call = 0; call < spec_.calls(); ++call) {
      int64_t rest = call, first = 0, second = 0, out = 0;
      for (const Spec::Loop& loop : spec_.loops) {
        int64_t i = rest % loop.size;
        rest /= loop.size;
        first += i * loop.first;
        second += i * loop.second;
        out += i * loop.out;
      }
      run(at(b, first, spec_.type), at(a, second, spec_.type),
          const_cast<char*>(at(buffers[2], out, spec_.result)));
    }
  }

  std::string describe() const override {
    return fmt::format("cuBLASLt {}{}: {} x {} x {}, batch {}, {} calls", name(spec_.type),
                       spec_.result == spec_.type ? "" : fmt::format("->{}", name(spec_.result)),
                       spec_.m, spec_.k, spec_.n, spec_.batch, spec_.calls());
  }

 private:
  static const char* at(const void* base, int64_t element, DType dtype) {
    return static_cast<const char*>(base) + element * int64_t(itemsize(dtype));
  }
  void check(LtStatus status, std::string_view asked) const {
    if (status != 0)
      lt_.check(status, gpu_.name(), fmt::format("cuBLASLt, {} of {}", asked, describe()));
  }
  void transpose(LtMatmulAttribute attribute, bool transposed) {
    int32_t value = transposed;
    check(lt_.matmul_set(matmul_.handle, attribute, &value, sizeof(value)), "a transpose");
  }
  void layout(OwnedLayout& layout, const Matrix& x, DType dtype) {
    check(lt_.layout_create(&layout.handle, lt_type(dtype), uint64_t(x.rows), uint64_t(x.cols),
                            std::max(x.ld, x.rows)),
          "a layout");
    if (spec_.batch == 1) return;
    auto count = int32_t(spec_.batch);
    check(lt_.layout_set(layout.handle, kLtBatchCount, &count, sizeof(count)), "a batch");
    check(lt_.layout_set(layout.handle, kLtBatchStride, &x.batch_stride, sizeof(x.batch_stride)),
          "a batch");
  }

  // Algorithms differ in the alignment they need: one is chosen for each combination that occurs.
  static uint32_t alignment(const void* p) {
    return uint32_t(std::min<uintptr_t>(256, uintptr_t{1} << std::countr_zero(uintptr_t(p))));
  }
  const LtCandidate& algorithm(const std::array<uint32_t, 3>& aligned) {
    auto found = algorithms_.find(aligned);
    if (found != algorithms_.end()) return found->second;
    OwnedPreference preference;
    check(lt_.preference_create(&preference.handle), "a preference");
    auto set = [&](LtPreferenceAttribute attribute, auto value) {
      check(lt_.preference_set(preference.handle, attribute, &value, sizeof(value)),
            "a preference");
    };
    set(kLtMaxWorkspace, uint64_t{Gpu::kWorkspaceBytes});
    set(kLtAlignmentA, aligned[0]);
    set(kLtAlignmentB, aligned[1]);
    set(kLtAlignmentC, aligned[2]);
    set(kLtAlignmentD, aligned[2]);
    LtCandidate candidate{};
    int count = 0;
    LtStatus status =
        lt_.heuristic(handle_, matmul_.handle, first_.handle, second_.handle, out_.handle,
                      out_.handle, preference.handle, 1, &candidate, &count);
    if (status == 0 && count == 0) status = candidate.state;
    check(status, "an algorithm");
    if (count == 0)
      throw DeviceError(fmt::format("{}: no algorithm for {}", gpu_.name(), describe()));
    return algorithms_.emplace(aligned, candidate).first->second;
  }

  void run(const void* first, const void* second, void* out) {
    const LtCandidate& chosen = algorithm({alignment(first), alignment(second), alignment(out)});
    const double one64 = 1, zero64 = 0;
    const float one32 = 1, zero32 = 0;
    bool wide = spec_.type == DType::F64;
    const void* one = wide ? static_cast<const void*>(&one64) : &one32;
    const void* zero = wide ? static_cast<const void*>(&zero64) : &zero32;
    check(lt_.matmul(handle_, matmul_.handle, one, first, first_.handle, second, second_.handle,
                     zero, out, out_.handle, out, out_.handle, &chosen.algorithm, workspace_.get(),
                     Gpu::kWorkspaceBytes, gpu_.stream(Queue::Compute)),
          "running");
  }

  const CublasLt& lt_;
  std::shared_ptr<void> workspace_ = gpu_.workspace(Gpu::kWorkspaceBytes);
  Spec spec_;
  LtHandle handle_ = nullptr;  // of the GPU
  OwnedMatmul matmul_;
  OwnedLayout first_, second_, out_;
  std::map<std::array<uint32_t, 3>, LtCandidate> algorithms_;
};

}  // namespace

bool matmul_supports(const LibraryCall& call, std::string* why) {
  if (!CublasLt::get().found()) {
    if (why) *why = "cuBLASLt is missing: " + CublasLt::get().why_not();
    return false;
  }
  return spec_of(call, why).has_value();
}

std::unique_ptr<Program> make_matmul(Gpu& gpu, const LibraryCall& call) {
  std::string why;
  auto spec = spec_of(call, &why);
  if (!spec) throw InternalError("a product that was refused: " + why);
  return std::make_unique<MatmulProgram>(gpu, std::move(*spec));
}

}  // namespace tinyshard::cuda
