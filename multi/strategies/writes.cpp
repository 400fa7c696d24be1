#include "multi/strategies/writes.h"

#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "core/uop/scatter.h"
#include "multi/moves.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

UOp below_repeats(UOp x) {
  while (x.op() == Op::Expand) x = x.src(0);
  return x;
}

bool is_max_with_zero(const UOp& x) { return x.op() == Op::Max && is_const(x.src(1), 0); }

// Whether nobody reads the numbers of last entries, with zeros where there is none, but comparisons
// with 0 and what leads to this lookup.
bool are_only_looked_up(const UOp& last, const UOp& gather, const LocalValues& values) {
  std::vector<UOp> reached{last};
  for (size_t i = 0; i < reached.size(); ++i) {
    const std::vector<UOp> readers = values.readers_of(reached[i]);
    if (readers.empty()) return false;
    for (const UOp& user : readers) {
      const bool compares = user.op() == Op::CmpLt && is_const(user.src(0), 0);
      if (compares || (user == gather && !(user.src(0) == reached[i]))) continue;
      const bool leads = user.op() == Op::Expand || user.op() == Op::Pad ||
                         is_max_with_zero(user) ||
                         (user.op() == Op::Sub && is_const(user.src(1), 1));
      if (!leads) return false;
      if (std::ranges::find(reached, user) == reached.end()) reached.push_back(user);
    }
  }
  return true;
}

// The one op that reads x, after zeros were put around it and its shape changed; `read` is the value
// that it reads then. Null where there are several.
UOp only_reader(UOp x, const LocalValues& values, UOp* read) {
  do {
    *read = x;
    if (!values.has_one_reader(x)) return {};
    x = values.readers_of(x).front();
  } while (x.op() == Op::Pad || x.op() == Op::Reshape);
  return x;
}

// The lookup of what the entries say of which x is the scattered numbers, where what it finds is
// read only where there is an entry; else null.
UOp lookup_by(const UOp& x, const LocalValues& values) {
  if (!values.has_one_reader(x)) return {};
  const UOp last = values.readers_of(x).front();
  if (!is_max_with_zero(last)) return {};
  UOp gather;  // behind the numbers of places: last - 1, repeated and at least 0 or not
  std::vector<UOp> places{last};
  for (size_t i = 0; i < places.size() && !gather; ++i) {
    for (const UOp& user : values.readers_of(places[i])) {
      if (user.op() == Op::Gather) gather = user;
      if (user.op() == Op::Expand || user.op() == Op::Sub || is_max_with_zero(user))
        places.push_back(user);
    }
  }
  if (!gather || gather_sorting(*gather) != Sorting::None) return {};
  UOp entry = below_repeats(gather.src(1));
  if (is_max_with_zero(entry)) entry = below_repeats(entry.src(0));
  const bool before = entry.op() == Op::Sub && is_const(entry.src(1), 1);
  if (!before || !(below_repeats(entry.src(0)) == last)) return {};
  if (!are_only_looked_up(last, gather, values)) return {};
  UOp found;
  const UOp choice = only_reader(gather, values, &found);
  if (!choice || choice.op() != Op::Where || !(choice.src(1) == found)) return {};
  UOp condition = below_repeats(choice.src(0));
  if (condition.op() != Op::CmpLt || !is_const(condition.src(0), 0)) return {};
  condition = condition.src(1);
  while (condition.op() == Op::Expand || condition.op() == Op::Pad) condition = condition.src(0);
  return condition == last ? gather : UOp();
}

// An all-to-all of what each device has for all places that are divided along `axis`: for those that
// it owns it gets what each device has, in a dim of its own in front. `owned`: how the whole, of that
// shape, lies then.
UOp for_owners(const UOp& x, const Mesh& mesh, const Places& owned, size_t axis, DimSpan global) {
  Dims shape(x.shape().begin(), x.shape().end()), whole(global.begin(), global.end());
  shape.insert(shape.begin(), 1);
  whole.insert(whole.begin(), mesh.axes()[axis].size);
  Places to = owned;
  for (Placement& p : to) {
    if (p.is_shard()) ++p.dim;
  }
  Places from = to;
  from[axis] = Shard(0);
  return redistribute({reshape(x, shape), mesh, from, current_origin()}, whole, mesh, to).local;
}

Dims with_one_in_front(DimSpan shape) {
  Dims all{1};
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

// The axis that divides entries, where it alone does, and does so with what is written; -1: none.
// Along the others both lie alike, or the index is repeated.
int axis_of_entries(const LocalValue& index, const UOp& x, const Places& rows, const UOp& gather) {
  const int dim = int(scatter_arg(*x).axis);
  const int axis = axis_of(index, dim);
  for (int a = 0; a < int(rows.size()); ++a) {
    const Placement &p = index.place[size_t(a)], &q = rows[size_t(a)];
    const bool entries = p == Shard(dim) || q == Shard(dim);
    if (entries != (a == axis) || q.is_partial()) return -1;
    const bool repeats = p.is_replicate() && q.is_shard() &&
                         x.src(0).shape()[size_t(q.dim)] != gather.src(0).shape()[size_t(q.dim)];
    if (!(p == q) && !repeats) return -1;
  }
  return axis;
}

double seconds_for_owners(const UOp& x, const Mesh& mesh, const Places& owned, size_t axis,
                          size_t itemsize, LinkModel& links) {
  Places whole = owned;
  whole[axis] = Replicate;
  const auto devices = double(mesh.axes()[axis].size);
  const double bytes =
      double(product(Sharding{mesh, whole}.local_shape(x.shape()))) * double(itemsize);
  return links.seconds_of(CollectiveOp::AllToAll, bytes * (devices - 1) / devices, mesh, int(axis));
}

}  // namespace

