// A scatter that starts from a value is found at the Add that follows it:
//
//   %3 = scatter_add index rows     %4 = add %2 %3     %2 in memory, nobody else reads %3
//   %4 = scatter_add index rows %2
//
// Its sums are those of a wider type, in the library, so that nothing is widened for them:
//
//   %5 = scatter_add index (cast f32 rows) %2     %2 and rows in bf16
//   %6 = cast bf16 %5                             becomes scatter_add index rows %2
//
// A scatter that writes is found at the choice between what was written and what was there before:
//
//   %3 = scatter_add max index, 1 2 3 4..   the number of the last entry that names a place
//   %4 = max %3 0                           0: no entry does
//   %6 = gather rows (%4 - 1)               or of max (%4 - 1) 0
//   %7 = where (0 < %4) %6 x                becomes scatter_add writing index rows x
//
// The index may be repeated along rows: %4 is then repeated on its way to the choice and the gather.
//
// A scattered maximum, minimum or product without a library compares each place with each entry:
// max over j of where(index[j] == i, rows[j], -inf).
#include "core/passes/scatters.h"

#include <algorithm>

#include "core/dtype/half.h"
#include "core/rewrite/fold.h"
#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "core/uop/scatter.h"

namespace tinyshard {
namespace {

// Returns what x shows, possibly in another shape or in a wider type, when that is in memory
// anyway; null else.
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

namespace {

bool is_max_scatter(const UOp& x) {
  return x.op() == Op::ScatterAdd && x->sources == 2 && scatter_arg(*x).op == ReduceOp::Max;
}

// A choice that writes, on its way down to the scattered numbers.
class WrittenChoice {
 public:
  explicit WrittenChoice(const UOp& choice) : choice_(choice) {}

  // The scatter that does the same; null where the choice is another one.
  UOp scatter() {
    if (choice_.op() != Op::Where) return {};
    const UOp condition = below_repeats(choice_.src(0)), gather = choice_.src(1);
    if (condition.op() != Op::CmpLt || !is_const(condition.src(0), 0)) return {};
    if (gather.op() != Op::Gather) return {};
    step(condition);
    step(gather);
    const UOp numbers = below_repeats(condition.src(1));
    UOp entry = below_repeats(gather.src(1));
    if (entry.op() == Op::Max && is_const(entry.src(1), 0)) entry = below_repeats(stepped(entry));
    const bool before = entry.op() == Op::Sub && is_const(entry.src(1), 1);
    if (!before || !(below_repeats(stepped(entry)) == numbers)) return {};
    if (numbers.op() != Op::Max || !is_const(numbers.src(1), 0)) return {};
    const UOp found = stepped(numbers);
    if (!is_max_scatter(found)) return {};
    step(found);
    return written(found, gather);
  }

  // After found(): the scatter of the numbers, and all nodes from there to the choice.
  const UOp& numbers() const { return steps_.back(); }
  const std::vector<UOp>& steps() const { return steps_; }

 private:
  void step(const UOp& x) {
    if (std::ranges::find(steps_, x) == steps_.end()) steps_.push_back(x);
  }
  UOp stepped(const UOp& x) {
    step(x);
    return x.src(0);
  }
  UOp below_repeats(UOp x) {
    while (x.op() == Op::Expand) x = stepped(x);
    return x;
  }

  UOp written(const UOp& found, const UOp& gather) const {
    const auto axis = size_t(scatter_arg(*found).axis);
    const UOp &index = found.src(0), &rows = gather.src(0), &x = choice_.src(2);
    const DimSpan from = index.shape(), all = rows.shape();
    if (size_t(gather_axis(*gather)) != axis || from.size() != all.size()) return {};
    if (from[axis] != all[axis] || !counts_from_one(found.src(1), axis)) return {};
    if (x.shape()[axis] != scatter_arg(*found).size) return {};  // one place, repeated
    for (size_t i = 0; i < all.size(); ++i) {
      if (i != axis && (all[i] != x.shape()[i] || (from[i] != all[i] && from[i] != 1))) return {};
    }
    return UOp::make(Op::ScatterAdd, x.dtype(), {expand(index, all), rows, x},
                     writing_scatter(int64_t(axis), scatter_arg(*found).size));
  }

