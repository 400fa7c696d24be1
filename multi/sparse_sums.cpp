// Gathering pays if the index and the rows of all devices have at most half the bytes of the sum.
// Elements that were repeated, widened or given another shape travel as they were before:
//
//   8 devices with 1024 tokens each, rows f32[768]: 24 MiB of rows; a table of 50257 rows: 147 MiB
#include "multi/sparse_sums.h"

#include "core/rewrite/pattern.h"
#include "core/runtime/communicator.h"
#include "core/uop/args.h"
#include "multi/collective.h"
#include "multi/redistribute.h"

namespace tinyshard {
namespace {

int64_t bytes(const UOp& x) { return x->numel() * int64_t(itemsize(x.dtype())); }

bool widens(const UOp& x) {
  return x.op() == Op::Cast && itemsize(x.src(0).dtype()) < itemsize(x.dtype());
}

// Gathers what the devices along one axis of a mesh have, one after the other along `dim`.
class Gathering {
 public:
  Gathering(const UOp& all_reduce, int dim)
      : mesh_(Mesh::from_payload(all_reduce->payload)),
        axis_(collective_arg(*all_reduce).mesh_axis),
        dim_(dim) {}

  // Gathers x; ops that repeat or widen elements are done after these came.
  UOp all(const UOp& x) const {
    Dims whole(x.shape().begin(), x.shape().end());
    whole[dim_] *= mesh_.axes()[axis_].size;
    if (widens(x)) return cast(all(x.src(0)), x.dtype());
    if (repeats(x)) return expand(all(x.src(0)), whole);
    if (reshapes(x)) return reshape(all(x.src(0)), whole);
    LocalValue part{x, mesh_, std::vector<Placement>(mesh_.axes().size())};
    const std::vector<Placement> everywhere = part.place;
    part.place[axis_] = Shard(dim_);
    return redistribute(std::move(part), whole, mesh_, everywhere).local;
  }

  // Returns how many bytes all() brings for x.
  int64_t bytes_of(const UOp& x) const {
    if (widens(x) || repeats(x) || reshapes(x)) return bytes_of(x.src(0));
    return mesh_.axes()[axis_].size * bytes(x);
  }

 private:
  bool repeats(const UOp& x) const {
    return x.op() == Op::Expand && x.src(0).shape()[dim_] == x.shape()[dim_];
  }
  // Along the first dim parts follow each other in memory, whatever their shape.
  bool reshapes(const UOp& x) const {
    return x.op() == Op::Reshape && dim_ == 0 && !x.src(0).shape().empty();
  }

  Mesh mesh_;
  int axis_, dim_;
};

UOp gathered_sum(const UOp& x) {
  if (!is_all_reduce(x, ReduceOp::Sum)) return UOp();
  std::vector<UOp> shown;  // how the scatter's result travels: in another type or shape
  UOp scatter = x.src(0).src(0);
  while (scatter.op() == Op::Reshape || (scatter.op() == Op::Cast && is_float(scatter.dtype()))) {
    shown.push_back(scatter);
    scatter = scatter.src(0);
  }
  if (scatter.op() != Op::ScatterAdd || scatter_arg(*scatter).op != ReduceOp::Sum) return UOp();
  Gathering gathering(x, int(scatter_arg(*scatter).axis));
  const UOp &index = scatter.src(0), &rows = scatter.src(1);
  if (2 * (gathering.bytes_of(index) + gathering.bytes_of(rows)) > bytes(x)) return UOp();
  const OriginScope origin(origin_id(x));
  UOp all[] = {gathering.all(index), gathering.all(rows)};
  UOp result = scatter.with_src(all);
  for (; !shown.empty(); shown.pop_back()) result = shown.back().with_src(std::span(&result, 1));
  return result;
}

}  // namespace

std::vector<UOp> gather_sparse_sums(const Graph& graph) {
  return rewrite_once(graph, gathered_sum);
}

}  // namespace tinyshard
