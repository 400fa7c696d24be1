// Windows of the last dim, and their sum back. Along a dim that is split, each device receives the
// rows that its windows reach (multi/window.h), and the result is split as the dim was.
//
//   f32[12] on 4 devices in windows of 3, every 1: 10 windows, 3 for each device
//     device 1 has rows 3 4 5 and makes windows 3, 4 and 5, of rows 3 to 7: it receives 6 and 7
//   back, from 3 windows for each device to 3 rows
//     device 1 has windows 3 4 5 and makes terms of rows 3 to 7 of them: it sends those of 6 and 7
//     to device 2, and receives those of rows 3 and 4 from device 0
//
// Back, a row that windows share is one number and not one of each window: as much is sent as
// forward.
//
// Where windows of several dims are summed back, those of whole dims are summed first, whatever the
// order in the graph: a row of what they add up to has fewer elements than a row of windows.
//
//   f32[8, 32] with rows on 4 devices, from windows of 3 x 3, every 1: 6 x 30 of them
//     rows first       a row that two devices share holds 30 windows of 3: 90 numbers travel
//     columns first    each device makes 32 columns of them: 32 numbers travel
//
// Padding shifts windows, and cutting it off shifts what is summed back: rows are not brought to
// padded parts first.
#include "multi/strategies/unfold.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "core/base/error.h"
#include "core/uop/unfold.h"
#include "multi/device_number.h"
#include "multi/strategies/strategies.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

struct Range {
  int64_t first, size;  // rows
};

// The value under a permutation: dim i of x is dim order[i] of it.
UOp under_permute(const UOp& x, Dims& order) {
  if (x.op() == Op::Permute) {
    order.assign(x->arg().begin(), x->arg().end());
    return x.src(0);
  }
  order.resize(x.shape().size());
  std::iota(order.begin(), order.end(), 0);
  return x;
}

LocalValue permuted(LocalValue v, const Dims& order) {
  v.local = permute(v.local, order);
  for (Placement& p : v.place) {
    if (p.is_shard()) p.dim = int(std::ranges::find(order, p.dim) - order.begin());
  }
  return v;
}

// Views add zeros to each term of a sum, but not to those of a maximum.
std::vector<Placement> with_terms_of_sums(std::vector<Placement> place) {
  for (Placement& p : place) {
    if (p.is_partial() && p.op != ReduceOp::Sum) p = Replicate;
  }
  return place;
}

// Returns placements in which only the outermost of the axes that split `dim` splits it, or none.
// Inner axes cut their parts afterwards.
std::vector<Placement> divided_once(std::vector<Placement> place, int dim, bool divided) {
  for (Placement& p : place) {
    if (p.is_shard() && p.dim == dim && !std::exchange(divided, false)) p = Replicate;
  }
  return place;
}

int64_t devices_along(const LocalValue& v, int dim) {
  const int axis = axis_of(v, dim);
  return axis < 0 ? 1 : v.mesh->axes()[size_t(axis)].size;
}

// True if x pads a value with a constant other than 0: where(padded trues, padded value, constant).
bool is_filled_pad(const UOp& x) {
  if (x.op() != Op::Where || x.src(1).op() != Op::Pad || !is_const(x.src(2))) return false;
  const UOp& inside = x.src(0);
  return inside.op() == Op::Pad && is_const(inside.src(0), 1) &&
         std::ranges::equal(inside->arg(), x.src(1)->arg());
}

// True if x is made of windows of another dim than `dim`, by views that leave `dim` as it is.
bool shows_windows(const UOp& x, int dim) {
  if (x.op() == Op::Permute) return shows_windows(x.src(0), int(x->arg()[size_t(dim)]));
  if (x.op() == Op::Unfold) return dim < int(x.shape().size()) - 2;
  const UOp& pad = is_filled_pad(x) ? x.src(1) : x;
  return pad.op() == Op::Pad && pad.src(0).shape()[size_t(dim)] == pad.shape()[size_t(dim)] &&
         shows_windows(pad.src(0), dim);
}