std::optional<LocalValue> writers(const UOp& x, const Mesh& mesh, const LocalValue& index,
                                  LocalValues& values) {
  const ScatterArg arg = scatter_arg(*x);
  const auto dim = size_t(arg.axis);
  if (arg.op != ReduceOp::Max || !counts_from_one(x.src(1), dim)) return std::nullopt;
  const UOp gather = x->numel() > 0 ? lookup_by(x, values) : UOp();
  if (!gather || gather_axis(*gather) != arg.axis) return std::nullopt;
  const UOp& rows = gather.src(0);
  if (rows.shape()[dim] != x.src(0).shape()[dim]) return std::nullopt;
  const std::optional<Places> lying = values.will_lie(rows, mesh);
  const int along = lying ? axis_of_entries(index, x, *lying, gather) : -1;
  if (along < 0) return std::nullopt;
  const auto axis = size_t(along);
  if (values.split_by_user(x, mesh, axis) != Shard(int(dim))) return std::nullopt;

  // Else numbers are completed and all that is written is gathered, or all entries are.
  LinkModel& links = values.links();
  const DimSpan entries = x.src(0).shape();
  const auto gathered = [&](const UOp& v, const Places& place) {
    Places whole = place;
    whole[axis] = Replicate;
    return seconds_moved(v.dtype(), v.shape(), mesh, place, whole, links);
  };
  Places pending = index.place;
  pending[axis] = Partial(ReduceOp::Max);
  Question question(x);
  question.about(index, entries).about(*lying).about(rows.shape()).about(uint64_t(rows.dtype()));
  Decisions::Choice choice = values.decisions().ask(question.about(uint64_t(mesh.id())).hash());
  const double written = gathered(rows, *lying);
  choice.offer(written + seconds_moved(DType::I32, x.shape(), mesh, pending, index.place, links));
  choice.offer(written + gathered(x.src(0), index.place));
  if (!choice.offer(seconds_for_owners(x, mesh, index.place, axis, 1, links) +
                    seconds_for_owners(gather, mesh, *lying, axis, itemsize(rows.dtype()), links)))
    return std::nullopt;

  LocalValue places = values.brought(x.src(0), mesh, index.place), numbers = places;
  places.local = with_padding_filled(places, entries, int(dim), const_int(places.local.dtype(), 0));
  numbers.local = iota_along(places.local.shape(), dim, DType::I32);
  numbers.local = binary(Op::Add, numbers.local, const_like(numbers.local, 1));
  numbers.local = with_padding_filled(numbers, entries, int(dim), const_int(DType::I32, 0));
  UOp own = UOp::make(Op::ScatterAdd, DType::I32, {places.local, numbers.local},
                      Dims{arg.axis, arg.size, int64_t(ReduceOp::Max)});
  own = binary(Op::Max, own, const_like(own, 0));
  const UOp writes = cast(binary(Op::CmpLt, const_like(own, 0), own), DType::U8);
  const UOp all = cast(for_owners(writes, mesh, index.place, axis, x.shape()), DType::I32);
  UOp device = iota_along(all.shape(), 0, DType::I32);
  device = binary(Op::Add, device, const_like(device, 1));
  const UOp last = reduce(ReduceOp::Max, binary(Op::Mul, all, device), Dims{0});
  Dims shape(all.shape().begin() + 1, all.shape().end());
  const UOp winner = reshape(last, shape);
  values.set_writers(gather, {own, winner, axis, *lying});
  return LocalValue{winner, mesh, index.place, current_origin()};
}

std::optional<LocalValue> what_writers_say(const UOp& gather, LocalValues& values) {
  const LocalValues::Writers* known = values.writers_of(gather);
  if (!known) return std::nullopt;
  const UOp& rows = gather.src(0);
  const int64_t dim = gather_axis(*gather);
  const Mesh mesh = *values.meeting_place(gather->src());
  const LocalValue lying = values.brought(rows, mesh, known->place);
  Dims shape(lying.local.shape().begin(), lying.local.shape().end());
  shape[size_t(dim)] = known->own.shape()[size_t(dim)];
  const UOp entry = binary(Op::Sub, known->own, const_like(known->own, 1));
  const UOp said =
      UOp::make(Op::Gather, rows.dtype(), {lying.local, expand(entry, shape)}, Dims{dim});
  const UOp all = for_owners(said, mesh, known->place, known->axis, gather.shape());
  shape.assign(all.shape().begin() + 1, all.shape().end());
  UOp from = binary(Op::Sub, known->winner, const_like(known->winner, 1));
  from = expand(reshape(from, with_one_in_front(from.shape())), with_one_in_front(shape));
  const UOp chosen = UOp::make(Op::Gather, all.dtype(), {all, from}, Dims{0});
  return LocalValue{reshape(chosen, shape), mesh, known->place, current_origin()};
}

}  // namespace tinyshard
