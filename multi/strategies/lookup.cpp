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
// table may still be gathered: a few rows that many places name. Rows that are only added up are
// added up first, and the sum over devices is that of the sums.
//
// A table of which a reshape joined dims, as x[{rows, labels}] does, is looked up as it lay before
// (joined.h), and so is the adjoint: joined, it would have to move.
//
// Of a table in a file that nothing else reads, the rows that are looked up are read alone.
//
// Where the index is known (known_index.h) and the result is as long as to be divided itself, each
// device receives the rows beside its part that its part of the result names, and the adjoint sends
// terms of these rows back.
#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "core/uop/scatter.h"
#include "multi/moves.h"
#include "multi/strategies/groups.h"
#include "multi/strategies/held.h"
#include "multi/strategies/joined.h"
#include "multi/strategies/known_index.h"
#include "multi/strategies/strategies.h"
#include "multi/strategies/writes.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

// Where the operands of a Gather are wanted, and how its result lies then; `result` is where it is
// wanted after that.
struct Lookup {
  Places data, index, found, result;
  std::optional<Window> window = {};  // of the table, where that stays divided as the result is
  bool apart = false;  // `data` is of the table as it was before a reshape joined dims
  // Set if rows are added up before the sum over devices is completed: that sum, the mesh axis over
  // which it is pending, and the placement that it is completed to.
  std::optional<LocalValues::SumOf> sum = {};
  size_t summed_axis = 0;
  Placement summed = {};
};

// The time to move the rows of a window along an axis. `place`: of the value of that shape.
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
  DType type;  // in which what is found travels

  int dim() const { return int(gather_axis(*x)); }
  DimSpan shape() const { return x.src(0).shape(); }
  const UOp& places() const { return repeated(x.src(1)); }

  // Returns the way that looks up whole rows. Along each axis the result lies as the index does or,
  // if that is whole there, as the table does along a dim that both have.
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

  // Returns the way l, but with the table in parts along `axis`.
  Lookup with_parts(Lookup l, size_t axis) const {
    l.data[axis] = Shard(dim());
    l.index[axis] = Replicate;
    l.found[axis] = Partial();
    return l;
  }

  // That, with the rows added up where this is all that is done with them.
  std::optional<Lookup> with_sums(Lookup parts, size_t axis, const LocalValues& values) const {
    if (!parts.result[axis].is_shard() || parts.sum || x.dtype() == DType::Bool) return {};
    parts.sum = values.only_sum_of(x, parts.result[axis].dim, mesh.axes()[axis].size);
    if (!parts.sum) return std::nullopt;
    parts.summed_axis = axis;
    parts.summed = parts.sum->dim < 0 ? Placement(Partial()) : Shard(parts.sum->dim);
    parts.result[axis] = Partial();
    return parts;
  }

  // Returns the way with the table as it was before its dims were joined: divided along each axis
  // as it lay then, else as the index is.
  std::optional<Lookup> with_dims_apart() const {
    if (!data.apart) return std::nullopt;
    Lookup l;
    l.apart = true;
    l.data = data.apart->value.place;
    l.index.resize(mesh.axes().size());
    l.found = l.result = l.index;
    const DimSpan counts_as = x.shape();
    auto beside = [&](int d) {  // a dim of the table and of the result
      const auto [first, last] = dims_of(*data.apart, d);
      return d != dim() && last - first == 1 && shape()[size_t(d)] == counts_as[size_t(d)];
    };
    bool parts = false;
    for (size_t a = 0; a < l.data.size(); ++a) {
      const Placement wish = index.place[a];
      if (l.data[a].is_shard()) {
        const int d = joined_dim(l.data[a].dim);
        if (d == dim()) {
          parts = true;
          l.found[a] = Partial();
          if (wish.is_shard()) l.result[a] = wish;
        } else if (beside(d)) {
          l.index[a] = l.found[a] = l.result[a] = Shard(d);
        } else {
          return std::nullopt;
        }
      } else if (wish.is_shard() && (wish.dim == dim() || beside(wish.dim))) {
        l.index[a] = l.found[a] = l.result[a] = wish;
        if (wish.dim != dim()) l.data[a] = Shard(dims_of(*data.apart, wish.dim).first);
      }
    }
    return parts ? std::optional(l) : std::nullopt;
  }
  int joined_dim(int fine) const {
    int d = 0;
    while (dims_of(*data.apart, d).second <= fine) ++d;
    return d;
  }
  // The least time that joining the dims takes.
  double seconds_joined() const {
    const LocalValue& v = data.apart->value;
    double seconds = 0;
    for (size_t a = 0; a < v.place.size(); ++a) {
      if (!v.place[a].is_shard() || joined_dim(v.place[a].dim) != dim()) continue;
      const auto devices = double(mesh.axes()[a].size);
      const double bytes = double(v.local->numel()) * double(itemsize(v.local.dtype()));
      seconds +=
          links.seconds_of(CollectiveOp::AllToAll, bytes * (devices - 1) / devices, mesh, int(a));
    }
    return seconds;
  }

  // Returns the way l, but with the result in parts along `axis` as the table is, and rows moved
  // between them.
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
    const double table =
        l.apart ? seconds_moved(data.local.dtype(), data.apart->shape, mesh,
                                data.apart->value.place, l.data, links)
                : seconds_moved(data.local.dtype(), shape(), mesh, data.place, l.data, links);
    double sums = 0;
    if (l.sum) {
      Places from_sum(l.data.size()), to_sum(l.data.size());
      from_sum[l.summed_axis] = Partial(), to_sum[l.summed_axis] = l.summed;
      const UOp& sum = l.sum->sum;
      sums = seconds_moved(sum.dtype(), sum.shape(), mesh, from_sum, to_sum, links);
      // Masks and weights are divided as the index is, and have to be whole.
      const auto devices = double(mesh.axes()[l.summed_axis].size);
      for (const UOp& s : l.sum->factors) {
        const double bytes = double(s->numel()) * double(itemsize(s.dtype()));
        sums += links.seconds_of(CollectiveOp::AllGather, bytes * (devices - 1) / devices, mesh,
                                 int(l.summed_axis));
      }
    }
    return window + table + sums +
           seconds_moved(index.local.dtype(), places().shape(), mesh, from, to, links) +
           seconds_moved(type, x.shape(), mesh, l.found, l.result, links);
  }
};