// The window of v, a device's part. Rows travel before windows of other dims copy their elements.
UOp window_under_views(LocalValue v, int dim, const Window& wanted) {
  const UOp x = v.local;
  if (!shows_windows(x, dim)) return window(v, dim, wanted);
  auto under = [&](const UOp& source) {
    v.local = source;
    return window_under_views(v, dim, wanted);
  };
  if (x.op() == Op::Permute) {
    const auto order = x->arg();
    v.local = x.src(0);
    for (Placement& p : v.place) {
      if (p.is_shard()) p.dim = int(order[size_t(p.dim)]);
    }
    return permute(window_under_views(v, int(order[size_t(dim)]), wanted), order);
  }
  if (x.op() == Op::Unfold) return unfold(under(x.src(0)), unfold_arg(*x));
  if (x.op() == Op::Pad) return pad(under(x.src(0)), x->arg());
  const UOp inner = under(x.src(1).src(0));
  const UOp padded = pad(inner, x.src(1)->arg());
  const UOp trues = reshaped_const(x.src(0).src(0), inner.shape());
  return where(pad(trues, x.src(0)->arg()), padded, reshaped_const(x.src(2), padded.shape()));
}

// Puts `fill` into rows outside of [low, high). x has the rows first, first + 1, ... of a source.
// Without `fill` such rows stay 0, as they are.
UOp filled(const UOp& x, int dim, const DeviceNumber& first, const Rows& rows, const UOp& fill) {
  if (!fill) return x;
  const UOp inside =
      binary(Op::And, unary(Op::Not, rows_before(x.shape(), dim, DeviceNumber(rows.low) - first)),
             rows_before(x.shape(), dim, DeviceNumber(rows.high) - first));
  return where(inside, x, reshaped_const(fill, x.shape()));
}

// Windows of the last dim of `shape`, of which v has parts, after its rows moved as `rows` says and
// were filled around.
LocalValue windows_of(LocalValue v, DimSpan shape, const Rows& rows, const UOp& fill, int64_t count,
                      const UnfoldArg& arg) {
  const int dim = int(shape.size()) - 1;
  const Mesh mesh = *v.mesh;
  const std::vector<Placement> wanted = with_terms_of_sums(v.place);
  const int64_t devices = devices_along(v, dim);
  const bool divided = devices > 1 && count >= devices && product(shape) > 0;
  const std::vector<Placement> once = divided_once(wanted, dim, divided);
  v = redistribute(std::move(v), shape, mesh, once);
  Dims result(shape.begin(), shape.end());
  result.back() = count;
  result.push_back(arg.kernel);
  if (!divided) {
    v.local = rows_of(v.local, dim, rows.shift, rows.size, rows.low, rows.high);
    v.local = unfold(filled(v.local, dim, rows.shift, rows, fill), arg);
    return {v.local, mesh, once};
  }
  const int64_t part = (count + devices - 1) / devices;
  const int64_t reach = arg.dilation * (arg.kernel - 1);
  const int64_t step = part * arg.stride;
  v.local = window_under_views(
      v, dim, {step, rows.shift, step - arg.stride + reach + 1, rows.low, rows.high});
  const DeviceNumber first = DeviceNumber::coordinate(mesh, axis_of(v, dim)) * step + rows.shift;
  v.local = unfold(filled(v.local, dim, first, rows, fill), arg);
  return redistribute({v.local, mesh, once}, result, mesh, wanted);
}

// True if what a device makes of its windows is for few devices beside it.
bool begin_nearby(int64_t step, int64_t part, int64_t devices) {
  constexpr int64_t kParts = 8;
  return std::abs(step - part) * (devices - 1) <= kParts * part;
}

// Sums windows back to rows. Each device sums its own windows, which cover the rows that `rows`
// names, and sends the sums of rows beyond its part, of `part` rows, to the devices that hold
// these.
UOp sums_of_own_windows(LocalValue v, DimSpan shape, const Window& rows, int64_t part,
                        UnfoldArg arg) {
  const int dim = int(shape.size()) - 2;
  const DType type = v.local.dtype();
  v.local = with_padding_filled(v, shape, dim, const_int(type, 0));
  v.local = cast(v.local, accumulator(type));  // sums are rounded once
  arg.size = rows.rows;
  v.local = unfold_backward(v.local, arg);
  return cast(window_added(v, dim, rows, part), type);
}

