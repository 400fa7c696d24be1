// A library call comes in, as row-major views with strides; matrices that lie column by column leave, or
// the reason why cuBLASLt cannot take it. Example: c[5, 7] = a[5, 3] b[3, 7], all row-major, is the
// product of columns c'[7, 5] = b'[7, 3] a'[3, 5], for which nothing is copied.
#include "devices/cuda/matmul_spec.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/options.h"

namespace tinyshard::cuda {
namespace {

constexpr int64_t kMostCalls = 32;
constexpr int64_t kAuxUnit = 8;  // rows of what precedes a GELU are a multiple of this long

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

// Batch dims, innermost first; a dim that continues the one inside of it in all three joins it.
std::vector<MatmulSpec::Loop> batch_dims(const StridedView& a, const StridedView& b,
                                         int64_t out_stride) {
  std::vector<MatmulSpec::Loop> dims;
  for (size_t i = a.shape.size() - 2; i-- > 0;) {
    int64_t size = a.shape[i];
    if (size == 1) continue;
    MatmulSpec::Loop dim{size, b.strides[i], a.strides[i], out_stride};
    out_stride *= size;
    if (!dims.empty()) {
      MatmulSpec::Loop& inner = dims.back();
      if (dim.first == inner.first * inner.size && dim.second == inner.second * inner.size &&
          dim.out == inner.out * inner.size) {
        inner.size *= size;
        continue;
      }
    }
    dims.push_back(dim);
  }
  return dims;
}

// Fills in the epilogue; says what stands against it, if anything.
std::string add_epilogue(const LibraryCall& call, MatmulSpec& spec) {
  const std::optional<Epilogue> asked = gpu::epilogue_of(call.node);
  if (!asked) return fmt::format("cuBLASLt has no product with \"{}\"", region_of(call.node)->name);
  spec.epilogue = *asked;
  bool gelu = spec.epilogue == Epilogue::BiasGelu;
  if (!call.also.empty()) {
    // The one pair of results: a GELU and the value before it.
    const UOp& other = call.also[0];
    const std::optional<Epilogue> second = gpu::epilogue_of(other);
    bool pair = call.also.size() == 1 && other.dtype() == call.node.dtype() &&
                (gelu ? second == Epilogue::Bias
                      : spec.epilogue == Epilogue::Bias && second == Epilogue::BiasGelu);
    if (!pair) return "two results are GELU and what precedes it, nothing else";
    spec.epilogue = Epilogue::BiasGelu;
    spec.result_slot = gelu ? 3 : 4;
    spec.sum_slot = gelu ? 4 : 3;
  } else if (spec.epilogue != Epilogue::None) {
    spec.result_slot = int(call.operands.size());
  }
  if (spec.epilogue == Epilogue::None) return {};
  if (spec.result == DType::F64) return "no epilogues in f64";
  // The library's GELU has an error of some 1e-6 of the largest value: too much for f32.
  bool with_gelu = gelu || spec.epilogue == Epilogue::GeluBackward;
  if (spec.result == DType::F32 && with_gelu && !options().tf32)
    return "GELU in f32 is not exact enough";
  if (spec.batch > 1 || !spec.loops.empty()) return "no epilogues of batches";
  const StridedView& third = call.operands[2];
  spec.third_offset = third.offset;
  if (third.shape.back() > 1 && third.strides.back() != 1)
    return "the epilogue's operand has gaps in its rows";
  const bool update = spec.epilogue == Epilogue::Update;
  if (update || spec.epilogue == Epilogue::GeluBackward) {
    spec.third_ld = spec.m > 1 ? third.strides[0] : spec.n;
    if (spec.third_ld < spec.n) return "rows of the epilogue's operand overlap";
  }
  if (update) {
    if (spec.third_ld != spec.n) return "what is updated has gaps between its rows";
    if (call.operands.size() < 4) return {};
    const StridedView& factors = call.operands[3];
    if (factors.strides[0] != 1) return "the factors do not lie side by side";
    spec.factors_offset = factors.offset;
    spec.factors_slot = 3;
    return {};
  }
  if (spec.sum_slot > 0) spec.third_ld = spec.n;
  if (spec.third_ld % kAuxUnit != 0)
    return fmt::format("rows of {} are no multiple of {}", spec.third_ld, kAuxUnit);
  return {};
}

std::string_view epilogue_name(const MatmulSpec& spec) {
  switch (spec.epilogue) {
    case Epilogue::None:
      break;
    case Epilogue::Bias:
      return " + bias";
    case Epilogue::BiasRelu:
      return " + bias, ReLU";
    case Epilogue::BiasGelu:
      return spec.sum_slot > 0 ? " + bias, kept, GELU" : " + bias, GELU";
    case Epilogue::GeluBackward:
      return " * GELU's slope";
    case Epilogue::Update:
      return spec.factors_slot > 0 ? ", scaled, + what is there" : " + what is there";
  }
  return "";
}

std::string text_of(const Matrix& x) {
  return fmt::format("{}{}{}", x.ld, x.transposed ? "t" : "",
                     x.batch_stride ? fmt::format("/{}", x.batch_stride) : "");
}

}  // namespace

int64_t MatmulSpec::calls() const {
  int64_t n = 1;
  for (const Loop& loop : loops) n *= loop.size;
  return n;
}

std::string MatmulSpec::describe() const {
  return fmt::format("{}{}: {} x {} x {}{}, batch {}, {} calls, columns {} {} {} {} apart",
                     tinyshard::name(type),
                     result == type ? "" : fmt::format("->{}", tinyshard::name(result)), m, k, n,
                     epilogue_name(*this), batch, calls(), text_of(first), text_of(second),
                     text_of(out), third_ld);
}

std::optional<MatmulSpec> matmul_spec(const LibraryCall& call, std::string* why) {
  auto refuse = [&](std::string reason) {
    if (why) *why = std::move(reason);
    return std::nullopt;
  };
  MatmulSpec spec;
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
  // The longest of the batch dims is the batch of a call.
  std::vector<MatmulSpec::Loop> dims = batch_dims(a, b, spec.m * spec.n);
  if (!dims.empty()) {
    auto longest = std::ranges::max_element(dims, {}, &MatmulSpec::Loop::size);
    spec.batch = longest->size;
    spec.first.batch_stride = longest->first;
    spec.second.batch_stride = longest->second;
    spec.out.batch_stride = longest->out;
    dims.erase(longest);
  }
  spec.loops = std::move(dims);
  if (spec.calls() > kMostCalls)
    return refuse(fmt::format("batches that lie so apart need {} calls", spec.calls()));
  if (std::string against = add_epilogue(call, spec); !against.empty()) return refuse(against);
  return spec;
}

}  // namespace tinyshard::cuda
