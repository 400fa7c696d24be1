// A coordinate is each device's own element of 0, 1, 2, .. that is split along the axis, so all
// devices run one program. Integer division cuts towards zero; floor of a negative number goes by
// its distance to -1: -5 over 4 is -1 - (4 over 4) = -2.
#include "multi/device_number.h"

namespace tinyshard {
namespace {

// first, first + 1, ... along `dim` of `shape`.
UOp places(DimSpan shape, int dim, const DeviceNumber& first) {
  const int64_t rows = shape[size_t(dim)];
  UOp place = UOp::make(Op::Iota, DType::I64, {}, Dims{rows});
  place = binary(Op::Add, place, expand(first.node(), Dims{rows}));
  Dims line(shape.size(), 1);
  line[size_t(dim)] = rows;
  return expand(reshape(place, line), shape);
}

}  // namespace

DeviceNumber DeviceNumber::coordinate(const Mesh& mesh, int axis) {
  const int64_t size = mesh.axes()[size_t(axis)].size;
  UOp all = UOp::make(Op::Iota, DType::I64, {}, Dims{size});
  return DeviceNumber(UOp::make(Op::ShardSlice, DType::I64, {all}, Dims{0, axis, size}));
}

DeviceNumber DeviceNumber::divided_down(int64_t by) const {
  // Division cuts towards 0: of a number below 0, the distance to -1 is divided.
  const DeviceNumber divisor(by);
  return choose(*this < DeviceNumber(0),
                DeviceNumber(-1) - (DeviceNumber(-1) - *this).with(Op::IDiv, divisor),
                with(Op::IDiv, divisor));
}

UOp rows_from(const UOp& x, int dim, const DeviceNumber& first, int64_t rows) {
  Dims shape(x.shape().begin(), x.shape().end());
  shape[size_t(dim)] = rows;
  return UOp::make(Op::Gather, x.dtype(), {x, places(shape, dim, first)}, Dims{dim});
}

UOp rows_before(DimSpan shape, int dim, const DeviceNumber& end) {
  Dims one(shape.size(), 1);
  return binary(Op::CmpLt, places(shape, dim, DeviceNumber(0)),
                expand(reshape(end.node(), one), shape));
}

}  // namespace tinyshard