// Rows of what windows of the dim before the last are summed to. Each device sums its own windows, or,
// where that sends less, receives those that its rows are in: where neither windows nor rows of parts
// begin alike, it first makes so many rows that they do. `shape`: of the windows as a whole.
LocalValue windows_summed(LocalValue v, DimSpan shape, UnfoldArg arg, const Range& range) {
  const int dim = int(shape.size()) - 2;
  const Mesh mesh = *v.mesh;
  std::vector<Placement> wanted = with_terms_of_sums(v.place);
  for (Placement& p : wanted) {
    if (p.is_shard() && p.dim > dim) p = Replicate;  // a window is whole
  }
  const int64_t devices = devices_along(v, dim);
  const bool divided = devices > 1 && range.size >= devices && product(shape) > 0;
  const std::vector<Placement> once = divided_once(wanted, dim, divided);
  v = redistribute(std::move(v), shape, mesh, once);
  if (!divided) {
    v.local = rows_of(unfold_backward(v.local, arg), dim, range.first, range.size, 0, arg.size);
    return {v.local, mesh, once};
  }
  const int64_t part = (range.size + devices - 1) / devices, even = rounded_up(part, arg.stride);
  const int64_t reach = arg.dilation * (arg.kernel - 1), windows = v.local.shape()[size_t(dim)];
  const int64_t step = windows * arg.stride;
  // Behind the last window there is nothing to send.
  const int64_t end = (shape[size_t(dim)] - 1) * arg.stride + reach + 1 - range.first;
  const Window rows{step, -range.first, step - arg.stride + reach + 1, 0,
                    std::min(range.size, end)};
  const Reading read = reading(even, range.first, reach, arg.stride);
  const Window read_by_rows{even / arg.stride, read.first, read.windows, 0, shape[size_t(dim)]};
  const auto size = int64_t(itemsize(v.local.dtype())),
             wide = int64_t(itemsize(accumulator(v.local.dtype())));
  const int64_t moved =
      rows_sent(windows, devices, read_by_rows) * arg.kernel +
      (even == part ? 0 : rows_sent(even, devices, {part, 0, part, 0, range.size}));
  if (step == part || (begin_nearby(step, part, devices) &&
                       rows_added(part, devices, rows) * wide <= moved * size)) {
    v.local = sums_of_own_windows(v, shape, rows, part, arg);
  } else {
    v.local = window(v, dim, read_by_rows);
    arg.size = std::max(read.length, read.before + even);
    v.local = rows_of(unfold_backward(v.local, arg), dim, read.before, even, 0, arg.size);
    if (even != part) v.local = window(v, dim, {part, 0, part, 0, range.size});
  }
  Dims result(shape.begin(), shape.end() - 1);
  result.back() = range.size;
  return redistribute({v.local, mesh, once}, result, mesh, wanted);
}

// Where a pad or a shrink moves rows along the split dim alone, windows are shifted in their place.
std::optional<LocalValue> windows_of_padded(const UOp& x, LocalValues& values) {
  Dims order;
  UOp source, fill;
  UOp moved = under_permute(x.src(0), order);
  if (const UOp& padded = x.src(0); is_filled_pad(padded)) {
    moved = padded.src(1);
    fill = padded.src(2);
  }
  if (moved.op() != Op::Pad && moved.op() != Op::Shrink) return std::nullopt;
  const std::vector<Rows> rows = rows_through(moved, source);
  const int dim = int(order.back());
  LocalValue v = values.of(source);
  if (!v.mesh || is_const(v.local) || parts_of(v, dim) == 1) return std::nullopt;
  for (int i = 0; i < int(rows.size()); ++i) {
    const Rows& r = rows[size_t(i)];
    if (i == dim || all_there(r, source.shape()[size_t(i)])) continue;
    if (parts_of(v, i) > 1) return std::nullopt;
  }
  v = redistribute(v, source.shape(), *v.mesh, with_terms_of_sums(v.place));
  Dims shape(source.shape().begin(), source.shape().end()), last;
  for (int i = 0; i < int(rows.size()); ++i) {
    const Rows& r = rows[size_t(i)];
    if (i == dim || all_there(r, shape[size_t(i)])) continue;
    if (fill) return std::nullopt;  // around other dims, too
    v.local = rows_of(v.local, i, r.shift, r.size, r.low, r.high);
    shape[size_t(i)] = r.size;
  }
  for (int64_t d : order) last.push_back(shape[size_t(d)]);
  v = permuted({v.local, v.mesh, v.place}, order);
  return windows_of(std::move(v), last, rows[size_t(dim)], fill, x.shape()[x.shape().size() - 2],
                    unfold_arg(*x));
}

