// Ops that read or write places given by an index.
//
// A table that is divided along the dim that is looked up in is not gathered: each device looks up
// what it holds, and -0.0 elsewhere, and the sum of all is the result. A sum with -0.0 is the other
// term, to the bit; with 0.0 a -0.0 of the table would be lost.
//
//   table [t0 t1 | t2 t3] over two devices, index [3 0 2]
//   device 0: places [-1 0 -1], found [-0 t0 -0]    device 1: places [1 -1 0], found [t3 -0 t2]
//
// The adjoint needs no sum: of what is written each device takes what falls into its part. The
// table may still be gathered: a few rows that many places name.
//
// Where the index is known (known_index.h) and the result is as long as to be divided itself, each
// device receives the rows beside its part that its part of the result names, and the adjoint sends
// terms of these rows back.
#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "core/uop/scatter.h"
#include "multi/moves.h"
#include "multi/strategies/held.h"
#include "multi/strategies/known_index.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

// Where the operands of a Gather are wanted, and how its result lies then; `result` is where it is
// wanted after that.
struct Lookup {
  Places data, index, found, result;
  std::optional<Window> window = {};  // of the table, where that stays divided as the result is
};

// What it takes to move the rows of a window along an axis. `place`: of the value of that shape.
double seconds_of_window(DType type, DimSpan shape, const Mesh& mesh, const Places& place,
                         size_t axis, const Window& window, LinkModel& links) {
  const auto dim = size_t(place[axis].dim);
  const Dims part = Sharding{mesh, place}.local_shape(shape);
  const int64_t rows = rows_sent(part[dim], mesh.axes()[axis].size, window);
  const double bytes =
      double(rows) * double(product(part)) / double(part[dim]) * double(itemsize(type));
  return links.seconds_of(CollectiveOp::AllToAll, bytes, mesh, int(axis));
}

bool divides_alone(const Places& place, size_t axis) {
  const auto same = [&](const Placement& p) { return p == place[axis]; };
  return place[axis].is_shard() && std::ranges::count_if(place, same) == 1;
}

struct Tables {
  const UOp& x;
  const Mesh& mesh;
  const LocalValue &data, &index;
  LinkModel& links;

  int dim() const { return int(gather_axis(*x)); }
  DimSpan shape() const { return x.src(0).shape(); }
  const UOp& places() const { return repeated(x.src(1)); }

  // Along each axis as the index lies; else as the table does, where both have the dim.
  Lookup with_whole_rows() const {
    Lookup l;
    l.data.resize(mesh.axes().size());
    l.index = l.data;
    for (size_t a = 0; a < l.data.size(); ++a) {
      Placement p = index.place[a].is_shard() ? index.place[a] : data.place[a];
      if (!p.is_shard()) continue;
      if (p.dim == dim() && !index.place[a].is_shard()) continue;
      if (p.dim != dim() && shape()[size_t(p.dim)] != x.shape()[size_t(p.dim)]) continue;
      l.index[a] = p;
      if (p.dim != dim()) l.data[a] = p;
    }
    l.found = l.result = l.index;
    return l;
  }

  // The same, but with parts of the table along `axis`.
  Lookup with_parts(Lookup l, size_t axis) const {
    l.data[axis] = Shard(dim());
    l.index[axis] = Replicate;
    l.found[axis] = Partial();
    return l;
  }

  // The same, but with the result in parts along `axis` as the table, and rows moved between them.
  std::optional<Lookup> with_window(Lookup l, size_t axis) const {
    l.data[axis] = l.index[axis] = l.found[axis] = l.result[axis] = Shard(dim());
    if (!divides_alone(l.data, axis) || !divides_alone(l.index, axis)) return std::nullopt;
    const auto line = known_line(x.src(1), dim());
    if (!line) return std::nullopt;
    l.window = window_of_line(*line, shape()[size_t(dim())], mesh.axes()[axis].size);
    return l.window ? std::optional(l) : std::nullopt;
  }

  double seconds(const Lookup& l) const {
    Places from = index.place, to = l.index;  // of what the index repeats
    for (Places* all : {&from, &to}) {
      for (Placement& p : *all) {
        const bool repeats =
            p.is_shard() && places().shape()[size_t(p.dim)] != x.shape()[size_t(p.dim)];
        if (repeats) p = Replicate;
      }
    }
    double window = 0;
    for (size_t a = 0; l.window && a < l.data.size(); ++a) {
      if (l.data[a] == Shard(dim()))
        window = seconds_of_window(data.local.dtype(), shape(), mesh, l.data, a, *l.window, links);
    }
    return window + seconds_moved(data.local.dtype(), shape(), mesh, data.place, l.data, links) +
           seconds_moved(index.local.dtype(), places().shape(), mesh, from, to, links) +
           seconds_moved(x.dtype(), x.shape(), mesh, l.found, l.result, links);
  }
};

}  // namespace

