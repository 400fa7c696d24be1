// The host computes the index element by element in doubles. It gives up where a
// kernel might come to another number: for functions that kernels compute by series,
// and integers of more than 53 bits. Each index less the first row of its device's
// part is an offset; the least and the greatest of all offsets are the window.
#include "multi/strategies/known_index.h"

#include <algorithm>
#include <cmath>

#include "core/uop/args.h"
#include "core/uop/composite.h"
#include "multi/device_number.h"

namespace tinyshard {
namespace {

using Numbers = std::vector<double>;  // integers below 2^53 among them

constexpr double kExact = 9007199254740992;  // 2^53
constexpr int kDeep = 32;                    // nodes

// The value as a number of that type, where a double holds all numbers of it that are met here.
std::optional<double> converted(double value, DType to) {
  if (to == DType::F64) return value;
  if (to == DType::F32) return double(float(value));
  if (to == DType::Bool) return value != 0;
  value = std::trunc(value);
  const double most = to == DType::I32 ? 2147483647 : kExact;
  if ((to != DType::I32 && to != DType::I64) || !(std::abs(value) <= most)) return std::nullopt;
  return value;
}

// Nothing where a kernel comes to another number than the host: a window that is planned by one and
// read by the other has not all rows. Double precision rounds to f32 as f32 does.
std::optional<double> computed(const UOp& x, double a, double b) {
  const ElementFacts& facts = info(x.op()).element;
  const DType type = x.src(0).dtype();
  if (is_float(type)) {
    if (!facts.reals || facts.accuracy == Accuracy::Series) return std::nullopt;
    return converted(facts.reals(a, b), x.dtype());
  }
  const bool divides = x.op() == Op::IDiv || x.op() == Op::Mod;
  if (!facts.integers || type == DType::Index || (divides && b == 0)) return std::nullopt;
  const auto bits = facts.integers(integer_kind(type), uint64_t(int64_t(a)), uint64_t(int64_t(b)));
  return converted(double(int64_t(bits)), x.dtype());
}

// The elements of x, a line of n or one number.
std::optional<Numbers> numbers(const UOp& x, int depth = kDeep) {
  if (is_const(x)) {
    const auto number = converted(const_as_double(x), x.dtype());
    return number ? std::optional(Numbers(size_t(x->numel()), *number)) : std::nullopt;
  }
  if (depth == 0) return std::nullopt;
  if (x.op() == Op::Iota) {
    Numbers line(size_t(x->numel()));
    for (size_t i = 0; i < line.size(); ++i) line[i] = double(i);
    return line;
  }
  if (x.op() == Op::Composite) return numbers(spelled(x), depth - 1);
  const bool view = x.op() == Op::Reshape || x.op() == Op::Expand;
  if (!view && !is_elementwise(x.op())) return std::nullopt;
  std::vector<Numbers> src;
  for (const UOp& s : x->src()) {
    auto known = numbers(s, depth - 1);
    if (!known) return std::nullopt;
    src.push_back(std::move(*known));
  }
  const auto count = size_t(x->numel());
  if (view) {
    if (src[0].size() == count) return src[0];
    if (src[0].size() != 1) return std::nullopt;
    return Numbers(count, src[0][0]);
  }
  if (src.empty()) return std::nullopt;
  Numbers result(count);
  for (size_t i = 0; i < count; ++i) {
    std::optional<double> value;
    if (x.op() == Op::Where)
      value = src[0][i] != 0 ? src[1][i] : src[2][i];
    else if (x.op() == Op::Cast)
      value = converted(src[0][i], x.dtype());
    else if (src.size() <= 2)
      value = computed(x, src[0][i], src.back()[i]);
    if (!value) return std::nullopt;
    result[i] = *value;
  }
  return result;
}

}  // namespace

std::optional<std::vector<int64_t>> known_line(const UOp& index, int axis) {
  const int64_t size = index.shape()[size_t(axis)];
  UOp line = index;
  while (line.op() == Op::Expand) {
    if (line.src(0).shape()[size_t(axis)] != size) return std::nullopt;
    line = line.src(0);
  }
  if (line->numel() != size) return std::nullopt;
  const std::optional<Numbers> known = numbers(line);
  if (!known) return std::nullopt;
  return std::vector<int64_t>(known->begin(), known->end());
}

std::optional<Window> window_of_line(const std::vector<int64_t>& line, int64_t rows,
                                     int64_t devices) {
  const auto size = int64_t(line.size());
  if (size < devices || rows < devices) return std::nullopt;
  const int64_t part = (rows + devices - 1) / devices, own = (size + devices - 1) / devices;
  int64_t start = INT64_MAX, end = INT64_MIN;
  for (int64_t i = 0; i < size; ++i) {
    if (line[size_t(i)] < 0 || line[size_t(i)] >= rows) continue;  // reads 0
    const int64_t from_part = line[size_t(i)] - i / own * part;
    start = std::min(start, from_part), end = std::max(end, from_part + 1);
  }
  if (start >= end) return std::nullopt;
  return Window{part, start, end - start, 0, rows};
}

UOp index_into_window(const UOp& index, const Window& window, const Mesh& mesh, int axis) {
  // A library reads an index that is the same for whole rows once for each row.
  if (index.op() == Op::Expand)
    return expand(index_into_window(index.src(0), window, mesh, axis), index.shape());
  const DeviceNumber first = DeviceNumber::coordinate(mesh, axis) * window.step + window.start;
  const UOp wide = cast(index, DType::I64);
  const UOp start = expand(reshape(first.node(), Dims(index.shape().size(), 1)), index.shape());
  const UOp here = binary(Op::Sub, wide, start);
  const UOp inside = binary(Op::And, unary(Op::Not, binary(Op::CmpLt, here, const_like(here, 0))),
                            binary(Op::CmpLt, here, const_like(here, double(window.rows))));
  return cast(where(inside, here, const_like(here, -1)), index.dtype());
}

}  // namespace tinyshard
