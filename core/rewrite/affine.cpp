// An index is taken apart into the parts of its sum, whatever its nesting; each part that is a Range
// gives a coefficient.
//
// Splitting looks for the numbers by which a range is divided and makes two loops of it:
//
//   r of 32:  x[r / 8], y[r % 8]                  divisors of r: 8
//   r = r1 * 8 + r2:  x[r1], y[r2]                r1 of 4, r2 of 8
//
// Merging is the way back. Two neighbours become one loop if every index, and every sum as a whole,
// has them with coefficients c * size and c:
//
//   x[i * 64 + j], y[i * 128 + j * 2]             i of 4, j of 64: coefficients 64, 1 and 128, 2
//   x[r], y[r * 2]                                r of 256
#include "core/rewrite/affine.h"

#include <algorithm>

#include "core/rewrite/pattern.h"
#include "core/rewrite/symbolic.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

bool is_sum(const UOp& x) {
  if (x.dtype() != DType::Index) return false;
  switch (x.op()) {
    case Op::Add:
    case Op::Sub:
    case Op::Neg:
      return true;
    case Op::Mul:
      return is_const(x.src(0)) || is_const(x.src(1));
    default:
      return false;
  }
}

// Calls visit(part, coefficient) for each part of the sum that is not itself a sum; returns the
// constant.
template <class Visit>
int64_t for_each_part(const UOp& index, const Visit& visit) {
  int64_t constant = 0;
  std::vector<std::pair<const UOp*, int64_t>> parts{{&index, 1}};
  while (!parts.empty()) {
    auto [part, scale] = parts.back();
    parts.pop_back();
    const UOp& x = *part;
    if (is_const(x)) {
      constant += scale * const_bits(*x);
    } else if (!is_sum(x)) {
      visit(x, scale);
    } else if (x.op() == Op::Mul) {
      size_t c = is_const(x.src(1)) ? 1 : 0;
      parts.push_back({&x.src(1 - c), scale * const_bits(*x.src(c))});
    } else {
      if (x->sources == 2) parts.push_back({&x.src(1), x.op() == Op::Sub ? -scale : scale});
      parts.push_back({&x.src(0), x.op() == Op::Neg ? -scale : scale});
    }
  }
  return constant;
}

bool depends_on(const UOp& x, const UOp& range) {
  std::vector<const UOp*> stack{&x};
  NodeMap<bool> seen;
  while (!stack.empty()) {
    const UOp& node = *stack.back();
    stack.pop_back();
    if (node == range) return true;
    if (seen.contains(node)) continue;
    seen[node] = true;
    for (const UOp& s : node->src()) stack.push_back(&s);
  }
  return false;
}

int64_t next_range_id(std::span<const UOp> nodes, std::span<const UOp> ranges) {
  int64_t next = 0;
  for (const UOp& x : nodes) {
    if (x.op() == Op::Range) next = std::max(next, range_arg(*x).id + 1);
  }
  for (const UOp& r : ranges) next = std::max(next, range_arg(*r).id + 1);
  return next;
}

RangeKind kind(const UOp& range) { return range_arg(*range).kind; }

}  // namespace

int64_t Affine::coefficient(const UOp& range) const {
  for (const Term& t : terms) {
    if (t.range == range) return t.coefficient;
  }
  return 0;
}

std::optional<Affine> as_affine(const UOp& index) {
  Affine affine;
  bool linear = true;
  affine.constant = for_each_part(index, [&](const UOp& part, int64_t coefficient) {
    linear = linear && part.op() == Op::Range;
    if (!linear) return;
    auto same = std::ranges::find(affine.terms, part, &Affine::Term::range);
    if (same == affine.terms.end()) {
      affine.terms.push_back({part, coefficient});
    } else {
      same->coefficient += coefficient;
    }
  });
  if (!linear) return std::nullopt;
  std::erase_if(affine.terms, [](const Affine::Term& t) { return t.coefficient == 0; });
  std::ranges::stable_sort(affine.terms, [](const Affine::Term& a, const Affine::Term& b) {
    int64_t m = std::abs(a.coefficient), n = std::abs(b.coefficient);
    return m != n ? m > n : range_arg(*a.range).id < range_arg(*b.range).id;
  });
  return affine;
}

