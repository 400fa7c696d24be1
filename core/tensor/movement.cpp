// Methods that move elements without computing on them.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/sizes.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {

using value::shape_text;
using value::text_of;
using value::Value;

namespace {

Dims counted(int64_t n) {
  Dims out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

// Shape with its -1 filled in so that it holds n elements.
Dims inferred(const Dims& shape, int64_t n, const Value& x) {
  Dims out = shape;
  int64_t known = 1, unknown = -1;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == -1) {
      if (unknown >= 0) fail(fmt::format("shape {} has more than one -1", shape_text(shape)));
      unknown = static_cast<int64_t>(i);
    } else if (out[i] < 0) {
      fail(fmt::format("shape {} has a negative size", shape_text(shape)));
    } else {
      known = multiply_sizes(known, out[i]);
    }
  }
  if (unknown >= 0) {
    if (known == 0 || n % known != 0) {
      fail(fmt::format("{} has {} elements, which do not divide into shape {}", text_of(x), n,
                       shape_text(shape)));
    }
    out[unknown] = n / known;
  } else if (known != n) {
    fail(fmt::format("{} has {} elements, shape {} has {}", text_of(x), n, shape_text(shape),
                     known));
  }
  return out;
}

Tensor reshaped(const Tensor& tensor, Dims shape) {
  return value::moved(
      tensor, [shape = std::move(shape)](const Value& x) { return value::reshape(x, shape); });
}
Tensor reshaped(const Tensor& tensor, const Ints& shape) {
  Value x(tensor);
  return reshaped(tensor, inferred(shape.values, x.node()->numel(), x));
}
Tensor permuted(const Tensor& tensor, Dims order) {
  return value::moved(
      tensor, [order = std::move(order)](const Value& x) { return value::permute(x, order); });
}
Tensor shrunk(const Tensor& tensor, Pairs bounds) {
  return value::moved(
      tensor, [bounds = std::move(bounds)](const Value& x) { return value::shrink(x, bounds); });
}

Value pad_with_own(const Value& x, const Pairs& padding, PadMode mode) {
  Value out = x;
  for (int64_t axis = 0; axis < x.rank(); ++axis) {
    auto [before, after] = padding[axis];
    int64_t n = out.size(axis), both = add_sizes(before, after);
    int64_t limit = mode == PadMode::Reflect ? n - 1 : mode == PadMode::Circular ? n : both;
    if (both > 0 && (n == 0 || std::max(before, after) > limit)) {
      fail(fmt::format("padding ({}, {}) of dim {} with its own values: {} has only {} there",
                       before, after, axis, text_of(x), n));
    }
    if (before <= 0 && after <= 0) continue;
    std::vector<Value> parts;
    auto add_edge = [&](int64_t width, bool front) {
      if (width <= 0) return;
      switch (mode) {
        case PadMode::Reflect: {
          Value mirrored = front ? value::shrink_axis(out, axis, 1, width + 1)
                                 : value::shrink_axis(out, axis, n - 1 - width, n - 1);
          parts.push_back(value::flip(mirrored, {axis}));
          break;
        }
        case PadMode::Replicate: {
          Value edge =
              front ? value::shrink_axis(out, axis, 0, 1) : value::shrink_axis(out, axis, n - 1, n);
          Dims shape = edge.dims();
          shape[axis] = width;
          parts.push_back(value::broadcast_to(edge, shape));
          break;
        }
        default:
          parts.push_back(front ? value::shrink_axis(out, axis, n - width, n)
                                : value::shrink_axis(out, axis, 0, width));
      }
    };
    add_edge(before, true);
    parts.push_back(out);
    add_edge(after, false);
    out = value::cat(parts, axis);
  }
  return out;
}

// Parts are tensors of their own; more would only fill the memory with handles.
void check_parts(int64_t count) {
  constexpr int64_t kMost = int64_t{1} << 20;
  if (count > kMost) fail(fmt::format("{} parts; at most {} are made", count, kMost));
}

int64_t new_axis(int64_t dim, int64_t rank) {
  if (dim < -rank - 1 || dim > rank) {
    fail(fmt::format("dim {} is out of range: a dim can be added at {} to {}", dim, -rank - 1,
                     rank));
  }
  return dim < 0 ? dim + rank + 1 : dim;
}

}  // namespace