LocalValue gather(const UOp& x, LocalValues& values) {
  const int axis = int(gather_axis(*x));
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  LocalValue data = settled(values.on(x.src(0), *mesh), x.src(0).shape());
  LocalValue index = settled(values.on(x.src(1), *mesh), x.shape());
  values.set_table(x, data.place);
  const Tables tables{x, *mesh, data, index, values.links()};
  Lookup best = tables.with_whole_rows();
  for (size_t a = 0; a < mesh->axes().size(); ++a) {
    if (!(data.place[a] == Shard(axis)) || best.window) continue;
    Lookup parts = tables.with_parts(best, a);
    auto window = tables.with_window(best, a);
    Question question(x);
    question.about(data, x.src(0).shape()).about(index, x.shape()).about(uint64_t(mesh->id()));
    Decisions::Choice choice = values.decisions().ask(question.about(a).about(best.data).hash());
    choice.offer(tables.seconds(best));
    if (choice.offer(tables.seconds(parts))) best = std::move(parts);
    if (window && choice.offer(tables.seconds(*window))) best = std::move(*window);
  }
  data = values.moved(std::move(data), x.src(0).shape(), best.data);
  index = values.brought(x.src(1), *mesh, best.index);
  if (best.window) {
    const int along = axis_of(data, axis);
    data.local = window(data, axis, *best.window);
    index.local = index_into_window(index.local, *best.window, *mesh, along);
    return rebuilt(x, {data, index}, {UOp(), mesh, best.found});
  }
  if (parts_of(data, axis) == 1) return rebuilt(x, {data, index}, {UOp(), mesh, best.found});
  // No sum is of bools, and what 16-bit floats find is one term and zeros: exact.
  if (x.dtype() == DType::Bool) data.local = cast(data.local, DType::U8);
  UOp here = index_into_part(index.local, data, x.src(0).shape(), axis);
  LocalValue found{UOp::make(Op::Gather, data.local.dtype(), {data.local, here}, x->arg()), mesh,
                   best.found, current_origin()};
  if (is_float(x.dtype())) {
    UOp nothing = const_float(x.dtype(), -0.0, found.local.shape());
    found.local =
        where(held_elsewhere(index.local, data, x.src(0).shape(), axis), nothing, found.local);
  }
  Places left = best.result;
  for (size_t a = 0; a < left.size(); ++a) {
    const bool kept = best.found[a].is_partial() && best.result[a].is_replicate();
    if (kept && x.dtype() != DType::Bool) left[a] = best.found[a];
  }
  found = redistribute(std::move(found), x.shape(), *mesh, left);
  found.local = cast(found.local, x.dtype());
  return found;
}

namespace {

// The adjoint of a lookup by a window, of `data` that lies divided along what is written to. Nothing
// where to complete a sum of all rows sends less.
std::optional<LocalValue> added_by_window(const UOp& x, const Mesh& mesh, const LocalValue& data,
                                          LocalValues& values) {
  const ScatterArg arg = scatter_arg(*x);
  const int dim = int(arg.axis);
  const int axis = axis_of(data, dim);
  if (arg.op != ReduceOp::Sum || axis < 0 || !divides_alone(data.place, size_t(axis))) return {};
  const int64_t devices = mesh.axes()[size_t(axis)].size;
  const auto line = known_line(x.src(0), dim);
  const auto rows = line ? window_of_line(*line, arg.size, devices) : std::nullopt;
  if (!rows || devices == 1) return {};
  const DimSpan shape = x.src(0).shape();
  Places summed = data.place;
  summed[size_t(axis)] = Partial();
  const DType type = x.dtype(), wide = accumulator(type);
  LinkModel& links = values.links();
  if (seconds_of_window(wide, x.shape(), mesh, data.place, size_t(axis), *rows, links) >
      seconds_moved(type, x.shape(), mesh, summed, data.place, links))
    return {};
  LocalValue index = values.brought(x.src(0), mesh, data.place), terms = data;
  index.local = index_into_window(index.local, *rows, mesh, axis);
  terms.local = with_padding_filled(terms, shape, dim, const_int(type, 0));
  terms.local = UOp::make(Op::ScatterAdd, wide, {index.local, cast(terms.local, wide)},
                          Dims{arg.axis, rows->rows});
  terms.local = cast(window_added(terms, dim, *rows), type);
  return terms;
}

}  // namespace

LocalValue scatter_add(const UOp& x, LocalValues& values) {
  const ReduceOp op = scatter_op(x);
  const int axis = int(scatter_arg(*x).axis);
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  DimSpan global = x.src(0).shape();
  LocalValue index = settled(values.on(x.src(0), *mesh), global),
             data = settled(values.on(x.src(1), *mesh), global);
  if (auto added = added_by_window(x, *mesh, data, values)) return *added;
  const Places* table = values.table_of(x);
  Places wanted(mesh->axes().size()), placed = wanted;
  for (size_t a = 0; a < wanted.size(); ++a) {
    wanted[a] = data.place[a].is_shard() ? data.place[a] : index.place[a];
    placed[a] = wanted[a].is_shard() && wanted[a].dim == axis ? Partial(op) : wanted[a];
    // Where every device has all that is written, it takes what falls into its part of the table.
    const bool own = wanted[a].is_replicate() && table && a < table->size();
    if (own && (*table)[a] == Shard(axis)) placed[a] = Shard(axis);
  }
  index = values.brought(x.src(0), *mesh, wanted);
  data = values.brought(x.src(1), *mesh, wanted);
  index.local = with_padding_filled(index, global, axis, const_int(index.local.dtype(), 0));
  data.local = with_padding_filled(data, global, axis, identity_of(op, data.local.dtype()));
  LocalValue result{UOp(), mesh, placed, current_origin()};
  Dims arg(x->arg().begin(), x->arg().end());
  if (parts_of(result, axis) > 1) {
    index.local = index_into_part(index.local, result, x.shape(), axis);
    arg[1] = Sharding{*mesh, placed}.local_shape(x.shape())[size_t(axis)];
  }
  result.local = UOp::make(Op::ScatterAdd, x.dtype(), {index.local, data.local}, arg);
  return result;
}

}  // namespace tinyshard
