// Which scatters there are kernels for, and their programs.
#include "devices/cuda/scatter.h"

#include <optional>

#include "core/uop/args.h"

namespace tinyshard::cuda {
namespace {

bool known_dtype(DType dtype) {
  return dtype != DType::Bool && dtype != DType::Index && !is_float8(dtype);
}

std::optional<ScatterShape> shape_of(const LibraryCall& call) {
  const UOp& x = call.node;
  const StridedView& index = call.operands[0];
  size_t axis = size_t(scatter_arg(*x).axis), rank = index.shape.size();
  auto outer = joint_stride(index, 0, axis), inner = joint_stride(index, axis + 1, rank);
  DType index_dtype = x.src(0).dtype();
  if (!outer || !inner || !known_dtype(x.dtype()) ||
      (index_dtype != DType::I32 && index_dtype != DType::I64))
    return std::nullopt;
  ScatterShape s;
  if (scatter_arg(*x).op != ReduceOp::Sum) return std::nullopt;
  s.dtype = x.dtype();
  if (x->sources > 2) s.base = x.src(2).dtype();
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

}  // namespace

bool scatter_supports(const LibraryCall& call, std::string* why) {
  if (shape_of(call)) return true;
  if (why) *why = "the index lies too far apart, or something is of a type without scatter";
  return false;
}

std::unique_ptr<Program> make_scatter(Gpu& gpu, const LibraryCall& call) {
  return std::make_unique<KernelProgram>(gpu, scatter_code(shape_of(call).value()));
}

}  // namespace tinyshard::cuda