// Returns the value under a mask, if `read` takes only rows where the mask, a padded constant of
// trues, is true; otherwise x.
UOp under_mask(const UOp& x, const std::vector<Rows>& read) {
  if (x.op() != Op::Where || x.src(0).op() != Op::Pad || !is_const(x.src(0).src(0), 1)) return x;
  const UOp& trues = x.src(0);
  for (size_t i = 0; i < read.size(); ++i) {
    const int64_t low = bounds_arg(*trues).low(i), high = low + trues.src(0).shape()[i];
    if (read[i].shift < low || read[i].shift + read[i].size > high) return x;
  }
  return x.src(1);
}

// A sum of windows along a divided dim that only x reads, through ops that leave its rows as they
// are or cut some off. A sum of windows along another dim is among these ops.
struct RowsBelow {
  UOp sum;
  std::vector<UOp> above;  // from x down
};

// True if each node from x down to `source`, itself left out, has one reader.
bool read_once(const UOp& x, const UOp& source, const LocalValues& values) {
  for (UOp at = x; !(at == source); at = at.src(0)) {
    if (!values.has_one_reader(at)) return false;
  }
  return true;
}

std::optional<RowsBelow> rows_below(const UOp& x, const LocalValues& values) {
  RowsBelow found;
  bool sums = false;
  for (UOp at = x; at == x || values.has_one_reader(at);) {
    UOp below;
    if (at.op() == Op::UnfoldBackward) {
      below = at.src(0);
      const LocalValue& windows = values.of(below);
      if (!windows.mesh) return std::nullopt;
      const bool divided = parts_of(windows, int(at.shape().size()) - 1) > 1;
      if (divided && sums) {
        found.sum = at;
        return found;
      }
      sums = true;
    } else if (at.op() == Op::Shrink) {
      const std::vector<Rows> rows = rows_through(at, below);
      if (!read_once(at.src(0), below, values)) return std::nullopt;
      if (const UOp chosen = under_mask(below, rows); !(chosen == below)) {
        if (!values.has_one_reader(below)) return std::nullopt;
        below = chosen;
      }
    } else if (at.op() == Op::Permute) {
      below = at.src(0);
    } else {
      return std::nullopt;
    }
    found.above.push_back(at);
    at = below;
  }
  return std::nullopt;
}

// Windows of rows to which the ops above their sum are applied first. These find the dim of rows
// where the sum would have it, and its kernel is the first dim, where no op looks for it: windows
// [.., windows, kernel] are [kernel, .., windows] here. Dims are counted without the kernel, as the
// ops count them.
class AroundRows {
 public:
  AroundRows(LocalValue windows, DimSpan shape) : rows_(int(shape.size()) - 2) {
    Dims order(shape.size());
    std::iota(order.begin(), order.end(), -1);
    order[0] = int64_t(shape.size()) - 1;
    permute_all(std::move(windows), shape, order);
  }

  // The next op; whether it can be done so.
  bool add(const UOp& x) {
    if (x.op() == Op::Permute) {
      Dims order{0};
      for (int64_t d : x->arg()) order.push_back(d + 1);
      permute_all(std::move(v_), Dims(shape_), order);
      const auto now = [&](int dim) {
        return int(std::ranges::find(x->arg(), dim) - x->arg().begin());
      };
      rows_ = now(rows_);
      if (columns_) columns_->dim = now(columns_->dim);
      return true;
    }
    return x.op() == Op::UnfoldBackward ? sum(unfold_arg(*x)) : cut(x);
  }