Tensor Tensor::reshape(const Ints& shape, Caller caller) const& {
  Call call("reshape", caller);
  return reshaped(*this, shape);
}

Tensor Tensor::view(const Ints& shape, Caller caller) const& {
  Call call("view", caller);
  return reshaped(*this, shape);
}

Tensor Tensor::flatten(int64_t start_dim, int64_t end_dim, Caller caller) const& {
  Call call("flatten", caller);
  Value x(*this);
  int64_t first = value::resolve_axis(start_dim, x.rank()),
          last = value::resolve_axis(end_dim, x.rank());
  if (x.rank() == 0) return reshaped(*this, Dims{1});
  if (first > last) fail(fmt::format("start_dim {} comes after end_dim {}", start_dim, end_dim));
  Dims shape = x.dims();
  int64_t flat = product(DimSpan(shape).subspan(first, last - first + 1));
  shape.erase(shape.begin() + first, shape.begin() + last + 1);
  shape.insert(shape.begin() + first, flat);
  return reshaped(*this, std::move(shape));
}

Tensor Tensor::unflatten(int64_t dim, const Ints& sizes, Caller caller) const& {
  Call call("unflatten", caller);
  Value x(*this);
  int64_t axis = value::resolve_dim(dim, x);
  Dims parts = inferred(sizes.values, x.size(axis), x), shape = x.dims();
  shape.erase(shape.begin() + axis);
  shape.insert(shape.begin() + axis, parts.begin(), parts.end());
  return reshaped(*this, std::move(shape));
}

Tensor Tensor::squeeze(std::optional<int64_t> dim, Caller caller) const& {
  Call call("squeeze", caller);
  Value x(*this);
  Dims shape = x.dims();
  if (!dim) {
    std::erase(shape, 1);
  } else {
    int64_t axis = value::resolve_axis(*dim, x.rank());
    if (!shape.empty() && shape[axis] == 1) shape.erase(shape.begin() + axis);
  }
  return reshaped(*this, std::move(shape));
}

Tensor Tensor::unsqueeze(int64_t dim, Caller caller) const& {
  Call call("unsqueeze", caller);
  return value::moved(
      *this, [axis = new_axis(dim, ndim())](const Value& x) { return value::unsqueeze(x, axis); });
}

Tensor Tensor::permute(const Ints& order, Caller caller) const& {
  Call call("permute", caller);
  Value x(*this);
  Dims axes;
  for (int64_t axis : order.values) axes.push_back(value::resolve_axis(axis, x.rank()));
  Dims sorted = axes;
  std::sort(sorted.begin(), sorted.end());
  if (sorted != counted(x.rank())) {
    fail(fmt::format("order {} is not a permutation of the {} dims of {}", shape_text(order.values),
                     x.rank(), text_of(x)));
  }
  return permuted(*this, std::move(axes));
}

Tensor Tensor::transpose(int64_t dim0, int64_t dim1, Caller caller) const& {
  Call call("transpose", caller);
  Value x(*this);
  Dims order = counted(x.rank());
  int64_t a = value::resolve_axis(dim0, x.rank()), b = value::resolve_axis(dim1, x.rank());
  if (x.rank() > 0) std::swap(order[a], order[b]);
  return permuted(*this, std::move(order));
}

Tensor Tensor::T() const {
  Call call("T");
  Dims order = counted(ndim());
  std::reverse(order.begin(), order.end());
  return permuted(*this, std::move(order));
}

Tensor Tensor::expand(const Ints& shape, Caller caller) const& {
  Call call("expand", caller);
  Value x(*this);
  Dims out = shape.values;
  int64_t extra = static_cast<int64_t>(out.size()) - x.rank();
  for (int64_t i = std::max<int64_t>(extra, 0); i < static_cast<int64_t>(out.size()); ++i) {
    if (out[i] == -1) out[i] = x.size(i - extra);
  }
  if (std::ranges::any_of(out, [](int64_t d) { return d < 0; })) {
    fail(fmt::format("{} does not expand to shape {}: -1 keeps a size, but that dim is new",
                     text_of(x), shape_text(out)));
  }
  return value::moved(*this, [out](const Value& v) { return value::broadcast_to(v, out); });
}