  const UOp choice_;
  std::vector<UOp> steps_;  // nodes between the sources of the scatter and the choice
};

}  // namespace

namespace {

// Tells whether nobody else reads what leads from one scatter of numbers to these choices.
bool are_alone(std::span<const WrittenChoice> choices, std::span<const UOp> nodes,
               const NodeMap<int>& uses) {
  NodeMap<int> mine;
  std::vector<UOp> readers(nodes.begin(), nodes.end());
  for (const WrittenChoice& c : choices) {
    for (const UOp& x : c.steps()) {
      if (!mine.contains(x)) readers.push_back(x);
      mine[x] = 0;
    }
  }
  for (const UOp& x : readers) {
    for (const UOp& s : x->src()) {
      if (int* count = mine.find(s)) ++*count;
    }
  }
  return std::all_of(readers.begin() + long(nodes.size()), readers.end(),
                     [&](const UOp& x) { return uses.at(x) == mine.at(x); });
}

// The choices that may be written: several tables may be by one index, whose numbers they share.
NodeMap<bool> written_choices(const Graph& graph) {
  struct Group {
    std::vector<WrittenChoice> choices;
    std::vector<UOp> nodes;
  };
  NodeMap<size_t> number_of_group;
  std::vector<Group> groups;
  for (const UOp& x : graph.order()) {
    WrittenChoice choice(x);
    if (!choice.scatter()) continue;
    size_t* known = number_of_group.find(choice.numbers());
    if (!known) {
      number_of_group[choice.numbers()] = groups.size();
      groups.emplace_back();
    }
    Group& group = known ? groups[*known] : groups.back();
    group.choices.push_back(std::move(choice));
    group.nodes.push_back(x);
  }
  const NodeMap<int> uses = count_uses(graph.order(), graph.roots());
  NodeMap<bool> found;
  for (const Group& g : groups) {
    if (!are_alone(g.choices, g.nodes, uses)) continue;
    for (const UOp& x : g.nodes) found[x] = true;
  }
  return found;
}

}  // namespace

std::vector<UOp> write_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  if (std::ranges::none_of(graph.order(), is_max_scatter)) return graph.roots();
  const NodeMap<bool> choices = written_choices(graph);
  if (choices.size() == 0) return graph.roots();
  return rewrite_once(graph, [&](const UOp& now, const UOp& was) {
    if (!choices.contains(was)) return UOp();
    const UOp result = WrittenChoice(now).scatter();
    return result && library_supports(row_major_call(result)) ? result : UOp();
  });
}

std::vector<UOp> lower_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  return rewrite_once(graph, [&](const UOp& x) {
    bool mine = x.op() == Op::ScatterAdd && scatter_arg(*x).op != ReduceOp::Sum;
    return mine && !library_supports(row_major_call(x)) ? reduced_by_pairs(x) : UOp();
  });
}

namespace {

bool is_scatter(const UOp& x) {
  return x.op() == Op::ScatterAdd && scatter_arg(*x).op == ReduceOp::Sum;
}

// Returns the narrow sum that a sum of widened rows is when it is rounded to their type; null where x is no such sum.
UOp narrow_scatter(const UOp& x) {
  if (x.op() != Op::Cast || !is_half(x.dtype())) return {};
  UOp scatter = x.src(0);
  if (scatter.op() == Op::Reshape) scatter = scatter.src(0);
  if (!is_scatter(scatter) || scatter.dtype() != accumulator(x.dtype())) return {};
  const UOp& rows = scatter.src(1);
  if (rows.op() != Op::Cast || rows.src(0).dtype() != x.dtype()) return {};
  std::vector<UOp> src{scatter.src(0), rows.src(0)};
  if (scatter->sources > 2) {
    if (scatter.src(2).dtype() != x.dtype()) return {};
    src.push_back(scatter.src(2));
  }
  return UOp::make(Op::ScatterAdd, x.dtype(), src, scatter->arg());
}

}  // namespace

std::vector<UOp> start_scatters(const Graph& graph,
                                const std::function<bool(const LibraryCall&)>& library_supports) {
  if (std::ranges::none_of(graph.order(), is_scatter)) return graph.roots();
  const NodeMap<int> uses = count_uses(graph.order(), graph.roots());
  // Tells whether a scattered sum, reshaped or added to something, goes to one reader alone.
  auto alone = [&](UOp x) {
    while (uses.at(x) == 1 && !is_scatter(x)) {
      if (x.op() != Op::Reshape && x.op() != Op::Add) return false;
      x = x.src(x.op() == Op::Add && !is_scatter(x.src(0)) ? 1 : 0);
    }
    return uses.at(x) == 1;
  };
  return rewrite_once(graph, [&](const UOp& x, const UOp& was) {
    if (const UOp narrow = narrow_scatter(x)) {
      if (alone(was.src(0)) && library_supports(row_major_call(narrow)))
        return reshape(narrow, x.shape());
    }
    // A sum in 16 bits is of a scattered one that was rounded.
    if (x.op() != Op::Add || accumulator(x.dtype()) != x.dtype()) return UOp();
    for (int side : {0, 1}) {
      const UOp& scatter = x.src(side);
      const int* count = uses.find(scatter);
      if (!is_scatter(scatter) || scatter->sources != 2) continue;
      if (is_const(x.src(1 - side), 0)) return scatter;  // sums start from 0, and are no -0
      if (!count || *count != 1) continue;
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