  // Elements of each row of the sum, on all devices together.
  int64_t row_size() const { return product(shape_) / shape_[0] / shape_[size_t(rows_) + 1]; }

  // With the rows summed as well; nothing where columns cannot be added so.
  std::optional<LocalValue> summed(const UnfoldArg& arg) {
    const auto rank = int64_t(shape_.size());
    Dims order, back;
    for (int64_t d = 1; d < rank; ++d) {
      if (d != rows_ + 1) order.push_back(d);
    }
    order.insert(order.end(), {rows_ + 1, 0});
    for (int64_t d = 0; d + 1 < rank; ++d)
      back.push_back(d < rows_ ? d : d == rows_ ? rank - 2 : d - 1);
    const Range range = range_.value_or(Range{0, arg.size});
    permute_all(std::move(v_), Dims(shape_), order);
    LocalValue v = permuted(windows_summed(v_, shape_, arg, range), back);
    if (!columns_) return v;
    const Range& all = columns_->range;
    const int64_t devices = devices_along(v, columns_->dim);
    const int64_t part = (all.size + devices - 1) / devices;
    if (all.size < devices || !begin_nearby(columns_->step, part, devices)) return std::nullopt;
    const int64_t terms = v.local.shape()[size_t(columns_->dim)];
    v.local =
        window_added(v, columns_->dim, {columns_->step, -all.first, terms, 0, all.size}, part);
    return v;
  }

 private:
  bool is_whole(int dim) const { return parts_of(v_, dim) == 1; }

  void permute_all(LocalValue v, DimSpan shape, const Dims& order) {
    Dims shape_there;
    for (int64_t d : order) shape_there.push_back(shape[size_t(d)]);
    v_ = permuted(std::move(v), order);
    shape_ = std::move(shape_there);
  }

  // Sums windows. If columns are divided themselves, a device gets terms, which are added up once
  // rows are there.
  bool sum(UnfoldArg arg) {
    const int last = int(shape_.size()) - 2;
    const int64_t size = arg.size;
    if (rows_ + 1 >= last || (columns_ && columns_->dim + 1 >= last)) return false;
    if (!is_whole(last + 1)) return false;
    if (!is_whole(last)) {
      const DType type = v_.local.dtype();
      const bool once = std::ranges::count(v_.place, Placement(Shard(last))) == 1;
      if (columns_ || !once || accumulator(type) != type) return false;
      const int64_t windows = v_.local.shape()[size_t(last)];
      v_.local = with_padding_filled(v_, shape_, last, const_int(type, 0));
      columns_ = Columns{last - 1, windows * arg.stride, {0, size}};
      arg.size = (windows - 1) * arg.stride + arg.dilation * (arg.kernel - 1) + 1;
    }
    v_.local = unfold_backward(v_.local, arg);
    shape_.pop_back();
    shape_.back() = size;
    return true;
  }

  // A chain of shrinks, and of pads that these cut off.
  bool cut(const UOp& x) {
    UOp source;
    const std::vector<Rows> all = rows_through(x, source);
    for (int i = 0; i < int(all.size()); ++i) {
      const Rows& rows = all[size_t(i)];
      if (all_there(rows, source.shape()[size_t(i)])) continue;
      if (rows.shift < rows.low || rows.shift + rows.size > rows.high) return false;
      if (i == rows_) {
        range_ = Range{range_ ? range_->first + rows.shift : rows.shift, rows.size};
        continue;
      }
      shape_[size_t(i) + 1] = rows.size;
      if (columns_ && i == columns_->dim) {
        columns_->range = {columns_->range.first + rows.shift, rows.size};
        continue;
      }
      if (!is_whole(i + 1)) return false;
      v_.local = rows_of(v_.local, i + 1, rows.shift, rows.size, rows.low, rows.high);
    }
    return true;
  }