Tensor Tensor::repeat(const Ints& repeats, Caller caller) const {
  Call call("repeat", caller);
  Value x(*this);
  int64_t rank = static_cast<int64_t>(repeats.size()), extra = rank - x.rank();
  if (extra < 0) fail(fmt::format("{} repeats for the {} dims of {}", rank, x.rank(), text_of(x)));
  Dims from, to, out;
  for (int64_t i = 0; i < rank; ++i) {
    int64_t n = i < extra ? 1 : x.size(i - extra), r = repeats[i];
    if (r < 0) fail(fmt::format("cannot repeat {} times", r));
    from.insert(from.end(), {1, n}), to.insert(to.end(), {r, n});
    out.push_back(multiply_sizes(r, n));
  }
  return value::reshape(value::broadcast_to(value::reshape(x, from), to), out);
}

Tensor Tensor::repeat_interleave(int64_t repeats, std::optional<int64_t> dim, Caller caller) const {
  Call call("repeat_interleave", caller);
  Value x = dim ? Value(*this) : Value(flatten());
  int64_t axis = value::resolve_dim(dim.value_or(0), x);
  if (repeats < 0) fail(fmt::format("cannot repeat {} times", repeats));
  Dims shape = x.dims(), out = x.dims();
  shape.insert(shape.begin() + axis + 1, repeats);
  out[axis] = multiply_sizes(out[axis], repeats);
  return value::reshape(value::broadcast_to(value::unsqueeze(x, axis + 1), shape), out);
}

Tensor Tensor::shrink(const Pairs& bounds, Caller caller) const& {
  Call call("shrink", caller);
  Value x(*this);
  if (static_cast<int64_t>(bounds.size()) != x.rank()) {
    fail(fmt::format("{} pairs of bounds for the {} dims of {}", bounds.size(), x.rank(),
                     text_of(x)));
  }
  for (int64_t i = 0; i < x.rank(); ++i) {
    auto [low, high] = bounds[i];
    if (low < 0 || high < low || high > x.size(i)) {
      fail(fmt::format("bounds [{}, {}) of dim {} do not lie inside {}", low, high, i, text_of(x)));
    }
  }
  return shrunk(*this, bounds);
}

namespace {

// The sizes that a shape of x asks for, -1 for those that x has.
Dims sizes_for(const Value& x, const Ints& shape) {
  if (static_cast<int64_t>(shape.size()) != x.rank())
    fail(fmt::format("{} sizes for the {} dims of {}", shape.size(), x.rank(), text_of(x)));
  Dims sizes = shape.values;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (sizes[i] == -1) sizes[i] = x.size(i);
  }
  return sizes;
}

}  // namespace

Tensor Tensor::shrink_to(const Ints& shape, Caller caller) const& {
  Call call("shrink_to", caller);
  Value x(*this);
  Pairs bounds;
  for (int64_t size : sizes_for(x, shape)) bounds.emplace_back(0, size);
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (bounds[i].second < 0 || bounds[i].second > x.size(i))
      fail(fmt::format("size {} of dim {} is not between 0 and that of {}; pad_to makes it longer",
                       bounds[i].second, i, text_of(x)));
  }
  return shrink(bounds, caller);
}

Tensor Tensor::pad_to(const Ints& shape, Scalar value, Caller caller) const {
  Call call("pad_to", caller);
  Value x(*this);
  const Dims sizes = sizes_for(x, shape);
  Pairs padding;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (sizes[i] < x.size(i))
      fail(fmt::format("size {} of dim {} is less than that of {}; shrink_to cuts", sizes[i], i,
                       text_of(x)));
    padding.emplace_back(0, sizes[i] - x.size(i));
  }
  return pad(padding, value, PadMode::Constant, caller);
}

Tensor Tensor::pad(const Pairs& padding, Scalar value, PadMode mode, Caller caller) const {
  Call call("pad", caller);
  Value x(*this);
  if (static_cast<int64_t>(padding.size()) != x.rank()) {
    fail(fmt::format("{} pairs of padding for the {} dims of {}", padding.size(), x.rank(),
                     text_of(x)));
  }
  Pairs inner, outer;
  for (int64_t i = 0; i < x.rank(); ++i) {
    int64_t before = limited(padding[i].first), after = limited(padding[i].second);
    inner.emplace_back(std::max<int64_t>(0, -before), x.size(i) - std::max<int64_t>(0, -after));
    outer.emplace_back(std::max<int64_t>(0, before), std::max<int64_t>(0, after));
    if (inner[i].first > inner[i].second) {
      fail(fmt::format("padding ({}, {}) of dim {} takes more than there is in {}",
                       padding[i].first, padding[i].second, i, text_of(x)));
    }
  }
  if (mode == PadMode::Constant) return value::pad(value::shrink(x, inner), outer, value);
  // Elements that are cut off still count as neighbours of what is added on the other side.
  Value padded = pad_with_own(x, outer, mode);
  Pairs kept;
  for (int64_t i = 0; i < x.rank(); ++i) {
    kept.emplace_back(inner[i].first, padded.size(i) - (x.size(i) - inner[i].second));
  }
  return value::shrink(padded, kept);
}

