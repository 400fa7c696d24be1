// Who writes to a place travels as one bit of each group of devices. Of nine places of an owner, of
// which a group would write to 0, 3 and 8:
//
//   1 0 0 1 0 0 0 0 1      in_bits       9 1        eight places a byte, the first one the lowest bit
//                          from_bits     1 0 0 1 0 0 0 0 1
#include "multi/strategies/writes.h"

#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"
#include "core/uop/scatter.h"
#include "multi/moves.h"
#include "multi/strategies/groups.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

using Places = std::vector<Placement>;

UOp below_repeats(UOp x) {
  while (x.op() == Op::Expand) x = x.src(0);
  return x;
}

bool is_max_with_zero(const UOp& x) { return x.op() == Op::Max && is_const(x.src(1), 0); }

// Returns whether the numbers of last entries (0: no entry) are read by nothing but comparisons
// with 0 and the ops that lead to this lookup.
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

// Packs a mask, 0 or 1 in U8, with `parts` parts along `dim`: eight places of a part in a byte.
UOp in_bits(const UOp& mask, int dim, int64_t parts) {
  const auto d = size_t(dim);
  Dims shape(mask.shape().begin(), mask.shape().end());
  const int64_t part = shape[d] / parts, bytes = (part + 7) / 8;
  shape[d] = part;
  shape.insert(shape.begin() + dim, parts);
  Dims behind(2 * shape.size());
  behind[2 * d + 3] = 8 * bytes - part;
  UOp x = pad(reshape(mask, shape), behind);
  shape[d] = parts * bytes, shape[d + 1] = 8;
  x = binary(Op::Shl, reshape(x, shape), iota_along(shape, d + 1, DType::U8));
  x = reduce(ReduceOp::Sum, x, Dims{dim + 1});
  shape.erase(shape.begin() + dim + 1);
  return reshape(x, shape);
}

// The way back for one part, of `part` places along `dim`.
UOp from_bits(const UOp& bits, int dim, int64_t part) {
  const auto d = size_t(dim);
  Dims shape(bits.shape().begin(), bits.shape().end());
  shape.insert(shape.begin() + dim + 1, 1);
  UOp x = reshape(bits, shape);
  shape[d + 1] = 8;
  x = binary(Op::Shr, expand(x, shape), iota_along(shape, d + 1, DType::U8));
  x = binary(Op::Mod, x, const_like(x, 2));
  shape.erase(shape.begin() + dim + 1);
  shape[d] *= 8;
  Dims ends;
  for (int64_t size : shape) ends.insert(ends.end(), {0, size});
  ends[2 * d + 1] = part;
  return shrink(reshape(x, shape), ends);
}

Dims with_one_in_front(DimSpan shape) {
  Dims all{1};
  all.insert(all.end(), shape.begin(), shape.end());
  return all;
}

// Returns the mesh axis that divides the entries of the index and of the written rows alike; -1 if
// there is none, or more than one. Along each other axis both must lie alike, unless the index is
// repeated there.
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
  int64_t best = 0;
  for (int64_t size : Groups::sizes(mesh.axes()[axis].size)) {
    const Groups groups(mesh, axis, size);
    const auto met = [&](const UOp& v, const Places& place) {
      const int64_t elements = product(Sharding{mesh, place}.local_shape(v.shape()));
      return groups.seconds_of_entries(double(elements) * double(itemsize(v.dtype())), links);
    };
    const auto sent = [&](const UOp& v, const Places& place, size_t bits) {  // of an element
      Dims made = Sharding{mesh, place}.local_shape(v.shape());
      made[dim] = groups.made(arg.size);
      return groups.seconds_of_made(CollectiveOp::AllToAll,
                                    double(product(made)) * double(bits) / 8, links);
    };
    if (choice.offer(met(repeated(x.src(0)), index.place) + met(rows, *lying) +
                     sent(x, index.place, 1) + sent(gather, *lying, 8 * itemsize(rows.dtype()))))
      best = size;
  }
  if (best == 0) return std::nullopt;

  const Groups groups(mesh, axis, best);
  const UOp nowhere = const_int(x.src(0).dtype(), -1);
  const UOp here = groups.index_into_made(
      groups.entries(x.src(0), index.place, int(dim), &nowhere, values), arg.size);
  UOp numbers = iota_along(here.shape(), dim, DType::I32);
  numbers = binary(Op::Add, numbers, const_like(numbers, 1));
  UOp own = UOp::make(Op::ScatterAdd, DType::I32, {here, numbers},
                      Dims{arg.axis, groups.made(arg.size), int64_t(ReduceOp::Max)});
  own = binary(Op::Max, own, const_like(own, 0));
  const UOp writes = cast(binary(Op::CmpLt, const_like(own, 0), own), DType::U8);
  const UOp bits = in_bits(writes, int(dim), groups.count());
  const int64_t part = groups.made(arg.size) / groups.count();
  const UOp all =
      cast(from_bits(groups.for_owners(bits, index.place, x.shape(), int(dim)), int(dim) + 1, part),
           DType::I32);
  UOp group = iota_along(all.shape(), 0, DType::I32);
  group = binary(Op::Add, group, const_like(group, 1));
  const UOp last = reduce(ReduceOp::Max, binary(Op::Mul, all, group), Dims{0});
  const Dims shape(all.shape().begin() + 1, all.shape().end());
  const UOp winner = reshape(last, shape);
  values.set_writers(gather, {own, winner, axis, best, *lying});
  return LocalValue{groups.back(winner), mesh, index.place, current_origin()};
}

std::optional<LocalValue> what_writers_say(const UOp& gather, LocalValues& values) {
  const LocalValues::Writers* known = values.writers_of(gather);
  if (!known) return std::nullopt;
  const UOp& rows = gather.src(0);
  const int64_t dim = gather_axis(*gather);
  const Mesh mesh = *values.meeting_place(gather->src());
  const Groups groups(mesh, known->axis, known->group);
  const UOp lying = groups.entries(rows, known->place, int(dim), nullptr, values);
  Dims shape(lying.shape().begin(), lying.shape().end());
  shape[size_t(dim)] = known->own.shape()[size_t(dim)];
  const UOp entry = binary(Op::Sub, known->own, const_like(known->own, 1));
  const UOp said = UOp::make(Op::Gather, rows.dtype(), {lying, expand(entry, shape)}, Dims{dim});
  const UOp all = groups.for_owners(said, known->place, gather.shape(), int(dim));
  shape.assign(all.shape().begin() + 1, all.shape().end());
  UOp from = binary(Op::Sub, known->winner, const_like(known->winner, 1));
  from = expand(reshape(from, with_one_in_front(from.shape())), with_one_in_front(shape));
  const UOp chosen = UOp::make(Op::Gather, all.dtype(), {all, from}, Dims{0});
  return LocalValue{groups.back(reshape(chosen, shape)), mesh, known->place, current_origin()};
}

}  // namespace tinyshard