// The terms of the result that devices find in their parts of the table: each looks up `here` in its
// own, and `elsewhere` tells which places others hold.
LocalValue found_in_parts(const UOp& x, UOp table, const UOp& here, const UOp& elsewhere,
                          const Mesh& mesh, const Lookup& lookup, DType type) {
  // No sum is of bools, and what floats find is one term and zeros: exact in the type that they are
  // read in.
  if (x.dtype() == DType::Bool) table = cast(table, DType::U8);
  LocalValue found{UOp::make(Op::Gather, table.dtype(), {table, here}, Dims{gather_axis(*x)}), mesh,
                   lookup.found, current_origin()};
  if (is_float(x.dtype())) {
    UOp nothing = const_float(x.dtype(), -0.0, found.local.shape());
    found.local = cast(where(elsewhere, nothing, found.local), type);
  }
  Places left = lookup.result;
  for (size_t a = 0; a < left.size(); ++a) {
    const bool kept = lookup.found[a].is_partial() && lookup.result[a].is_replicate();
    if (kept && x.dtype() != DType::Bool) left[a] = lookup.found[a];
  }
  found = redistribute(std::move(found), x.shape(), mesh, left);
  found.local = cast(found.local, x.dtype());
  return found;
}

LocalValue found_apart(const UOp& x, const LocalValue& data, const Lookup& lookup,
                       LocalValues& values) {
  const Apart& apart = *data.apart;
  const Mesh& mesh = *data.mesh;
  const auto [first, last] = dims_of(apart, int(gather_axis(*x)));
  const LocalValue table = values.moved(apart.value, apart.shape, lookup.data);
  const UOp index = values.brought(x.src(1), mesh, lookup.index).local;
  return found_in_parts(x, in_lines(table.local, apart),
                        index_into_part(index, table, apart.shape, Joined{first, last}),
                        held_elsewhere(index, table, apart.shape, Joined{first, last}), mesh,
                        lookup, values.read_as(x));
}