namespace {

// x backwards along an axis whose size is known when the step runs: what lies behind the size stays there.
Value reversed_within(const Value& x, int64_t axis, const SymbolicSize& size) {
  const Value places =
      Value(size.node) - 1 - value::iota_along(axis, x.rank(), x.size(axis), DType::I64);
  const Value whole = value::filled(x, axis, 0);
  return value::limited_to(value::gather(whole, axis, value::broadcast_to(places, x.shape())), axis,
                           size);
}

// x backwards along axes, some of which are as long in the step as those of `like`.
Value reversed_as(const Value& like, Value x, const Dims& axes) {
  Dims plain;
  for (int64_t axis : axes) {
    if (const auto size = value::size_along(like, axis))
      x = reversed_within(x, axis, *size);
    else
      plain.push_back(axis);
  }
  return value::flip(x, plain);
}

}  // namespace

Tensor Tensor::flip(const Ints& axes, Caller caller) const& {
  Call call("flip", caller);
  const Value x(*this);
  const Dims dims = value::resolve_axes(Axes(axes.values), x.rank());
  const bool is_plain = std::ranges::none_of(
      dims, [&](int64_t axis) { return value::size_along(x, axis).has_value(); });
  if (is_plain)
    return value::moved(*this, [dims](const Value& whole) { return value::flip(whole, dims); });
  auto take = [dims](const Value& whole) { return reversed_as(whole, whole, dims); };
  // Backwards twice is forwards.
  auto put = [dims](const Value& whole, const Value& part) -> value::Placed {
    return {reversed_as(whole, value::broadcast_to(part, whole.shape()), dims), {}};
  };
  return value::view_of(*this, {take, put});
}

Tensor Tensor::roll(const Ints& shifts, const Axes& dims, Caller caller) const {
  Call call("roll", caller);
  Value x = dims.all ? Value(flatten()) : Value(*this);
  Dims axes = dims.all ? Dims{0} : dims.values;
  if (shifts.size() != axes.size())
    fail(fmt::format("{} shifts for {} dims", shifts.size(), axes.size()));
  for (size_t i = 0; i < axes.size(); ++i) {
    int64_t axis = value::resolve_dim(axes[i], x), n = x.size(axis);
    if (n == 0) continue;
    int64_t by = ((shifts[i] % n) + n) % n;
    if (by == 0) continue;
    x = value::cat({value::shrink_axis(x, axis, n - by, n), value::shrink_axis(x, axis, 0, n - by)},
                   axis);
  }
  return value::reshape(x, shape());
}

std::vector<Tensor> Tensor::split(int64_t size, int64_t dim, Caller caller) const& {
  Call call("split", caller);
  if (size <= 0) fail(fmt::format("parts of {} elements: a part has at least one", size));
  int64_t n = shape(value::resolve_axis(dim, ndim()), caller);
  check_parts(n / size);
  Dims sizes(n / size, size);
  if (n % size || n == 0) sizes.push_back(n % size);
  return split(sizes, dim, caller);
}

std::vector<Tensor> Tensor::split(const Dims& sizes, int64_t dim, Caller caller) const& {
  Call call("split", caller);
  Value x(*this);
  int64_t axis = value::resolve_dim(dim, x), total = 0;
  for (int64_t size : sizes) {
    if (size < 0) fail(fmt::format("a part of {} elements in {}", size, shape_text(sizes)));
    total = add_sizes(total, size);
  }
  if (total != x.size(axis)) {
    fail(
        fmt::format("sizes {} do not add up to dim {} of {}", shape_text(sizes), axis, text_of(x)));
  }
  std::vector<Tensor> parts;
  int64_t from = 0;
  for (int64_t size : sizes) {
    parts.push_back(value::moved(*this, [axis, from, size](const Value& whole) {
      return value::shrink_axis(whole, axis, from, from + size);
    }));
    from += size;
  }
  return parts;
}

