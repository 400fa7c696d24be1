// x[...] and its assignment, gather, embedding, one-hot.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/tensor/sizes_internal.h"
#include "core/tensor/view_internal.h"

namespace tinyshard {
namespace value {

Value iota(int64_t n, DType dtype) {
  if (is_int(dtype) && n >= int64_t{1} << 31 && itemsize(dtype) < 8)
    fail(fmt::format("{} places are more than {} counts", n, name(dtype)));
  return cast(Value(UOp::make(Op::Iota, DType::I64, {}, Dims{n})), dtype);
}

Value iota_along(int64_t axis, int64_t rank, int64_t n, DType dtype) {
  Dims shape(rank, 1);
  shape[axis] = n;
  return reshape(iota(n, dtype), shape);
}

Value index_type(const Value& index) {
  switch (index.dtype()) {
    case DType::I32:
    case DType::I64:
      return index;
    case DType::U32:
    case DType::U64:
      return cast(index, DType::I64);
    default:
      return cast(index, DType::I32);
  }
}

Value gather(const Value& x, int64_t axis, const Value& index) {
  return UOp::make(Op::Gather, x.dtype(), {x.node(), index_type(index).node()}, Dims{axis});
}

Value scatter_add(const Value& index, const Value& src, int64_t axis, int64_t size) {
  return UOp::make(Op::ScatterAdd, src.dtype(), {index_type(index).node(), src.node()},
                   Dims{axis, size});
}

Value scatter_reduce(ReduceOp op, const Value& index, const Value& src, int64_t axis,
                     int64_t size) {
  return UOp::make(Op::ScatterAdd, src.dtype(), {index_type(index).node(), src.node()},
                   Dims{axis, size, int64_t(op)});
}

Value last_entries(const Value& index, int64_t axis, int64_t size) {
  Value entry = iota_along(axis, index.rank(), index.size(axis), DType::I32) + 1;
  return maximum(
      scatter_reduce(ReduceOp::Max, index, broadcast_to(entry, index.shape()), axis, size), 0);
}

Value one_hot(const Value& index, int64_t classes) {
  return unsqueeze(index, index.rank()) == iota(classes, index_type(index).dtype());
}

namespace {

// The effect of one entry of an index on one dim of x.
struct View {
  int64_t low, high, step;  // 0 <= low <= high <= size; a negative step reads from high down
  bool drop;                // a number: the dim goes away
};

int64_t view_size(const View& v) {
  return (v.high - v.low + std::abs(v.step) - 1) / std::abs(v.step);
}

View slice_view(const Slice& slice, int64_t size) {
  if (slice.step == 0) fail("slice step cannot be 0");
  // A longer step takes the first element, as one over the whole dim does.
  const int64_t step =
      std::clamp<int64_t>(slice.step, -std::max<int64_t>(1, size), std::max<int64_t>(1, size));
  auto wrapped = [size](int64_t i) { return i < 0 ? i + size : i; };
  if (step > 0) {
    int64_t low = std::clamp<int64_t>(wrapped(slice.start.value_or(0)), 0, size);
    int64_t high = std::clamp<int64_t>(wrapped(slice.stop.value_or(size)), 0, size);
    return {low, std::max(low, high), step, false};
  }
  int64_t first = slice.start ? std::clamp<int64_t>(wrapped(*slice.start), -1, size - 1) : size - 1;
  int64_t last = slice.stop ? std::clamp<int64_t>(wrapped(*slice.stop), -1, size - 1) : -1;
  return {std::min(last, first) + 1, first + 1, step, false};
}

// An index taken apart: views of the dims of x, then new dims, then tensors over some of them.
struct Plan {
  std::vector<View> views;                         // one per dim of x
  Dims shape;                                      // after views, dropped and new dims
  std::vector<std::pair<int64_t, Value>> tensors;  // (dim of that shape, index)
  Dims tensor_dims;                                // of x, for each of them
  struct Limit {
    int64_t dim, x_dim;       // of that shape, of x
    SymbolicSize size, stop;  // of the dim, in x
  };
  std::vector<Limit> limits;  // slices that end at a place that is known when a step runs
  bool is_copy = false;       // some of the tensors are no numbers or Variables
  bool is_movement() const { return tensors.empty() && limits.empty(); }
  bool names_one_place() const {
    return std::ranges::all_of(tensors,
                               [](const auto& t) { return t.second.node()->numel() == 1; });
  }
};

// The dim of x along which it counts 0, 1, 2, ... and along which alone it changes; -1: none, or
// one whose size is known when a step runs.
int64_t counted_along(const UOp& x) {
  if (symbolic_shape(x)) return -1;
  switch (x.op()) {
    case Op::Iota:
      return 0;
    case Op::Identity:
      return counted_along(x.src(0));
    case Op::Cast: {
      const int64_t dim = counted_along(x.src(0));
      return dim >= 0 && is_int(x.dtype()) && fits(x.shape()[dim] - 1, x.dtype()) ? dim : -1;
    }
    case Op::Permute: {
      const int64_t dim = counted_along(x.src(0));
      return dim < 0 ? -1 : std::ranges::find(x->arg(), dim) - x->arg().begin();
    }
    case Op::Expand: {
      const int64_t dim = counted_along(x.src(0));
      return dim >= 0 && x.src(0).shape()[dim] == x.shape()[dim] ? dim : -1;
    }
    case Op::Reshape: {
      const int64_t dim = counted_along(x.src(0));
      if (dim < 0 || x.src(0).shape()[dim] != x->numel()) return -1;
      const auto place = std::ranges::find(x.shape(), x->numel());
      return place == x.shape().end() ? -1 : place - x.shape().begin();
    }
    default:
      return -1;
  }
}

bool takes_dim(const Index& entry) {
  return entry.kind != Index::Kind::NewAxis && entry.kind != Index::Kind::Ellipsis;
}

Plan plan(const Value& x, std::span<const Index> index) {
  const int64_t used = std::ranges::count_if(index, takes_dim);
  const int64_t ellipses = std::ranges::count(index, Index::Kind::Ellipsis, &Index::kind);
  if (used > x.rank())
    fail(fmt::format("{} indices for the {} dims of {}", used, x.rank(), text_of(x)));
  if (ellipses > 1) fail("more than one ellipsis");

  Plan out;
  auto keep = [&](const View& view) {
    out.views.push_back(view);
    if (!view.drop) out.shape.push_back(view_size(view));
  };
  auto whole = [&](int64_t count) {
    for (; count > 0; --count) keep({0, x.size(static_cast<int64_t>(out.views.size())), 1, false});
  };
  for (const Index& entry : index) {
    int64_t dim = static_cast<int64_t>(out.views.size());
    switch (entry.kind) {
      case Index::Kind::NewAxis:
        out.shape.push_back(1);
        break;
      case Index::Kind::Ellipsis:
        whole(x.rank() - used);
        break;
      case Index::Kind::Slice:
        if (entry.slice.symbolic_stop) {
          const SymbolicSize stop = size_of(entry.slice.symbolic_stop);
          const int64_t start = entry.slice.start.value_or(0), size = x.size(dim);
          if (stop.low == stop.high) {
            keep(slice_view(Slice(entry.slice.start, stop.high), size));
            break;
          }
          if (start < 0 || stop.low < start || stop.high > size) {
            fail(fmt::format("[{}, {}) with {} from {} to {} does not lie inside of dim {} of {}",
                             start, stop.text, stop.text, stop.low, stop.high, dim, text_of(x)));
          }
          out.limits.push_back(
              {static_cast<int64_t>(out.shape.size()), dim, add(stop, plain_size(-start)), stop});
          keep({start, stop.high, 1, false});
          break;
        }
        keep(slice_view(entry.slice, x.size(dim)));
        break;
      case Index::Kind::Number: {
        int64_t size = x.size(dim), i = entry.number < 0 ? entry.number + size : entry.number;
        if (i < 0 || i >= size) {
          fail(fmt::format("index {} is out of bounds for dim {} of {}", entry.number, dim,
                           text_of(x)));
        }
        keep({i, i + 1, 1, true});
        break;
      }
      case Index::Kind::Tensor: {
        Value places{Tensor(entry.tensor)};
        if (places.dtype() == DType::Bool) {
          fail(
              fmt::format("a bool index {} makes a shape that depends on values; use masked_select "
                          "or where; to write "
                          "there, x.assign(x.masked_fill(mask, value))",
                          text_of(places)));
        }
        need_int(places, "an index");
        out.is_copy = out.is_copy || !is_size(places);
        int64_t size = x.size(dim);
        places = size > INT32_MAX ? cast(places, DType::I64) : index_type(places);
        if (counted_along(places.node()) < 0) places = where(places < 0, places + size, places);
        out.tensors.emplace_back(static_cast<int64_t>(out.shape.size()), places);
        out.tensor_dims.push_back(dim);
        keep({0, size, 1, false});
        break;
      }
    }
  }
  whole(x.rank() - static_cast<int64_t>(out.views.size()));
  return out;
}

// Which elements of a dim of n a view with a longer step reads: those of one column of a window of lines
// as long as the step. Where the step divides n the window is the whole dim, which may lie in parts over devices then.
//
//   of 8, from 3 up to 8 in steps of 2    [0 1 | 2 3 | 4 5 | 6 7]   rows 1 to 3 of column 1
//   of 7, from 3 up to 7 in steps of 2          [3 4 | 5 6]         rows 0 and 1 of column 0
struct Lines {
  int64_t low, high;   // the window in the dim
  int64_t rows;        // of the window, after padding
  int64_t row, count;  // the first row that is read, and how many are
  int64_t column;
};

Lines lines_of(const View& v, int64_t n) {
  const int64_t step = std::abs(v.step), count = view_size(v);
  if (count == 0) return {v.low, v.low, 0, 0, 0, 0};
  const int64_t first = v.step > 0 ? v.low : v.high - 1 - (count - 1) * step;
  if (n % step == 0) return {0, n, n / step, first / step, count, first % step};
  return {first, std::min(n, first + count * step), count, 0, count, 0};
}

Dims reversed_axes(const Plan& plan) {
  Dims axes;
  for (size_t i = 0; i < plan.views.size(); ++i) {
    if (plan.views[i].step < 0) axes.push_back(static_cast<int64_t>(i));
  }
  return axes;
}

Value apply_views(const Value& x, const Plan& plan) {
  Pairs bounds;
  std::vector<Lines> lines;
  for (size_t i = 0; i < plan.views.size(); ++i) {
    const View& v = plan.views[i];
    lines.push_back(lines_of(v, x.size(static_cast<int64_t>(i))));
    if (std::abs(v.step) == 1)
      bounds.emplace_back(v.low, v.high);
    else
      bounds.emplace_back(lines[i].low, lines[i].high);
  }
  Value out = shrink(x, bounds);
  for (size_t i = 0; i < plan.views.size(); ++i) {
    const int64_t step = std::abs(plan.views[i].step), axis = static_cast<int64_t>(i);
    if (step == 1) continue;
    const Lines& l = lines[i];
    Pairs to_multiple(out.rank(), {0, 0});
    to_multiple[axis] = {0, l.rows * step - out.size(axis)};
    Dims rows = out.dims();
    rows[axis] = step;
    rows.insert(rows.begin() + axis, l.rows);
    // The column first: over devices rows move then, and not whole lines.
    out = shrink_axis(reshape(pad(out, to_multiple), rows), axis + 1, l.column, l.column + 1);
    out = shrink_axis(squeeze(out, axis + 1), axis, l.row, l.row + l.count);
  }
  return reshape(flip(out, reversed_axes(plan)), plan.shape);
}

// The reverse: values of the plan's shape at their places in x's shape, zeros elsewhere.
Value undo_views(const Value& values, const Plan& plan, DimSpan shape) {
  Dims counts;
  for (const View& v : plan.views) counts.push_back(view_size(v));
  Value out = flip(reshape(values, counts), reversed_axes(plan));
  Pairs around;
  for (size_t i = 0; i < plan.views.size(); ++i) {
    const View& v = plan.views[i];
    const int64_t step = std::abs(v.step), axis = static_cast<int64_t>(i);
    if (step == 1) {
      around.emplace_back(v.low, shape[i] - v.high);
      continue;
    }
    const Lines l = lines_of(v, shape[i]);
    Value apart = unsqueeze(out, axis + 1);
    Pairs zeros(apart.rank(), {0, 0});
    zeros[axis] = {l.row, l.rows - l.row - l.count};
    zeros[axis + 1] = {l.column, step - 1 - l.column};
    Dims line = out.dims();
    line[axis] = l.rows * step;
    out = shrink_axis(reshape(pad(apart, zeros), line), axis, 0, l.high - l.low);
    around.emplace_back(l.low, shape[i] - l.high);
  }
  return pad(out, around);
}

// Several index tensors become one over the product of their dims. A dim whose index tensor counts
// all of its elements, as arange(n) in x[arange(n), labels], has no part in that: element i of it
// meets place i, wherever that lies. It stays a dim of its own, which may be divided over devices.
//
//   x [n, v, w], x[arange(n), labels]: lines [n, v, w], index [n, 1] along dim 1
//   x [n, v, w], x[rows, labels]:      lines [n * v, w], index [n] = rows * v + labels along dim 0
struct Combined {
  Dims order;        // of the viewed x: counted dims first, then other indexed dims, then the rest
  Dims places;       // shape that the index tensors share
  Dims place_order;  // of its dims: those that are counted, then others
  Dims counted;      // sizes of the counted dims
  int64_t count;     // of places for each element of these
  int64_t lines;     // product of the other indexed dims
  Value line;        // the index into them: [counted, count]
  int64_t target;    // where `places` goes in the result, as a position among the other dims