  LocalValue v_;
  Dims shape_;  // of the whole
  int rows_;    // the dim, not counting the kernel
  std::optional<Range> range_;
  // The dim of columns that a device has terms of: how far its windows are from those of the next
  // device, and which columns are wanted.
  struct Columns {
    int dim;
    int64_t step;
    Range range;
  };
  std::optional<Columns> columns_;
};

// x, which sums windows of other dims after those of a divided one, with the latter summed last.
// Nothing where x does not, or where somebody else reads what is between. Windows of columns that do
// not overlap may have fewer elements than there are columns: then rows go first as well.
std::optional<LocalValue> rows_summed_last(const UOp& x, LocalValues& values) {
  const auto below = rows_below(x, values);
  if (!below) return std::nullopt;
  const UOp& sum = below->sum;
  LocalValue v = values.of(sum.src(0));
  const DimSpan shape = sum.src(0).shape();
  if (product(shape) == 0 || parts_of(v, int(shape.size()) - 1) > 1) return std::nullopt;
  v = redistribute(v, shape, *v.mesh, with_terms_of_sums(v.place));
  AroundRows around(std::move(v), shape);
  for (size_t i = below->above.size(); i-- > 0;) {
    if (!around.add(below->above[i])) return std::nullopt;
  }
  if (around.row_size() * sum.shape().back() >= sum->numel()) return std::nullopt;
  std::optional<LocalValue> result = around.summed(unfold_arg(*sum));
  if (!result) return std::nullopt;
  check_internal(product(result->local.shape()) ==
                     product(Sharding{*result->mesh, result->place}.local_shape(x.shape())),
                 "a part has the size of its placement");
  return result;
}

}  // namespace

std::optional<LocalValue> cut_of_windows_summed(const UOp& x, const UOp& source,
                                                const std::vector<Rows>& rows,
                                                LocalValues& values) {
  if (auto late = rows_summed_last(x, values)) return late;
  Dims order;
  const UOp sum = under_permute(under_mask(source, rows), order);
  if (sum.op() != Op::UnfoldBackward) return std::nullopt;
  const int64_t last = int64_t(sum.shape().size()) - 1;
  const auto dim = size_t(std::ranges::find(order, last) - order.begin());
  const LocalValue windows = values.of(sum.src(0));
  if (!windows.mesh || parts_of(windows, int(last)) == 1) return std::nullopt;
  for (size_t i = 0; i < rows.size(); ++i) {
    const Rows& r = rows[i];
    const bool cut = r.shift >= r.low && r.shift + r.size <= r.high;
    const bool moves = !all_there(r, source.shape()[i]);
    if (i == dim ? !cut : moves && parts_of(windows, int(order[i])) > 1) return std::nullopt;
  }
  LocalValue v = windows_summed(windows, sum.src(0).shape(), unfold_arg(*sum),
                                {rows[dim].shift, rows[dim].size});
  v = permuted(std::move(v), order);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Rows& r = rows[i];
    if (i == dim || all_there(r, source.shape()[i])) continue;
    v.local = rows_of(v.local, int(i), r.shift, r.size, r.low, r.high);
  }
  check_internal(
      product(v.local.shape()) == product(Sharding{*v.mesh, v.place}.local_shape(x.shape())),
      "a part has the size of its placement");
  return v;
}

LocalValue unfolded(const UOp& x, LocalValues& values) {
  const LocalValue v = values.of(x.src(0));
  if (!v.mesh) return rebuilt(x, {v}, v);
  if (x.op() == Op::UnfoldBackward) {
    if (auto late = rows_summed_last(x, values)) return *late;
    const UnfoldArg arg = unfold_arg(*x);
    return windows_summed(v, x.src(0).shape(), arg, {0, arg.size});
  }
  if (auto padded = windows_of_padded(x, values)) return *padded;
  const DimSpan shape = x.src(0).shape();
  const int64_t n = shape.back();
  return windows_of(v, shape, {n, 0, 0, n}, UOp(), x.shape()[x.shape().size() - 2], unfold_arg(*x));
}

}  // namespace tinyshard