std::optional<int64_t> stride(const UOp& index, const UOp& range) {
  int64_t total = 0;
  bool linear = true;
  for_each_part(index, [&](const UOp& part, int64_t coefficient) {
    if (part == range) {
      total += coefficient;
    } else if (linear) {
      linear = !depends_on(part, range);
    }
  });
  return linear ? std::optional(total) : std::nullopt;
}

namespace {

// The length of equal parts of a range such that every cut lies between two of them; 0 when there
// is none. Cuts by comparisons are worth it for long parts only.
int64_t common_part(const UOp& range, const std::vector<int64_t>* divisors,
                    const std::vector<int64_t>* turns) {
  constexpr int64_t kLong = 16;
  std::vector<int64_t> cuts;
  if (divisors) cuts = *divisors;
  auto fits = [&](int64_t least) {
    if (cuts.empty()) return int64_t{0};
    int64_t c = *std::ranges::min_element(cuts);
    bool all = c >= least && range_arg(*range).size % c == 0 && range_arg(*range).size > c &&
               std::ranges::all_of(cuts, [&](int64_t cut) { return cut % c == 0; });
    return all ? c : 0;
  };
  int64_t by_divisors = fits(2);
  if (!turns) return by_divisors;
  cuts.insert(cuts.end(), turns->begin(), turns->end());
  int64_t by_both = fits(kLong);
  return by_both > 0 ? by_both : by_divisors;
}

}  // namespace

LoopNest split_ranges(std::span<const UOp> roots, std::span<const UOp> ranges) {
  LoopNest nest{{roots.begin(), roots.end()}, {ranges.begin(), ranges.end()}};
  for (;;) {
    const NodeOrder nodes = toposort(nest.roots);
    // Places where a range is cut: multiples of what it is divided by, and where a comparison with
    // it turns, as between the parts of a concatenation.
    NodeMap<std::vector<int64_t>> divisors, turns;
    for (const UOp& x : nodes) {
      bool divides = x.dtype() == DType::Index && (x.op() == Op::IDiv || x.op() == Op::Mod);
      if (divides && x.src(0).op() == Op::Range && is_const(x.src(1))) {
        divisors[x.src(0)].push_back(const_bits(*x.src(1)));
      }
      if (x.op() != Op::CmpLt) continue;
      const UOp &a = x.src(0), &b = x.src(1);
      if (a.op() == Op::Range && is_const(b)) turns[a].push_back(const_bits(*b));
      if (b.op() == Op::Range && is_const(a)) turns[b].push_back(const_bits(*a) + 1);
    }

    // A range as the sum of its parts, and the parts by that sum, for the lists of Folds.
    NodeMap<UOp> sums;
    NodeMap<std::vector<UOp>> parts;
    std::vector<UOp> split, alive;
    int64_t id = next_range_id(nodes, nest.ranges);
    for (const UOp& r : nest.ranges) {
      int64_t c = common_part(r, divisors.find(r), turns.find(r));
      if (c == 0) {
        split.push_back(r);
        continue;
      }
      UOp outer = range(id, range_arg(*r).size / c, kind(r)), inner = range(id + 1, c, kind(r));
      id += 2;
      UOp sum = binary(Op::Add, binary(Op::Mul, outer, index_const(c)), inner);
      sums[r] = sum;
      parts[sum] = {outer, inner};
      split.push_back(outer);
      split.push_back(inner);
      alive.push_back(sum);
    }
    if (alive.empty()) return nest;

    nest.roots = rewrite_once(nest.roots, [&](const UOp& x) -> UOp {
      if (x.op() == Op::Range) {
        const UOp* sum = sums.find(x);
        return sum ? *sum : UOp();
      }
      if (x.op() != Op::Fold) return {};
      std::vector<UOp> src{x.src(0)};
      for (const UOp& r : x->src().subspan(1)) {
        if (auto* two = parts.find(r)) {
          src.insert(src.end(), two->begin(), two->end());
        } else {
          src.push_back(r);
        }
      }
      return x.with_src(src);
    });
    nest.roots = simplify(nest.roots);
    nest.ranges = std::move(split);
  }
}

