// A scatter that starts from a value is found at the Add that follows it:
//
//   %3 = scatter_add index rows     %4 = add %2 %3     %2 in memory, nobody else reads %3
//   %4 = scatter_add index rows %2
//
// A scattered maximum, minimum or product without a library compares each place with each entry:
// max over j of where(index[j] == i, rows[j], -inf).
#include "core/passes/scatters.h"

#include <algorithm>

#include "core/rewrite/fold.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

// What x shows, possibly in another shape or in a wider type, when that is in memory anyway; null
// else.
UOp in_memory(UOp x) {
  auto widens = [](const UOp& y) {
    return y.op() == Op::Cast && is_float(y.dtype()) && is_float(y.src(0).dtype()) &&
           itemsize(y.src(0).dtype()) < itemsize(y.dtype());
  };
  while (x.op() == Op::Reshape || widens(x)) x = x.src(0);
  bool there = x.op() == Op::Buffer || x.op() == Op::Collective || x.op() == Op::Dot;
  return there ? x : UOp();
}

}  // namespace

namespace {

// From all pairs of a place and an entry: [.., place, .., entry], the entries last.
UOp reduced_by_pairs(const UOp& x) {
  const UOp& index = x.src(0);
  const auto axis = size_t(scatter_arg(*x).axis), rank = index.shape().size();
  Dims order, all, line(rank + 1, 1);
  for (size_t i = 0; i < rank; ++i) {
    if (i != axis) order.push_back(int64_t(i));
  }
  order.push_back(int64_t(axis));
  for (int64_t i : order) all.push_back(index.shape()[size_t(i)]);
  all.insert(all.begin() + long(axis), scatter_arg(*x).size);
  line[axis] = scatter_arg(*x).size;
  auto spread = [&](const UOp& y) {
    Dims apart = all;
    apart[axis] = 1;
    return expand(reshape(permute(y, order), apart), all);
  };
  UOp places = cast(UOp::make(Op::Iota, DType::I64, {}, Dims{scatter_arg(*x).size}), index.dtype());
  UOp here = binary(Op::CmpEq, spread(index), expand(reshape(places, line), all));
  UOp otherwise = reshaped_const(identity_of(scatter_arg(*x).op, x.dtype()), all);
  UOp chosen = where(here, spread(x.src(1)), otherwise);
  return reshape(reduce(scatter_arg(*x).op, chosen, Dims{int64_t(rank)}), x.shape());
}

}  // namespace

std::vector<UOp> lower_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  return rewrite_once(graph, [&](const UOp& x) {
    bool mine = x.op() == Op::ScatterAdd && scatter_arg(*x).op != ReduceOp::Sum;
    return mine && !library_supports(row_major_call(x)) ? reduced_by_pairs(x) : UOp();
  });
}

std::vector<UOp> start_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  auto is_scatter = [](const UOp& x) {
    return x.op() == Op::ScatterAdd && scatter_arg(*x).op == ReduceOp::Sum;
  };
  if (std::ranges::none_of(graph.order(), is_scatter)) return graph.roots();
  const NodeMap<int> uses = count_uses(graph.order(), graph.roots());
  return rewrite_once(graph, [&](const UOp& x) {
    // A sum in 16 bits is of a scattered one that was rounded.
    if (x.op() != Op::Add || accumulator(x.dtype()) != x.dtype()) return UOp();
    for (int side : {0, 1}) {
      const UOp& scatter = x.src(side);
      const int* count = uses.find(scatter);
      if (!is_scatter(scatter) || scatter->sources != 2 || !count || *count != 1) continue;
      UOp base = in_memory(x.src(1 - side));
      if (!base) continue;
      UOp src[] = {scatter.src(0), scatter.src(1), reshape(base, x.shape())};
      UOp result = scatter.with_src(src);
      if (library_supports(row_major_call(result))) return result;
    }
    return UOp();
  });
}

}  // namespace tinyshard