  int64_t axis() const { return static_cast<int64_t>(counted.size()); }  // of lines
  // [counted, size, rest]
  Dims with_counted(int64_t size, DimSpan rest) const {
    Dims shape = counted;
    shape.push_back(size);
    shape.insert(shape.end(), rest.begin(), rest.end());
    return shape;
  }
  Value line_beside(int64_t rest) const {
    return reshape(line, with_counted(count, Dims(rest, 1)));
  }
};

Combined combine(const Value& viewed, const Plan& plan) {
  Dims places;
  for (const auto& [dim, index] : plan.tensors) places = broadcast_shape(places, index.shape());
  Combined out{{}, places, {}, {}, 1, 1, constant(DType::I64, 0, places), 0};
  const auto rank = static_cast<int64_t>(places.size());
  std::vector<std::pair<int64_t, Value>> others;
  for (const auto& [dim, index] : plan.tensors) {
    const int64_t along = counted_along(index.node()), place = along + rank - index.rank();
    const bool last = others.empty() && &index == &plan.tensors.back().second;
    if (along < 0 || last || places[place] != viewed.size(dim) ||
        index.size(along) != viewed.size(dim) ||
        std::ranges::find(out.place_order, place) != out.place_order.end()) {
      others.emplace_back(dim, index);
      continue;
    }
    out.order.push_back(dim);
    out.place_order.push_back(place);
    out.counted.push_back(viewed.size(dim));
  }
  DType type = others.size() == 1 ? others[0].second.dtype() : DType::I64;
  Value inside = constant(DType::Bool, true, places);
  for (const auto& [dim, index] : others) {
    int64_t size = viewed.size(dim);
    Value here = cast(broadcast_to(index, places), type);
    out.line = dim == others[0].first ? here : out.line * size + here;
    inside = inside & (here >= 0) & (here < size);
    out.lines *= size;
    out.order.push_back(dim);
  }
  // Past the end in one dim must not become a place in another.
  if (others.size() > 1) out.line = where(inside, out.line, -1);
  for (int64_t i = 0; i < rank; ++i) {
    if (std::ranges::find(out.place_order, i) == out.place_order.end())
      out.place_order.push_back(i);
  }
  for (int64_t i = out.axis(); i < rank; ++i) out.count *= places[out.place_order[i]];
  out.line = reshape(permute(out.line, out.place_order), out.with_counted(out.count, {}));
  // Numbers take their dims away first: then it shows whether tensors are adjacent.
  bool adjacent = true;
  for (size_t i = 1; i < plan.tensors.size(); ++i)
    adjacent = adjacent && plan.tensors[i].first == plan.tensors[i - 1].first + 1;
  out.target = adjacent ? plan.tensors[0].first : 0;
  for (int64_t i = 0; i < viewed.rank(); ++i) {
    if (std::ranges::find(out.order, i) == out.order.end()) out.order.push_back(i);
  }
  return out;
}

Value take_lines(const Value& viewed, const Plan& plan) {
  Combined c = combine(viewed, plan);
  int64_t count = static_cast<int64_t>(plan.tensors.size());
  Value front = permute(viewed, c.order);
  Dims rest(front.shape().begin() + count, front.shape().end());
  // The other dims stay apart: one of them may be divided over devices.
  Value index =
      broadcast_to(c.line_beside(static_cast<int64_t>(rest.size())), c.with_counted(c.count, rest));
  Value out = gather(reshape(front, c.with_counted(c.lines, rest)), c.axis(), index);
  Dims shape;
  for (int64_t place : c.place_order) shape.push_back(c.places[place]);
  shape.insert(shape.end(), rest.begin(), rest.end());
  out = reshape(out, shape);
  Dims order;  // of the result: rest up to target, places, rest
  int64_t k = static_cast<int64_t>(c.places.size());
  for (int64_t i = 0; i < c.target; ++i) order.push_back(k + i);
  for (int64_t i = 0; i < k; ++i)
    order.push_back(std::ranges::find(c.place_order, i) - c.place_order.begin());
  for (int64_t i = c.target; i < static_cast<int64_t>(rest.size()); ++i) order.push_back(k + i);
  return permute(out, order);
}

}  // namespace

namespace {

Value at(const Value& x, const Plan& p) {
  Value viewed = apply_views(x, p);
  for (const Plan::Limit& limit : p.limits) viewed = limited_to(viewed, limit.dim, limit.size);
  return p.tensors.empty() ? viewed : take_lines(viewed, p);
}

// Values written to x where index tensors of one element each say: a comparison of places, which
// leaves the other elements alone.
Placed at_one_place(const Value& x, const Plan& plan, const Value& values) {
  Dims rest = plan.shape, result = plan.shape;
  if (!plan.tensors.empty()) {
    const Combined c = combine(apply_views(x, plan), plan);
    result.clear();
    for (size_t i = plan.tensors.size(); i < c.order.size(); ++i)
      result.push_back(plan.shape[c.order[i]]);
    result.insert(result.begin() + c.target, c.places.begin(), c.places.end());
  }
  for (const auto& [dim, index] : plan.tensors) rest[dim] = 1;
  Value here = undo_views(constant(DType::Bool, true, plan.shape), plan, x.shape());
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const Value& index = plan.tensors[i].second;
    Value places =
        iota_along(plan.tensor_dims[i], x.rank(), x.size(plan.tensor_dims[i]), index.dtype());
    here = here & (places == reshape(index, Dims(x.rank(), 1)));
  }
  Value given = values;
  for (const Plan::Limit& limit : plan.limits) {
    // As many as there are places, or one for all of them.
    const int64_t dim = limit.dim - (static_cast<int64_t>(plan.shape.size()) - values.rank());
    if (!plan.tensors.empty()) fail("a slice of such a size beside an index tensor");
    if (dim >= 0 && values.size(dim) != 1) {
      auto size = size_along(values, dim);
      if (!size || !(size->node == limit.size.node))
        fail(fmt::format("{} values for {} places: the value is {}",
                         size ? size->text : std::to_string(values.size(dim)), limit.size.text,
                         text_of(values)));
    }
    here = here & (iota_along(limit.x_dim, x.rank(), x.size(limit.x_dim), DType::I64) <
                   Value(limit.stop.node));
  }
  for (int64_t d = 0; d < values.rank(); ++d) {
    const int64_t dim = d + static_cast<int64_t>(plan.shape.size()) - values.rank();
    auto limits_dim = [&](const Plan::Limit& limit) { return limit.dim == dim; };
    if (auto size = size_along(values, d); size && std::ranges::none_of(plan.limits, limits_dim))
      fail(fmt::format("{} values for {} places", size->text, plan.shape[dim]));
  }
  if (!plan.limits.empty()) given = at_bound(given);
  Value placed = broadcast_to(reshape(broadcast_to(given, result), rest), plan.shape);
  return {undo_views(placed, plan, x.shape()), here};
}

// Values written to x where index tensors or such slices say.
Placed written(const Value& x, const Plan& p, const Value& values) {
  Value typed = cast(values, x.dtype());
  Dims shape = x.dims();
  if (p.names_one_place()) return at_one_place(x, p, typed);
  if (!p.limits.empty()) fail("a slice of such a size beside an index tensor");
  // For each line of x the last of the places that name it, if any.
  Value viewed = apply_views(x, p);
  Combined c = combine(viewed, p);
  int64_t count = static_cast<int64_t>(p.tensors.size());
  Value front = permute(viewed, c.order);
  Dims rest(front.shape().begin() + count, front.shape().end());
  const int64_t k = static_cast<int64_t>(c.places.size());
  Dims result = rest;
  result.insert(result.begin() + c.target, c.places.begin(), c.places.end());
  Value given = broadcast_to(typed, result);
  Dims order;
  for (int64_t place : c.place_order) order.push_back(c.target + place);
  for (int64_t i = 0; i < given.rank(); ++i) {
    if (i < c.target || i >= c.target + k) order.push_back(i);
  }
  const Dims lined = c.with_counted(c.lines, rest);
  Value rows = reshape(permute(given, order), c.with_counted(c.count, rest));
  Value last = last_entries(c.line_beside(static_cast<int64_t>(rest.size())), c.axis(), c.lines);
  Value picked = gather(rows, c.axis(), broadcast_to(last - 1, lined));
  Value lines = where(last > 0, picked, reshape(front, lined));
  Dims back(c.order.size());
  for (size_t i = 0; i < back.size(); ++i) back[c.order[i]] = static_cast<int64_t>(i);
  Value merged = permute(reshape(lines, front.dims()), back);
  Value inside = undo_views(constant(DType::Bool, true, p.shape), p, shape);
  return {undo_views(merged, p, shape), inside};
}

// --- slices that begin at a place that is known when a step runs ---------------------------------

// A part of one dim: `size` elements from `start` on.
struct Window {
  int64_t dim, size;
  Value start;
};

Value window_of(const Value& x, const Window& w) {
  Dims shape = x.dims();
  shape[w.dim] = w.size;
  return gather(x, w.dim,
                broadcast_to(iota_along(w.dim, x.rank(), w.size, DType::I64) + w.start, shape));
}

// The part in all windows of x at once.
Placed in_windows(const Value& x, const std::vector<Window>& windows, const Value& part) {
  Value here = constant(DType::Bool, true);
  Dims shape = x.dims();
  for (const Window& w : windows) shape[w.dim] = w.size;
  Value given = broadcast_to(part, shape);
  for (const Window& w : windows) {
    const Value place = iota_along(w.dim, x.rank(), x.size(w.dim), DType::I64);
    here = here & (place >= w.start) & (place < w.start + w.size);
    shape[w.dim] = x.size(w.dim);
    given = gather(given, w.dim, broadcast_to(place - w.start, shape));
  }
  return {given, here};
}

// The windows that an index takes of x, and what it takes of these.
struct Windowed {
  std::vector<Window> windows;
  std::vector<Index> rest;
};

Windowed windows_of(const Value& x, std::span<const Index> index) {
  Windowed out{{}, {index.begin(), index.end()}};
  const int64_t used = std::ranges::count_if(index, takes_dim);
  int64_t dim = 0;
  for (Index& entry : out.rest) {
    if (entry.kind == Index::Kind::Ellipsis) dim += x.rank() - used;
    if (!takes_dim(entry)) continue;
    const int64_t here = dim++;
    Slice& slice = entry.slice;
    if (entry.kind != Index::Kind::Slice || !slice.symbolic_start || here >= x.rank()) continue;
    const int64_t n = x.size(here), last = slice.stop.value_or(n);
    const SymbolicSize start = size_of(slice.symbolic_start),
                       stop = slice.symbolic_stop ? size_of(slice.symbolic_stop)
                                                  : plain_size(last < 0 ? last + n : last),
                       size = subtract(stop, start);
    slice.symbolic_start = nullptr;
    if (start.low == start.high) {
      slice.start = start.low;
      continue;
    }
    if (size.low != size.high) {
      fail(
          fmt::format("[{}, {}) has {} elements: from a place that is known when the step runs on "
                      "there can only be a number of them; read {} and on by an index tensor, "
                      "Tensor::arange(n) + {}",
                      start.text, stop.text, size.text, start.text, start.text));
    }
    if (start.low < 0 || stop.high > n) {
      fail(fmt::format("[{}, {}) with {} from {} to {} does not lie inside of dim {} of {}",
                       start.text, stop.text, start.text, start.low, start.high, here, text_of(x)));
    }
    out.windows.push_back({here, std::max<int64_t>(0, size.low), start.node});
    slice = Slice();
  }
  return out;
}

ViewStep step_of(std::vector<Window> windows) {
  return {[windows](Value x) {
            for (const Window& w : windows) x = window_of(x, w);
            return x;
          },
          [windows](const Value& x, const Value& part) { return in_windows(x, windows, part); },
          true};
}

ViewStep step_of(Plan plan) {
  auto p = std::make_shared<const Plan>(std::move(plan));
  ViewStep step{[p](const Value& x) { return at(x, *p); }, nullptr};
  if (p->is_movement()) return step;
  step.only_places = p->names_one_place();
  step.put = [p](const Value& x, const Value& values) { return written(x, *p, values); };
  return step;
}

}  // namespace

Tensor view_at(const Tensor& x, std::span<const Index> index) {
  auto [windows, rest] = windows_of(x, index);
  const Tensor part = windows.empty() ? x : view_of(x, step_of(std::move(windows)));
  Plan p = plan(part, rest);
  const bool is_copy = p.is_copy;
  return view_of(part, step_of(std::move(p)), is_copy);
}

}  // namespace value

