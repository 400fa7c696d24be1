// Which scatters there are kernels for, and their programs.
#include "devices/gpu/scatter.h"

#include <algorithm>
#include <array>
#include <limits>

#include "core/uop/args.h"
#include "devices/gpu/program.h"

namespace tinyshard::gpu {
namespace {

bool known_dtype(DType dtype) {
  return dtype != DType::Bool && dtype != DType::Index && !is_float8(dtype);
}

DType unsigned_of(size_t bytes) {
  return bytes == 1 ? DType::U8 : bytes == 2 ? DType::U16 : bytes == 4 ? DType::U32 : DType::U64;
}

// So few pairs of a place and a row are compared in the kernel that reads the result.
constexpr int64_t kPairs = 1 << 12;

// Keys are of 32 bits, and so are places.
bool can_sort(const ScatterShape& s) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  return s.rows_out < most && s.lists() * std::max(s.rows_in, SortShape::kDigits) < most;
}

// Tells whether sorting takes less time than that groups of 32 rows of the result look at all source rows each.
// Measured on an H100: a warp looks at 32 indices that its columns share in 0.25 us, or at one, and so it
// takes a row that goes to its group. All warps together look at 1.3e11 a second, and at 4e9 where the
// threads of one read lists that lie apart. A sort and what comes with it take 40 to 100 us.
bool is_worth_sorting(const ScatterShape& s) {
  if (s.op != ReduceOp::Sum) return true;
  if (!can_sort(s) || s.outer * s.rows_out * s.inner == 0) return false;
  constexpr int64_t kGroup = 32, kWarp = 32, kMostSteps = 1 << 10, kMostTaken = 1 << 7,
                    kLongList = 1 << 14;
  constexpr double kMostLooks = 1 << 25, kMostLooksApart = 1 << 20;
  const bool shared = s.lists() == s.outer;
  if (!shared && s.rows_in < kLongList) return false;  // lists that lie apart are slow to sort, too
  const int64_t groups = (s.rows_out + kGroup - 1) / kGroup;
  const bool together = shared && s.inner % kWarp == 0;
  const int64_t steps = together ? s.rows_in / kWarp : s.rows_in;
  const int64_t warps = (s.outer * s.inner + kWarp - 1) / kWarp;
  return steps > kMostSteps || s.rows_in / groups > kMostTaken ||
         double(warps) * double(groups) * double(steps) > (together ? kMostLooks : kMostLooksApart);
}

}  // namespace

std::optional<ScatterShape> scatter_shape(const LibraryCall& call) {
  const UOp& x = call.node;
  const StridedView& index = call.operands[0];
  size_t axis = size_t(scatter_arg(*x).axis), rank = index.shape.size();
  auto outer = joint_stride(index, 0, axis), inner = joint_stride(index, axis + 1, rank);
  DType index_dtype = x.src(0).dtype();
  const bool writes = scatter_arg(*x).writes;
  if (!outer || !inner || !(writes || known_dtype(x.dtype())) ||
      (index_dtype != DType::I32 && index_dtype != DType::I64))
    return std::nullopt;
  ScatterShape s;
  if (!writes) s.op = scatter_arg(*x).op;
  s.dtype = x.dtype();
  if (x->sources > 2) s.base = x.src(2).dtype();
  if (writes) {
    if (s.base != s.dtype) return std::nullopt;
    s.writes = true;
    s.base = s.dtype = unsigned_of(itemsize(s.dtype));
  }
  bool widened = s.dtype == DType::F32 && (s.base == DType::BF16 || s.base == DType::F16);
  if (s.base && s.base != s.dtype && !widened) return std::nullopt;
  s.index_dtype = index_dtype;
  s.outer = product(DimSpan(index.shape).first(axis));
  s.rows_in = index.shape[axis];
  s.rows_out = scatter_arg(*x).size;
  s.inner = product(DimSpan(index.shape).subspan(axis + 1));
  s.index_offset = index.offset;
  s.index_outer = *outer;
  s.index_row = index.strides[axis];
  s.index_inner = *inner;
  if (s.op != ReduceOp::Sum && (!can_sort(s) || s.rows_in * s.rows_out <= kPairs))
    return std::nullopt;
  return s;
}

