// Which scatters there are kernels for, and their programs.
#include "devices/gpu/scatter.h"

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
  if (scatter_arg(*x).op != ReduceOp::Sum && !writes) return std::nullopt;
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
  return s;
}

namespace {

// A scatter from a base, which may be the result.
class ScatterFromBase : public Program {
 public:
  ScatterFromBase(Gpu& gpu, ScatterShape shape, const ScatterCode& code)
      : apart_(gpu, code(shape)), in_place_(gpu, code(changed_in_place(shape))) {}
  void launch(void* const* buffers, const int64_t* coordinates) override {
    const bool one = buffers[2] == buffers[3];
    (one ? in_place_ : apart_).launch(buffers, coordinates);
  }
  std::string describe() const override { return apart_.describe(); }

 private:
  static ScatterShape changed_in_place(ScatterShape shape) {
    shape.in_place = true;
    return shape;
  }
  KernelProgram apart_, in_place_;
};

}  // namespace

bool scatter_supports(const LibraryCall& call, std::string* why) {
  if (scatter_shape(call)) return true;
  if (why) *why = "the index lies too far apart, or something is of a type without scatter";
  return false;
}

std::unique_ptr<Program> make_scatter(Gpu& gpu, const LibraryCall& call, const ScatterCode& code) {
  const ScatterShape shape = scatter_shape(call).value();
  if (shape.base == shape.dtype) return std::make_unique<ScatterFromBase>(gpu, shape, code);
  return std::make_unique<KernelProgram>(gpu, code(shape));
}

}  // namespace tinyshard::gpu
