// Pooling over windows of the last dims, its inverse, and changing the size of images.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/sizes.h"
#include "core/dtype/half.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

using value::text_of;
using value::Value;

namespace {

struct Pool {
  int64_t spatial, first;  // number of pooled dims and the first of them
  value::Windows windows;
  Pairs padding;  // for every dim of x
  Dims counts;
  Dims kernel_axes;  // of the result of value::windows
};

// A single number is a square.
Ints per_kernel_dim(const Ints& kernel) {
  return kernel.one_number ? Ints{kernel[0], kernel[0]} : kernel;
}

Pool check(const Value& x, const Ints& size, const PoolOptions& options) {
  Pool pool;
  Ints kernel = per_kernel_dim(size);
  pool.spatial = static_cast<int64_t>(kernel.size());
  pool.first = x.rank() - pool.spatial;
  if (pool.first < 0) fail(fmt::format("a kernel of {} dims over {}", pool.spatial, text_of(x)));
  pool.windows.kernel = kernel.values;
  pool.windows.stride =
      value::per_dim(options.stride.size() ? options.stride : kernel, pool.spatial, "stride");
  pool.windows.dilation = value::per_dim(options.dilation, pool.spatial, "dilation");
  pool.padding = Pairs(pool.first, {0, 0});
  for (auto pair : value::spatial_padding(options.padding, pool.spatial))
    pool.padding.push_back(pair);
  for (int64_t i = 0; i < pool.spatial; ++i) {
    auto& [low, high] = pool.padding[pool.first + i];
    int64_t k = pool.windows.kernel[i], s = pool.windows.stride[i], d = pool.windows.dilation[i];
    if (k <= 0 || s <= 0 || d <= 0 || low < 0 || high < 0) {
      fail(fmt::format(
          "kernel {}, stride {} and dilation {} must be positive, padding ({}, {}) not negative", k,
          s, d, low, high));
    }
    int64_t size = x.size(pool.first + i), padded = add_sizes(size, add_sizes(low, high)),
            reach = value::window_reach(k, d);
    if (padded < reach) {
      fail(fmt::format("a window of {} is larger than dim {} of {} with padding ({}, {})", reach,
                       pool.first + i, text_of(x), low, high));
    }
    int64_t count = (padded - reach) / s + 1;
    // With ceil_mode a last window may hang over, unless it would begin in the padding.
    if (options.ceil_mode && (padded - reach) % s != 0 && count * s < size + low) {
      high = add_sizes(high, add_sizes(count * s, reach - padded));
      ++count;
    }
    pool.counts.push_back(count);
    pool.kernel_axes.push_back(x.rank() + i);
  }
  return pool;
}

// With what no maximum is in the padding.
Value padded_windows(const Value& x, const Pool& pool) {
  return value::windows(x, pool.windows, pool.padding, value::identity(ReduceOp::Max, x.dtype()));
}

Value max_of_windows(const Value& x, const Pool& pool) {
  return value::max(padded_windows(x, pool), pool.kernel_axes);
}

// With as much padding as a window reaches, windows lie in it alone, and have no maximum.
void need_little_padding(const Pool& pool, const PoolOptions& options) {
  const Pairs padding = value::spatial_padding(options.padding, pool.spatial);
  for (int64_t i = 0; i < pool.spatial; ++i) {
    const int64_t reach = value::window_reach(pool.windows.kernel[i], pool.windows.dilation[i]);
    const auto [low, high] = padding[i];
    if (std::max(low, high) >= reach)
      fail(fmt::format("padding ({}, {}) holds a whole window of {}", low, high, reach));
  }
}

// The maximum of a window that lies in the padding alone has no place.
void need_elements_in_windows(const Value& x, const Pool& pool) {
  const value::Windows& w = pool.windows;
  for (int64_t i = 0; i < pool.spatial; ++i) {
    int64_t axis = pool.first + i, low = pool.padding[axis].first, size = x.size(axis);
    int64_t k = w.kernel[i], s = w.stride[i], d = w.dilation[i];
    auto refuse = [&](int64_t window) {
      fail(fmt::format("window {} of dim {} of {} has nothing but padding, so no index", window,
                       axis, text_of(x)));
    };
    for (int64_t window = 0; window < pool.counts[i] && window * s < low; ++window) {
      int64_t before = low - window * s, tap = (before + d - 1) / d;  // the first that is in x
      if (tap >= k || tap * d - before >= size) refuse(window);
    }
    // All others start in x, but for those that start behind it.
    int64_t behind = (low + size + s - 1) / s;
    if (behind < pool.counts[i]) refuse(behind);
  }
}

}  // namespace