int64_t bytes_of(const UOp& x) { return x->numel() * int64_t(itemsize(x.dtype())); }

// A lookup of few places in a table that lies in a file, by the processor that has the file mapped:
// the pages come that hold what is found, and nothing else goes to the devices. Nothing where others
// read the table as well, which brings all of it.
std::optional<LocalValue> found_in_file(const UOp& x, const Mesh& mesh, LocalValues& values) {
  constexpr int64_t kFew = 4;  // a page comes whole, whatever is read of it
  UOp table = x.src(0), brought = table;
  std::vector<DType> types;  // that what is found becomes, the last one first
  while (table.op() == Op::Redistribute || table.op() == Op::Cast) {
    if (table.dtype() != table.src(0).dtype()) types.push_back(table.dtype());
    brought = table;
    table = table.src(0);
  }
  if (table.op() != Op::Buffer || kFew * bytes_of(x) > bytes_of(table)) return {};
  const LocalValue& file = values.lying(table);
  if (!is_file(*file.mesh) || *file.mesh == mesh || !values.is_only_a_table(brought)) return {};
  const UOp& places = repeated(x.src(1));
  LocalValue index = redistribute(values.of(places), places.shape(), *file.mesh, {});
  index.local = expand(index.local, x.shape());
  const Places wanted = settled(values.on(x.src(1), mesh), x.shape()).place;
  LocalValue found{
      UOp::make(Op::Gather, table.dtype(), {file.local, index.local}, Dims{gather_axis(*x)}),
      file.mesh,
      {},
      current_origin()};
  for (size_t i = types.size(); i-- > 0;) found.local = cast(found.local, types[i]);
  return redistribute(std::move(found), x.shape(), mesh, wanted);
}

}  // namespace