std::vector<Tensor> Tensor::chunk(int64_t chunks, int64_t dim, Caller caller) const& {
  Call call("chunk", caller);
  if (chunks <= 0) fail(fmt::format("{} chunks: there is at least one", chunks));
  int64_t n = shape(value::resolve_axis(dim, ndim()), caller);
  if (n > 0) return split(n / chunks + (n % chunks != 0), dim, caller);
  check_parts(chunks);
  return split(Dims(chunks, 0), dim, caller);
}

Tensor cat(const std::vector<Tensor>& tensors, int64_t dim, Caller caller) {
  Call call("cat", caller);
  if (tensors.empty()) fail("no tensors");
  std::vector<Value> parts(tensors.begin(), tensors.end());
  int64_t axis = value::resolve_axis(dim, parts[0].rank());
  if (parts[0].rank() == 0)
    fail(fmt::format("{} has no dim to join along; use stack", text_of(parts[0])));
  DType dtype = parts[0].dtype();
  for (const Value& part : parts) {
    bool fits = part.rank() == parts[0].rank();
    for (int64_t i = 0; fits && i < part.rank(); ++i)
      fits = i == axis || part.size(i) == parts[0].size(i);
    if (!fits) {
      fail(fmt::format("shapes differ outside of dim {}: {} and {}", axis, text_of(parts[0]),
                       text_of(part)));
    }
    dtype = promote(dtype, part.dtype());
  }
  for (Value& part : parts) part = value::cast(part, dtype);
  return value::cat(parts, axis);
}

Tensor stack(const std::vector<Tensor>& tensors, int64_t dim, Caller caller) {
  Call call("stack", caller);
  if (tensors.empty()) fail("no tensors");
  int64_t axis = new_axis(dim, tensors[0].ndim());
  std::vector<Tensor> parts;
  for (const Tensor& tensor : tensors) {
    if (tensor.shape() != tensors[0].shape()) {
      fail(fmt::format("shapes differ: {} and {}", tensors[0].describe(), tensor.describe()));
    }
    parts.push_back(value::unsqueeze(tensor, axis));
  }
  return cat(parts, axis, caller);
}

namespace {

std::vector<Tensor> in_front(const Tensor& first, const std::vector<Tensor>& others) {
  std::vector<Tensor> all{first};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

}  // namespace

Tensor Tensor::cat(const std::vector<Tensor>& others, int64_t dim, Caller caller) const {
  return tinyshard::cat(in_front(*this, others), dim, caller);
}
Tensor Tensor::cat(const Tensor& other, int64_t dim, Caller caller) const {
  return tinyshard::cat({*this, other}, dim, caller);
}
Tensor Tensor::stack(const std::vector<Tensor>& others, int64_t dim, Caller caller) const {
  return tinyshard::stack(in_front(*this, others), dim, caller);
}
Tensor Tensor::stack(const Tensor& other, int64_t dim, Caller caller) const {
  return tinyshard::stack({*this, other}, dim, caller);
}

Tensor Tensor::diag(Caller caller) const {
  Call call("diag", caller);
  Value x(*this);
  if (x.rank() != 1) fail(fmt::format("needs a tensor of one dim, not {}", text_of(x)));
  int64_t n = x.size(0);
  // Rows of n + 1: an element and n zeros; read as rows of n, each begins one further right.
  Value rows = value::pad(value::reshape(x, {n, 1}), {{0, 0}, {0, n}});
  return value::reshape(value::shrink(value::reshape(rows, {n * (n + 1)}), {{0, n * n}}), {n, n});
}

namespace {

Value diagonal_of(Value x, int64_t offset, int64_t a, int64_t b) {
  Dims order;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != a && i != b) order.push_back(i);
  }
  order.insert(order.end(), {a, b});
  x = value::permute(x, order);
  int64_t rows = x.size(x.rank() - 2), columns = x.size(x.rank() - 1), r = x.rank() - 2;
  offset = std::clamp(offset, -rows, columns);
  x = value::shrink_axis(x, r, std::max<int64_t>(0, -offset), rows);
  x = value::shrink_axis(x, r + 1, std::max<int64_t>(0, offset), columns);
  int64_t n = std::min(x.size(r), x.size(r + 1));
  x = value::shrink_axis(value::shrink_axis(x, r, 0, n), r + 1, 0, n);
  // The inverse of diag: with a column of padding, elements of the diagonal lie n + 1 apart.
  Dims shape = x.dims();
  shape.resize(r);
  Pairs padding(r + 1, {0, 0});
  padding[r] = {0, n};
  Dims flat = shape, wide = shape;
  flat.push_back(n * n), wide.insert(wide.end(), {n, n + 1});
  x = value::reshape(value::pad(value::reshape(x, flat), padding), wide);
  return value::squeeze(value::shrink_axis(x, r + 1, 0, std::min<int64_t>(1, n + 1)), r + 1);
}

}  // namespace