using value::text_of;
using value::Value;

Tensor Tensor::operator[](const Index& index) const& {
  Call call("getitem", index.caller);
  return value::view_at(*this, std::span(&index, 1));
}

Tensor Tensor::operator[](std::initializer_list<Index> index) const& {
  Call call("getitem", index.size() ? index.begin()->caller : Caller::current());
  return value::view_at(*this, std::span(index.begin(), index.size()));
}

Tensor Tensor::at(const std::vector<Index>& index) const& {
  Call call("getitem", index.empty() ? Caller::current() : index[0].caller);
  return value::view_at(*this, index);
}

namespace {

void set_at(const Tensor& x, std::span<const Index> index, const Operand& value,
            bool is_temporary) {
  if (symbolic_shape(x.uop()))
    fail(fmt::format("{} is no storage: write into what it is a slice of", x.describe()));
  auto [windows, rest] = value::windows_of(x, index);
  std::vector<ViewStep> steps;
  Value part(x);
  if (!windows.empty()) {
    steps.push_back(value::step_of(std::move(windows)));
    part = steps[0].take(part);
  }
  steps.push_back(value::step_of(value::plan(part, rest)));
  const Value typed = value::cast(value, x.dtype());
  value::Way way = is_temporary ? value::way_to_temporary(x) : value::way_to(x, false);
  for (ViewStep& step : steps) {
    way.steps.push_back(std::make_shared<const ViewStep>(std::move(step)));
    way.views.push_back(nullptr);
  }
  value::write(way, typed);
}

}  // namespace