LocalValue gather(const UOp& x, LocalValues& values) {
  const int axis = int(gather_axis(*x));
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  if (const LocalValue* known = values.sorted_by(x)) {
    values.set_table(x, settled_in_both_forms(values.on(x.src(0), *mesh), x.src(0).shape()));
    return *known;
  }
  if (auto said = what_writers_say(x, values)) return *said;
  if (auto found = found_in_file(x, *mesh, values)) return *found;
  LocalValue data = settled_in_both_forms(values.on(x.src(0), *mesh), x.src(0).shape());
  LocalValue index = settled(values.on(x.src(1), *mesh), x.shape());
  values.set_table(x, data);
  const Tables tables{x, *mesh, data, index, values.links(), values.read_as(x)};
  Lookup best = tables.with_whole_rows();
  for (size_t a = 0; a < mesh->axes().size(); ++a) {
    if (!(data.place[a] == Shard(axis)) || best.window) continue;
    Lookup parts = tables.with_parts(best, a);
    auto window = tables.with_window(best, a);
    Question question(x);
    question.about(data, x.src(0).shape()).about(index, x.shape()).about(uint64_t(mesh->id()));
    Decisions::Choice choice = values.decisions().ask(question.about(a).about(best.data).hash());
    choice.offer(tables.seconds(best));
    auto sums = tables.with_sums(parts, a, values);
    if (choice.offer(tables.seconds(parts))) best = std::move(parts);
    if (window && choice.offer(tables.seconds(*window))) best = std::move(*window);
    if (sums && choice.offer(tables.seconds(*sums))) best = std::move(*sums);
  }
  if (auto apart = tables.with_dims_apart()) {
    Question question(x);
    question.about(data.apart->value, data.apart->shape).about(index, x.shape());
    Decisions::Choice choice =
        values.decisions().ask(question.about(uint64_t(mesh->id())).about(best.data).hash());
    choice.offer(tables.seconds(best) + tables.seconds_joined());
    if (choice.offer(tables.seconds(*apart))) best = std::move(*apart);
  }
  if (best.apart) return found_apart(x, data, best, values);
  if (best.sum) values.complete_at(*best.sum, best.summed_axis, best.summed);
  // A result that is wanted whole stays pending until it was weighed and added up.
  for (size_t a = 0; a < best.found.size(); ++a) {
    if (best.sum || !best.found[a].is_partial() || !best.result[a].is_replicate()) continue;
    auto sum = values.only_sum_of(x, 0, 1);
    if (sum && sum->weighed) values.complete_at(*sum, a, Partial());
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
  return found_in_parts(x, data.local, index_into_part(index.local, data, x.src(0).shape(), axis),
                        held_elsewhere(index.local, data, x.src(0).shape(), axis), *mesh, best,
                        values.read_as(x));
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
  terms.local = cast(window_added(terms, dim, *rows, rows->step), type);
  terms.apart = nullptr;
  return terms;
}

// The adjoint of a lookup in a table as it was before a reshape joined dims of it, which is made so as
// well. Nothing where the table was not, or where to bring to all devices what is written sends
// more than what they would write for each other.
std::optional<LocalValue> added_apart(const UOp& x, const Mesh& mesh, const LocalValue& index,
                                      const LocalValue& data, LocalValues& values) {
  const LocalValues::Table* table = values.table_of(x);
  if (!table || !table->apart || !(*table->apart->value.mesh == mesh)) return {};
  const Apart& apart = *table->apart;
  const ReduceOp op = scatter_op(x);
  const int axis = int(scatter_arg(*x).axis);
  const auto [first, last] = dims_of(apart, axis);
  auto in_line = [&](const Placement& p) { return p.is_shard() && p.dim >= first && p.dim < last; };
  Places wanted(mesh.axes().size()), placed = wanted, written = wanted;
  for (size_t a = 0; a < wanted.size(); ++a) {
    if (in_line(apart.value.place[a])) {
      placed[a] = apart.value.place[a];
      if (data.place[a].is_shard()) written[a] = Partial(op);
      continue;
    }
    wanted[a] = data.place[a].is_shard() ? data.place[a] : index.place[a];
    if (!wanted[a].is_shard()) continue;
    const auto [begin, end] = dims_of(apart, wanted[a].dim);
    if (wanted[a].dim != axis && end - begin != 1) return {};
    placed[a] = wanted[a].dim == axis ? Partial(op) : Shard(begin);
  }
  if (std::ranges::none_of(placed, in_line)) return {};
  LinkModel& links = values.links();
  const DType type = x.dtype();
  if (std::ranges::any_of(written, &Placement::is_partial) &&
      seconds_moved(type, x.src(1).shape(), mesh, data.place, wanted, links) >
          seconds_moved(type, apart.shape, mesh, written, placed, links))
    return {};
  const DimSpan global = x.src(0).shape();
  LocalValue places = values.brought(x.src(0), mesh, wanted),
             terms = values.brought(x.src(1), mesh, wanted);
  places.local = with_padding_filled(places, global, axis, const_int(places.local.dtype(), 0));
  terms.local = with_padding_filled(terms, global, axis, identity_of(op, type));
  LocalValue result{UOp(), mesh, placed, current_origin()};
  const Dims part = Sharding{mesh, placed}.local_shape(apart.shape);
  Dims arg(x->arg().begin(), x->arg().end());
  arg[1] = product(DimSpan(part).subspan(size_t(first), size_t(last - first)));
  const UOp here = index_into_part(places.local, result, apart.shape, Joined{first, last});
  result.local = reshape(UOp::make(Op::ScatterAdd, type, {here, terms.local}, arg), part);
  return joined_again(std::move(result), apart.shape, apart.counts, x.shape());
}

// The time in which an operand is brought there; 0 where it was before.
double seconds_brought(const UOp& x, const Mesh& mesh, const Places& wanted, LocalValues& values) {
  const UOp& one = repeated(x);
  const LocalValue v = values.on(one, mesh);
  Places there = wanted;
  for (Placement& p : there) {
    if (p.is_shard() && one.shape()[size_t(p.dim)] != x.shape()[size_t(p.dim)]) p = Replicate;
  }
  if (values.was_moved(v, there)) return 0;
  return seconds_moved(one.dtype(), one.shape(), mesh, v.place, there, values.links());
}

// How many neighbours along an axis, over which entries are divided, bring their entries together: all
// of the axis, each for its part of the result, or a group (groups.h); 0: what devices make of their
// own is a pending reduction. To bring many together is less where entries are few beside the places.
// A result that is wanted whole is made so on each device or is pending; so are sums that may be
// added to others first (multi/sparse_sums.h).
int64_t devices_that_meet(const UOp& x, const Mesh& mesh, size_t axis, const Places& wanted,
                          const Places& placed, const Placement& completed_as,
                          LocalValues& values) {
  const int64_t devices = mesh.axes()[axis].size;
  const ScatterArg arg = scatter_arg(*x);
  Places together = wanted, completed = placed;
  together[axis] = Replicate, completed[axis] = completed_as;
  const auto divides = [&](const Placement& p) { return p == Shard(int(arg.axis)); };
  const bool in_groups = divides(completed_as) && std::ranges::count_if(wanted, divides) == 1 &&
                         std::ranges::none_of(placed, divides);
  const std::vector<UOp> readers = values.readers_of(x.src(0));
  const auto sharing = double(
      std::ranges::count_if(readers, [](const UOp& user) { return user.op() == Op::ScatterAdd; }));
  LinkModel& links = values.links();
  auto group_seconds = [&](int64_t size) {
    const Groups groups(mesh, axis, size);
    double seconds = 0;
    for (const UOp& s : x->src()) {  // scatters that share an index share what it takes
      const UOp& one = repeated(s);
      if (is_const(one)) continue;
      Places lying = wanted;
      for (Placement& p : lying) {
        if (p.is_shard() && one.shape()[size_t(p.dim)] != s.shape()[size_t(p.dim)]) p = Replicate;
      }
      if (lying[axis].is_replicate()) continue;
      const double bytes = double(product(Sharding{mesh, lying}.local_shape(one.shape()))) *
                           double(itemsize(before_widening(one).dtype()));
      seconds +=
          groups.seconds_of_entries(bytes, links) / (s == x.src(0) ? std::max(sharing, 1.0) : 1);
    }
    Dims made = Sharding{mesh, placed}.local_shape(x.shape());
    made[size_t(arg.axis)] = groups.made(arg.size);
    const double bytes = double(product(made)) * double(itemsize(x.dtype()));
    return seconds +
           groups.seconds_of_made(Groups::combining(x.dtype(), scatter_op(x)), bytes, links);
  };
  Question question(x);
  question.about(wanted).about(completed).about(x.src(0).shape()).about(uint64_t(sharing));
  Decisions::Choice choice =
      values.decisions().ask(question.about(uint64_t(mesh.id())).about(axis).hash());
  int64_t best = 0;
  const double brought = seconds_brought(x.src(0), mesh, wanted, values) +
                         seconds_brought(x.src(1), mesh, wanted, values);
  choice.offer(brought +
               seconds_moved(x.dtype(), x.shape(), mesh, placed, completed, values.links()));
  if (choice.offer(seconds_brought(x.src(0), mesh, together, values) +
                   seconds_brought(x.src(1), mesh, together, values)))
    best = devices;
  for (int64_t size : Groups::sizes(devices)) {
    // A group of one device receives no entries, but its terms may travel by the other collective.
    const bool other =
        size > 1 || Groups::combining(x.dtype(), scatter_op(x)) == CollectiveOp::AllToAll;
    if (in_groups && other && choice.offer(brought + group_seconds(size))) best = size;
  }
  return best;
}

// Scatters by groups along an axis. `wanted`: how the entries lie before; `placed`: how the result
// is to lie along the other axes.
LocalValue scattered_in_groups(const UOp& x, const Groups& groups, const Places& wanted,
                               const Places& placed, LocalValues& values) {
  const ScatterArg arg = scatter_arg(*x);
  const int dim = int(arg.axis);
  const UOp nowhere = const_int(x.src(0).dtype(), -1);
  const UOp index =
      groups.index_into_made(groups.entries(x.src(0), wanted, dim, &nowhere, values), arg.size);
  const UOp terms = groups.entries(x.src(1), wanted, dim, nullptr, values);
  Dims made(x->arg().begin(), x->arg().end());
  made[1] = groups.made(arg.size);
  return groups.combined(UOp::make(Op::ScatterAdd, x.dtype(), {index, terms}, made), scatter_op(x),
                         placed, x.shape(), dim);
}

// Returns the placement to which the result is completed along an axis that divides the entries.
// Nothing for a sum that may stay pending.
std::optional<Placement> scattered_result(const UOp& x, const Mesh& mesh, size_t axis,
                                          const Places& placed, const LocalValues& values) {
  const Placement parts = Shard(int(scatter_arg(*x).axis));
  const bool divided = std::ranges::find(placed, parts) != placed.end();
  if (!divided && values.split_by_user(x, mesh, axis) == parts) return parts;
  return scatter_op(x) == ReduceOp::Sum ? std::nullopt : std::optional(Placement(Replicate));
}

}  // namespace