namespace {

ScatterShape changed_in_place(ScatterShape shape) {
  shape.in_place = true;
  return shape;
}

// A scatter from a base, which may be the result.
class ScatterFromBase : public Program {
 public:
  ScatterFromBase(Gpu& gpu, const ScatterShape& shape, const ScatterCode& code)
      : apart_(gpu, code.grouped(shape)), in_place_(gpu, code.grouped(changed_in_place(shape))) {}
  void launch(void* const* buffers, const int64_t* coordinates) override {
    const bool one = buffers[2] == buffers[3];
    (one ? in_place_ : apart_).launch(buffers, coordinates);
  }
  std::string describe() const override { return apart_.describe(); }

 private:
  KernelProgram apart_, in_place_;
};

// Keys, their order and the bounds lie in the workspace of the sort.
class ScatterBySorting : public GpuProgram {
 public:
  ScatterBySorting(Gpu& gpu, const ScatterShape& shape, const ScatterCode& code)
      : ScatterBySorting(gpu, shape, code, code.sorted(shape)) {}

  void enqueue(void* const* buffers, const int64_t* coordinates) override {
    char* memory = sort_->reserved();
    const std::array<void*, 3> sorted{memory, memory + bytes_, memory + 2 * bytes_};
    const std::array<void*, 2> index{buffers[0], sorted[0]};
    keys_.enqueue(index.data(), coordinates);
    sort_->enqueue(sorted.data(), coordinates);
    void* moved = sort_->moved_keys();
    clear_.enqueue(&sorted[2], coordinates);
    const std::array<void*, 3> marked{moved ? moved : sorted[0], sorted[1], sorted[2]};
    mark_.enqueue(marked.data(), coordinates);
    std::array<void*, 5> all{sorted[2], sorted[1], buffers[1], buffers[2], nullptr};
    if (based_) all[4] = buffers[3];
    const bool one = based_ && buffers[2] == buffers[3];
    (one && in_place_ ? *in_place_ : combine_).enqueue(all.data(), coordinates);
  }
  const void* scratch() const override { return sort_->scratch(); }
  std::string describe() const override { return "sorted scatter: " + combine_.describe(); }

 private:
  ScatterBySorting(Gpu& gpu, const ScatterShape& shape, const ScatterCode& code,
                   const SortedScatter& kernels)
      : GpuProgram(gpu),
        based_(shape.base.has_value()),
        bytes_((shape.lists() * shape.rows_in * int64_t(sizeof(int32_t)) + 255) / 256 * 256),
        keys_(gpu, kernels.keys),
        clear_(gpu, kernels.clear),
        mark_(gpu, kernels.mark),
        combine_(gpu, kernels.combine) {
    if (shape.base == shape.dtype)
      in_place_.emplace(gpu, code.sorted(changed_in_place(shape)).combine);
    sort_ = make_sort(gpu, shape.sort(), code.sort,
                      2 * bytes_ + shape.lists() * shape.rows_out * 2 * int64_t(sizeof(int32_t)));
  }

  const bool based_;
  const int64_t bytes_;  // of keys, and of their order
  KernelProgram keys_, clear_, mark_, combine_;
  std::optional<KernelProgram> in_place_;
  std::unique_ptr<SortProgram> sort_;
};

}  // namespace

bool scatter_supports(const LibraryCall& call, std::string* why) {
  if (scatter_shape(call)) return true;
  if (why) *why = "the index lies too far apart, or something is of a type without scatter";
  return false;
}

std::unique_ptr<Program> make_scatter(Gpu& gpu, const LibraryCall& call, const ScatterCode& code) {
  const ScatterShape shape = scatter_shape(call).value();
  if (is_worth_sorting(shape)) return std::make_unique<ScatterBySorting>(gpu, shape, code);
  if (shape.base == shape.dtype) return std::make_unique<ScatterFromBase>(gpu, shape, code);
  return std::make_unique<KernelProgram>(gpu, code.grouped(shape));
}

}  // namespace tinyshard::gpu