Tensor Tensor::diagonal(int64_t offset, int64_t dim1, int64_t dim2, Caller caller) const& {
  Call call("diagonal", caller);
  Value x(*this);
  int64_t a = value::resolve_axis(dim1, x.rank()), b = value::resolve_axis(dim2, x.rank());
  if (x.rank() < 2 || a == b)
    fail(fmt::format("dims {} and {} of {} are not two dims", dim1, dim2, text_of(x)));
  return value::moved(
      *this, [offset, a, b](const Value& whole) { return diagonal_of(whole, offset, a, b); });
}

Tensor Tensor::unfold(int64_t dim, int64_t size, int64_t step, Caller caller) const& {
  Call call("unfold", caller);
  Value x(*this);
  int64_t axis = value::resolve_axis(dim, x.rank());
  if (x.rank() == 0 || size < 0 || size > x.size(axis) || step <= 0) {
    fail(fmt::format(
        "windows of {} every {} in dim {} of {}: a window has 0 to {} elements there, and "
        "the next begins at least 1 behind it",
        size, step, axis, text_of(x), x.size(axis)));
  }
  return value::moved(*this, [axis, size, step](const Value& whole) {
    Value out = value::move_axis(whole, axis, whole.rank() - 1);
    out = value::windows(out, {{size}, {step}, {1}});  // [.., count, size]
    return value::move_axis(out, out.rank() - 2, axis);
  });
}

namespace {

// Returns row + diagonal, and column, of the last two dims. A diagonal beyond the corners is as
// good as one just beyond.
std::pair<Value, Value> about_diagonal(const Value& x, int64_t diagonal) {
  if (x.rank() < 2) fail(fmt::format("needs two dims, not {}", text_of(x)));
  int64_t last = x.rank() - 1, rows = x.size(last - 1), columns = x.size(last);
  return {value::iota_along(last - 1, x.rank(), rows, DType::I64) +
              std::clamp(diagonal, -rows, columns),
          value::iota_along(last, x.rank(), columns, DType::I64)};
}

}  // namespace

Tensor Tensor::triu(int64_t diagonal, Caller caller) const {
  Call call("triu", caller);
  auto [below, column] = about_diagonal(*this, diagonal);
  return value::where(below <= column, Value(*this), value::constant(dtype(), 0, column.shape()));
}

Tensor Tensor::tril(int64_t diagonal, Caller caller) const {
  Call call("tril", caller);
  auto [below, column] = about_diagonal(*this, diagonal);
  return value::where(column <= below, Value(*this), value::constant(dtype(), 0, column.shape()));
}

std::vector<Tensor> Tensor::meshgrid(const std::vector<Tensor>& axes, bool xy, Caller caller) {
  Call call("meshgrid", caller);
  int64_t rank = static_cast<int64_t>(axes.size());
  auto place = [&](int64_t i) { return xy && rank > 1 && i < 2 ? 1 - i : i; };
  Dims shape(rank);
  for (int64_t i = 0; i < rank; ++i) {
    if (axes[i].ndim() > 1) fail(fmt::format("axis {} is {}, not a list", i, axes[i].describe()));
    shape[place(i)] = axes[i].numel();
  }
  std::vector<Tensor> out;
  for (int64_t i = 0; i < rank; ++i) {
    Dims line(rank, 1);
    line[place(i)] = axes[i].numel();
    out.push_back(value::broadcast_to(value::reshape(axes[i], line), shape));
  }
  return out;
}

}  // namespace tinyshard
