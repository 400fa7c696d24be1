// Products: along each mesh axis the way that takes least time.
//
// A Dot of a [batch, m, k] and b [batch, k, n] divides along an axis by one of these, or not at all:
//
//   batch, rows     a lies so, b whole (or alike); so does the result
//   columns         b lies so, a whole
//   inner           both lie so; each device has one term of the result, which is pending
//
// The cheapest way wins (ways.h):
//
//   a f32[4096, 1024], b f32[1024, 1024], both divided by rows over 8 devices: gathering b sends
//   3.5 MiB, dividing by the inner dim (an all-to-all of a, then a sum) 1.75 + 28, dividing by
//   columns (all of a, an all-to-all of b) 14 + 0.4: rows.
//
// Over several axes the choices are looked at together, as one changes the sizes of the others. An
// operand whose dims a reshape joined is taken apart again (joined.h): tokens [batch, sequence]
// stay divided by sequence.
#include <algorithm>

#include "core/base/error.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"
#include "multi/strategies/joined.h"
#include "multi/strategies/strategies.h"
#include "multi/strategies/ways.h"

namespace tinyshard {
namespace {

// The dims of both operands: [batch.., rows.., inner..] and [batch.., inner.., columns..].
struct Layout {
  size_t batch, rows, inner, columns;
};

bool lies(const LocalValue& v, size_t axis, size_t dim) { return v.place[axis] == Shard(int(dim)); }

// An operand of a product. A reshape may have joined its dims, or those of the other operand:
// `shape` has the finer dims.
struct Operand {
  LocalValue value;
  Dims shape;
  std::vector<size_t> counts;  // dims of `shape` that make each dim of the source
};

// Returns the ways along an axis. Of ways that cost the same the first is taken.
std::vector<Way> ways_along(const Mesh& mesh, size_t axis, const Layout& dims, const Operand& a,
                            const Operand& b) {
  const auto& [batch, rows, inner, columns] = dims;
  std::vector<Way> ways;
  auto add = [&](bool there, int64_t size, const Way& way) {
    if (there || size >= mesh.axes()[axis].size) ways.push_back(way);
  };
  auto dim = [](size_t i) { return Shard(int(i)); };
  const LocalValue &va = a.value, &vb = b.value;
  if (va.place[axis].is_replicate() && vb.place[axis].is_replicate()) return {{}};
  for (size_t i = 0; i < batch; ++i)
    add(lies(va, axis, i) || lies(vb, axis, i), a.shape[i], {dim(i), dim(i), dim(i)});
  for (size_t d = batch; d < batch + rows; ++d)
    add(lies(va, axis, d), a.shape[d], {dim(d), Replicate, dim(d)});
  for (size_t i = 0; i < columns; ++i) {
    const size_t d = batch + inner + i;
    add(lies(vb, axis, d), b.shape[d], {Replicate, dim(d), dim(batch + rows + i)});
  }
  for (size_t i = 0; i < inner; ++i) {
    const size_t da = batch + rows + i, db = batch + i;
    add(lies(va, axis, da) || lies(vb, axis, db), b.shape[db], {dim(da), dim(db), Partial()});
  }
  ways.push_back({});
  return ways;
}

Operand operand(const UOp& x, const LocalValues& values, const Mesh& mesh, bool apart) {
  const LocalValue& v = values.of(x);
  if (apart && v.apart && v.mesh && *v.mesh == mesh)
    return {v.apart->value, v.apart->shape, v.apart->counts};
  return {values.on(x, mesh), Dims(x.shape().begin(), x.shape().end()),
          std::vector<size_t>(x.shape().size(), 1)};
}

// Returns whether x is a parameter that stays where it lies, perhaps in another type or shape.
bool stays(UOp x) {
  for (;;) {
    x = under_views(x);
    if (x.op() == Op::Buffer && x->payload)
      return static_cast<const Placed*>(x->payload.get())->stays;
    if (x.op() != Op::Cast && x.op() != Op::Assign && x.op() != Op::Detach &&
        x.op() != Op::Contiguous && x.op() != Op::ContiguousBackward)
      return false;
    x = x.src(0);
  }
}

DimSpan group(const Operand& o, size_t dim) {
  size_t first = 0;
  for (size_t i = 0; i < dim; ++i) first += o.counts[i];
  return DimSpan(o.shape).subspan(first, o.counts[dim]);
}

// Returns whether each divided dim of v is a dim of `to`, too, and divides as before.
bool stays_divided(const LocalValue& v, DimSpan from, DimSpan to) {
  return std::ranges::all_of(v.place, [&](const Placement& p) {
    return !p.is_shard() || reshaped_dim(from, to, p.dim, parts_of(v, p.dim)) >= 0;
  });
}

// Gives dim `to` of `target` the finer dims of dim `from` of the other; false where both are fine
// and differ, or where target would have to be gathered for that.
bool refine(Operand& target, size_t to, const Operand& other, size_t from) {
  DimSpan mine = group(target, to), theirs = group(other, from);
  if (theirs.size() == 1 || std::ranges::equal(mine, theirs)) return true;
  if (mine.size() != 1) return false;
  Dims shape = target.shape;
  const int64_t at = mine.data() - target.shape.data();
  shape.erase(shape.begin() + at);
  shape.insert(shape.begin() + at, theirs.begin(), theirs.end());
  if (!stays_divided(target.value, target.shape, shape)) return false;
  target.value = reshaped(std::move(target.value), target.shape, shape);
  target.shape = std::move(shape);
  target.counts[to] = theirs.size();
  return true;
}

bool refine_each_other(Operand& a, Operand& b, size_t batch) {
  for (size_t i = 0; i < batch; ++i) {
    if (!refine(a, i, b, i) || !refine(b, i, a, i)) return false;
  }
  return refine(a, batch + 1, b, batch) && refine(b, batch, a, batch + 1);
}

// Returns the operand with zeros in the padding of its dims [first, first + count).
UOp filled(const Operand& o, size_t first, size_t count) {
  LocalValue v = o.value;
  for (size_t i = first; i < first + count; ++i)
    v.local = with_padding_filled(v, o.shape, int(i), const_int(v.local.dtype(), 0));
  return v.local;
}

// A product with a region, which passes after sharding made: it is planned again where it is timed
// apart from its graph, on one device, whose part of everything is the whole.
LocalValue dot_with_region(const UOp& x, const Mesh& mesh, const LocalValues& values) {
  check_internal(mesh.size() == 1, "a product with a region is planned for one device");
  std::vector<LocalValue> operands;
  for (const UOp& s : x->src()) operands.push_back(values.on(s, mesh));
  LocalValue like;
  like.mesh = mesh;
  like.place.assign(mesh.axes().size(), Replicate);
  return rebuilt(x, operands, like);
}

}  // namespace

LocalValue dot(const UOp& x, LocalValues& values) {
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  if (region_of(x)) return dot_with_region(x, *mesh, values);
  const auto batch_dims = size_t(dot_batch(*x));
  Operand a = operand(x.src(0), values, *mesh, true), b = operand(x.src(1), values, *mesh, true);
  if (!refine_each_other(a, b, batch_dims)) {
    a = operand(x.src(0), values, *mesh, false), b = operand(x.src(1), values, *mesh, false);
  }
  Layout dims{0, a.counts[batch_dims], a.counts[batch_dims + 1], b.counts[batch_dims + 1]};
  for (size_t i = 0; i < batch_dims; ++i) dims.batch += a.counts[i];
  Dims shape(a.shape.begin(), a.shape.begin() + int64_t(dims.batch + dims.rows));
  shape.insert(shape.end(), b.shape.begin() + int64_t(dims.batch + dims.inner), b.shape.end());

  std::vector<std::vector<Way>> ways;
  for (size_t i = 0; i < mesh->axes().size(); ++i) ways.push_back(ways_along(*mesh, i, dims, a, b));
  const double operations = 2 * double(product(a.shape)) *
                            double(product(DimSpan(b.shape).subspan(dims.batch + dims.inner)));
  const Chosen best = cheapest(x,
                               {*mesh, a.value, b.value, a.shape, b.shape, shape, x.dtype(),
                                operations, values.products_of(x.src(0)),
                                values.products_of(x.src(1)), stays(x.src(0)), stays(x.src(1))},
                               ways, values);
  a.value = values.moved(std::move(a.value), a.shape, best.a);
  b.value = values.moved(std::move(b.value), b.shape, best.b);
  UOp left = filled(a, dims.batch + dims.rows, dims.inner),
      right = filled(b, dims.batch, dims.inner);

  // On a device the finer dims of rows, of the inner dim and of columns are one again.
  auto joined = [&](const UOp& v, size_t first, size_t second) {
    Dims local(v.shape().begin(), v.shape().begin() + int64_t(dims.batch));
    local.push_back(product(v.shape().subspan(dims.batch, first)));
    local.push_back(product(v.shape().subspan(dims.batch + first, second)));
    return reshape(v, local);
  };
  UOp out =
      UOp::make(Op::Dot, x.dtype(),
                {joined(left, dims.rows, dims.inner), joined(right, dims.inner, dims.columns)},
                Dims{int64_t(dims.batch)});
  LocalValue result{reshape(out, Sharding{*mesh, best.result}.local_shape(shape)), mesh,
                    best.result, current_origin()};
  std::vector<size_t> counts(a.counts.begin(), a.counts.begin() + int64_t(batch_dims) + 1);
  counts.push_back(dims.columns);
  return joined_again(std::move(result), std::move(shape), std::move(counts), x.shape());
}

}  // namespace tinyshard