Tensor Tensor::max_pool2d(const Ints& kernel, const PoolOptions& options, Caller caller) const {
  Call call("max_pool2d", caller);
  const Pool pool = check(*this, kernel, options);
  need_little_padding(pool, options);
  return max_of_windows(*this, pool);
}

std::pair<Tensor, Tensor> Tensor::max_pool2d_with_indices(const Ints& kernel,
                                                          const PoolOptions& options,
                                                          Caller caller) const {
  Call call("max_pool2d", caller);
  Value x(*this);
  Pool pool = check(x, kernel, options);
  Value values = max_of_windows(x, pool);
  need_elements_in_windows(x, pool);
  // Position from the end, so that the largest is the first of those that hold the maximum.
  Dims spatial(x.shape().begin() + pool.first, x.shape().end()), line(x.rank(), 1);
  std::copy(spatial.begin(), spatial.end(), line.begin() + pool.first);
  int64_t n = product(spatial);
  Value from_end =
      value::broadcast_to(value::reshape(n - value::iota(n, DType::I32), line), x.shape());
  Value windows = padded_windows(x, pool);
  Value places = value::windows(from_end, pool.windows, pool.padding);
  Dims column = values.dims();
  column.insert(column.end(), pool.spatial, 1);
  Value at_maximum =
      value::where(value::holds_maximum(windows, value::reshape(values, column)), places, 0);
  return {values, n - value::max(at_maximum, pool.kernel_axes)};
}

Tensor Tensor::max_unpool2d(const Tensor& indices, const Ints& size, const PoolOptions& options,
                            std::optional<Ints> output_size, Caller caller) const {
  Call call("max_unpool2d", caller);
  Value x(*this);
  Ints kernel = per_kernel_dim(size);
  int64_t spatial = static_cast<int64_t>(kernel.size()), first = x.rank() - spatial;
  if (first < 0 || indices.shape() != shape()) {
    fail(fmt::format("x is {}, indices are {}, the kernel has {} dims", text_of(x),
                     indices.describe(), spatial));
  }
  Dims out;
  if (output_size) {
    if (static_cast<int64_t>(output_size->size()) < spatial) {
      fail(fmt::format("output_size has {} values for {} dims", output_size->size(), spatial));
    }
    out = Dims(output_size->values.end() - spatial, output_size->values.end());
  } else {
    Dims stride =
             value::per_dim(options.stride.size() ? options.stride : kernel, spatial, "stride"),
         dilation = value::per_dim(options.dilation, spatial, "dilation");
    Pairs padding = value::spatial_padding(options.padding, spatial);
    for (int64_t i = 0; i < spatial; ++i) {
      int64_t size = add_sizes(multiply_sizes(x.size(first + i) - 1, stride[i]),
                               value::window_reach(kernel[i], dilation[i]));
      out.push_back(add_sizes(size, -add_sizes(padding[i].first, padding[i].second)));
    }
  }
  Dims lead(x.shape().begin(), x.shape().begin() + first), shape = lead;
  int64_t rows = product(lead), n = product(DimSpan(x.shape()).subspan(first));
  shape.insert(shape.end(), out.begin(), out.end());
  check_size(shape, x.dtype());
  // Windows that overlap name the same place with the same value: the maximum of those, not the
  // sum.
  Value places = value::reshape(value::cast(indices, DType::I64), {rows, n});
  Value from = value::last_entries(places, 1, product(out));
  Value picked = value::gather(value::reshape(x, {rows, n}), 1, value::maximum(from - 1, 0));
  return value::reshape(
      value::where(from > 0, picked, value::constant(x.dtype(), 0, picked.shape())), shape);
}