void Tensor::setitem(const std::vector<Index>& index, const Operand& value) const& {
  Call call("setitem", value.caller);
  set_at(*this, index, value, false);
}
void Tensor::setitem(const std::vector<Index>& index, const Operand& value) const&& {
  Call call("setitem", value.caller);
  set_at(*this, index, value, true);
}

Tensor Tensor::gather(int64_t dim, const Tensor& index, Caller caller) const {
  Call call("gather", caller);
  Value x(*this), places(index);
  need_int(places, "index");
  int64_t axis = value::resolve_axis(dim, x.rank());
  bool fits = x.rank() == places.rank() && x.rank() > 0;
  for (int64_t i = 0; fits && i < x.rank(); ++i) fits = i == axis || places.size(i) <= x.size(i);
  if (!fits) {
    fail(fmt::format("index {} must have the dims of {}, none larger except dim {}",
                     text_of(places), text_of(x), axis));
  }
  return value::gather(x, axis, places);
}

Tensor Tensor::embedding(const Tensor& index, Caller caller) const {
  Call call("embedding", caller);
  Value table(*this), places(index);
  need_int(places, "index");
  if (table.rank() != 2)
    fail(fmt::format("the table {} must be [vocabulary, width]", text_of(table)));
  int64_t n = places.node()->numel(), width = table.size(1);
  Dims shape = places.dims();
  shape.push_back(width);
  Value rows =
      value::broadcast_to(value::reshape(value::index_type(places), {n, 1}), Dims{n, width});
  return value::reshape(value::gather(table, 0, rows), shape);
}

Tensor Tensor::one_hot(int64_t num_classes, Caller caller) const {
  Call call("one_hot", caller);
  Value index(*this);
  need_int(index, "the tensor");
  if (num_classes < 0)
    fail(fmt::format("{} classes: a number of classes is not negative", num_classes));
  return value::cast(value::one_hot(index, num_classes), DType::I32);
}

}  // namespace tinyshard
