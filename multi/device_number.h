// Integers that differ from device to device: arithmetic on a device's place along a mesh axis. In
// kernels they are scalars, computed once.
#pragma once
#include "multi/mesh.h"

namespace tinyshard {

class DeviceNumber {
 public:
  DeviceNumber(int64_t value) : at_(const_int(DType::I64, value, Dims{1})) {}  // NOLINT: a number
  // The place of a device along that axis.
  static DeviceNumber coordinate(const Mesh& mesh, int axis);

  DeviceNumber operator+(const DeviceNumber& b) const { return with(Op::Add, b); }
  DeviceNumber operator-(const DeviceNumber& b) const { return with(Op::Sub, b); }
  DeviceNumber operator*(const DeviceNumber& b) const { return with(Op::Mul, b); }
  DeviceNumber divided_down(int64_t by) const;  // towards minus infinity
  friend DeviceNumber max(const DeviceNumber& a, const DeviceNumber& b) {
    return a.with(Op::Max, b);
  }
  friend DeviceNumber min(const DeviceNumber& a, const DeviceNumber& b) {
    return DeviceNumber(0) - max(DeviceNumber(0) - a, DeviceNumber(0) - b);
  }
  // a where `condition` holds, a bool of one element.
  static DeviceNumber choose(const UOp& condition, const DeviceNumber& a, const DeviceNumber& b) {
    return DeviceNumber(where(condition, a.at_, b.at_));
  }
  UOp operator<(const DeviceNumber& b) const { return binary(Op::CmpLt, at_, b.at_); }

  // I64 of one element.
  const UOp& node() const { return at_; }

 private:
  explicit DeviceNumber(UOp at) : at_(std::move(at)) {}
  DeviceNumber with(Op op, const DeviceNumber& b) const {
    return DeviceNumber(binary(op, at_, b.at_));
  }
  UOp at_;
};

// x[first], x[first + 1], ... along `dim`, `rows` of them, and 0 where x has none.
UOp rows_from(const UOp& x, int dim, const DeviceNumber& first, int64_t rows);

// A mask of this shape: true where the row along `dim` comes before `end`.
UOp rows_before(DimSpan shape, int dim, const DeviceNumber& end);

}  // namespace tinyshard