Tensor Tensor::avg_pool2d(const Ints& kernel, const PoolOptions& options, Caller caller) const {
  Call call("avg_pool2d", caller);
  Value x(*this);
  Pool pool = check(x, kernel, options);
  auto total = [&](const Value& v, const Pairs& padding) {
    return value::sum(value::windows(v, pool.windows, padding), pool.kernel_axes);
  };
  // Everything in a window counts that is not behind the end of the padded image.
  Pairs counted = value::spatial_padding(options.padding, pool.spatial);
  counted.insert(counted.begin(), pool.first, {0, 0});
  bool whole = options.count_include_pad && counted == pool.padding;
  bool none =
      std::ranges::all_of(pool.padding, [](auto p) { return p.first == 0 && p.second == 0; });
  return value::in_floats(x, [&](const Value& v) {
    Value sums = total(v, pool.padding);
    if (whole || none) return sums / static_cast<double>(product(pool.windows.kernel));
    Value ones = value::constant(v.dtype(), 1, v.shape());
    Value inside =
        options.count_include_pad ? value::pad(ones, counted, 1) : value::pad(ones, counted);
    Pairs rest = pool.padding;
    for (size_t i = 0; i < rest.size(); ++i) rest[i] = {0, rest[i].second - counted[i].second};
    return sums / total(inside, rest);
  });
}

Tensor Tensor::interpolate(const Ints& size, Interpolation mode, bool align_corners,
                           Caller caller) const {
  Call call("interpolate", caller);
  Value x(*this);
  int64_t spatial = static_cast<int64_t>(size.size()), first = x.rank() - spatial;
  if (first < 0 || spatial == 0)
    fail(fmt::format("{} sizes for the {} dims of {}", spatial, x.rank(), text_of(x)));
  if (align_corners && mode != Interpolation::Linear)
    fail("align_corners is about what lies between elements: it needs the linear mode");
  DType type = value::float_type(x.dtype());
  if (is_narrow(type)) type = DType::F32;
  Value out = mode == Interpolation::Linear ? value::cast(x, type) : x;
  for (int64_t i = 0; i < spatial; ++i) {
    int64_t axis = first + i, from = x.size(axis), to = size[i];
    if (to <= 0 || from == 0)
      fail(fmt::format("cannot make dim {} of {} have {} elements", axis, text_of(x), to));
    if (from == to) continue;
    auto line = [&](const Value& v) {
      Dims shape(out.rank(), 1), full = out.dims();
      shape[axis] = to, full[axis] = to;
      return value::broadcast_to(value::reshape(v, shape), full);
    };
    Value o = value::iota(to, DType::I64);
    auto pick = [&](const Value& index) {
      return value::gather(out, axis, line(value::cast(index, DType::I32)));
    };
    if (mode != Interpolation::Linear) {
      // Exactly in integers where the middle of a pixel counts, too: floor((2 o + 1) from / (2
      // to)).
      bool middle = mode == Interpolation::NearestExact;
      out = pick(middle ? value::floor_div((2 * o + 1) * from, 2 * to)
                        : value::floor_div(o * from, to));
      continue;
    }
    // The place between two elements is a fraction of integers, so its weight is rounded once: of
    // 514 elements made 9, output 5 lies at (11 * 514 - 9) / 18 = 313 + 11/18.
    int64_t parts = align_corners ? std::max<int64_t>(to - 1, 1) : 2 * to;
    Value place = align_corners ? o * (to > 1 ? from - 1 : 0) : (2 * o + 1) * from - to;
    place = value::minimum(value::maximum(place, 0), (from - 1) * parts);
    Value below = value::floor_div(place, parts), above = value::minimum(below + 1, from - 1);
    Value weight = value::cast(place - below * parts, DType::F64) / static_cast<double>(parts);
    weight = line(value::cast(weight, out.dtype()));
    Value low = pick(below), high = pick(above);
    out = low + (high - low) * weight;
  }
  // Images are rounded; other integers drop fractions, as a cast does.
  if (mode == Interpolation::Linear && x.dtype() == DType::U8) out = out.tensor().round();
  return value::cast(out, x.dtype());
}

}  // namespace tinyshard