LocalValue scatter_add(const UOp& x, LocalValues& values) {
  const ReduceOp op = scatter_op(x);
  const int axis = int(scatter_arg(*x).axis);
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  if (auto back = scattered_by_order(x, values)) return *back;
  DimSpan global = x.src(0).shape();
  LocalValue index = settled(values.on(x.src(0), *mesh), global),
             data = settled(values.on(x.src(1), *mesh), global);
  if (auto numbers = writers(x, *mesh, index, values)) return *numbers;
  if (auto added = added_by_window(x, *mesh, data, values)) return *added;
  if (auto added = added_apart(x, *mesh, index, data, values)) return *added;
  const LocalValues::Table* known = values.table_of(x);
  const Places* table = known ? &known->place : nullptr;
  Places wanted(mesh->axes().size()), placed = wanted;
  for (size_t a = 0; a < wanted.size(); ++a) {
    wanted[a] = data.place[a].is_shard() ? data.place[a] : index.place[a];
    placed[a] = wanted[a].is_shard() && wanted[a].dim == axis ? Partial(op) : wanted[a];
  }
  std::optional<size_t> as_table;  // a table's gradient that is asked for lies as the table does
  for (size_t a = 0; a < wanted.size(); ++a) {
    auto to = placed[a].is_partial() ? scattered_result(x, *mesh, a, placed, values) : std::nullopt;
    const bool in_parts = placed[a].is_partial() && !to && table && a < table->size() &&
                          (*table)[a] == Shard(axis) && !as_table &&
                          std::ranges::find(placed, Shard(axis)) == placed.end() &&
                          values.is_asked_for(x);
    if (in_parts) as_table = a, to = Shard(axis);
    const int64_t meet = to ? devices_that_meet(x, *mesh, a, wanted, placed, *to, values) : 0;
    if (meet > 0 && meet < mesh->axes()[a].size)
      return scattered_in_groups(x, Groups(*mesh, a, meet), wanted, placed, values);
    if (meet > 0) wanted[a] = Replicate, placed[a] = *to;
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
  if (!as_table) return result;
  placed[*as_table] = Shard(axis);
  return redistribute(std::move(result), x.shape(), *mesh, placed);
}

}  // namespace tinyshard