LoopNest merge_ranges(std::span<const UOp> roots, std::span<const UOp> ranges) {
  LoopNest nest{{roots.begin(), roots.end()}, {}};
  for (const UOp& r : ranges) {
    if (range_arg(*r).size != 1) nest.ranges.push_back(r);
  }
  if (nest.ranges.size() != ranges.size()) nest.roots = simplify(nest.roots);
  std::vector<UOp>& loops = nest.ranges;
  std::vector<bool> joined(loops.size());  // with the next one
  for (size_t i = 0; i + 1 < loops.size(); ++i) joined[i] = kind(loops[i]) == kind(loops[i + 1]);
  NodeMap<size_t> position;
  for (size_t i = 0; i < loops.size(); ++i) position[loops[i]] = i;

  std::vector<int64_t> coefficients(loops.size());
  auto check_sum = [&](const UOp& sum) {
    std::ranges::fill(coefficients, 0);
    bool any = false;
    for_each_part(sum, [&](const UOp& part, int64_t coefficient) {
      const size_t* at = position.find(part);
      if (at) coefficients[*at] += coefficient, any = true;
    });
    for (size_t i = 0; any && i + 1 < loops.size(); ++i) {
      bool fits = __int128(coefficients[i + 1]) * range_arg(*loops[i + 1]).size == coefficients[i];
      joined[i] = joined[i] && fits;
    }
  };
  const NodeOrder nodes = toposort(nest.roots);
  for (const UOp& x : nodes) {
    if (is_sum(x)) continue;  // checked as a whole, where it is used
    if (x.op() != Op::Fold) {
      for (const UOp& s : x->src()) {
        if (s.dtype() == DType::Index) check_sum(s);
      }
      continue;
    }
    // A Fold lists both, one after the other, or none.
    std::vector<bool> listed(loops.size()), next_follows(loops.size());
    auto list = x->src().subspan(1);
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t* at = position.find(list[i]);
      if (!at) continue;
      listed[*at] = true;
      next_follows[*at] =
          i + 1 < list.size() && *at + 1 < loops.size() && list[i + 1] == loops[*at + 1];
    }
    for (size_t i = 0; i + 1 < loops.size(); ++i) {
      if (listed[i] || listed[i + 1]) joined[i] = joined[i] && next_follows[i];
    }
  }
  for (const UOp& root : nest.roots) {
    if (root.dtype() == DType::Index) check_sum(root);
  }

  NodeMap<UOp> map;
  std::vector<UOp> merged;
  int64_t id = next_range_id(nodes, loops);
  for (size_t first = 0, last; first < loops.size(); first = last + 1) {
    int64_t size = range_arg(*loops[first]).size;
    for (last = first; joined[last]; ++last) size *= range_arg(*loops[last + 1]).size;
    if (first == last) {
      merged.push_back(loops[first]);
      continue;
    }
    // The sum of all is the last one's coefficient times the merged range.
    UOp whole = range(id++, size, kind(loops[first]));
    for (size_t i = first; i < last; ++i) map[loops[i]] = index_const(0);
    map[loops[last]] = whole;
    merged.push_back(std::move(whole));
  }
  if (map.size() != 0) nest.roots = simplify(substitute(nest.roots, map));
  nest.ranges = std::move(merged);
  return nest;
}

}  // namespace tinyshard
