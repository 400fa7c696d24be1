// Two ways to sort without a library.
//
// All pairs, for short rows: the rank of a key is how many come before it, and its place is
// scattered to its rank.
//
// A bitonic network, for long ones: words of 32 bits of key above 32 bits of place, padded with the
// largest to a power of two, are exchanged in pairs so that the smaller one comes first. Runs of
// 1, 2, 4.. are merged: the first step of a merge compares a run with the next one read backwards,
// the others compare halves of what is left:
//
//   3 1 | 2 0   pairs            size 2, mirrored
//   1 3 | 0 2   mirrored halves  size 4: 1 with 2, 3 with 0
//   1 0 | 3 2   halves of those  size 2
//   0 1 | 2 3
//
// A row of 2^m has m (m + 1) / 2 steps, a kernel each, of 2 m - 1 different kinds. Keys of 64 bits
// are sorted by their lower halves first, then, stably, by the upper ones.
#include "core/passes/sorts.h"

#include <algorithm>

#include "core/rewrite/pattern.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

Dims dims(const UOp& x) { return {x.shape().begin(), x.shape().end()}; }

UOp contiguous(const UOp& x) { return UOp::make(Op::Contiguous, x.dtype(), {x}); }

UOp first_places(const UOp& order, int64_t k) {
  Dims bounds;
  for (int64_t d : order.shape()) bounds.insert(bounds.end(), {0, d});
  bounds.back() = k;
  return shrink(order, bounds);
}

UOp by_pairs(const UOp& keys, int64_t k) {
  Dims shape = dims(keys), column = shape, row = shape, all = shape;
  const size_t last = shape.size();
  const int64_t n = shape.back();
  column.push_back(1);
  row.insert(row.end() - 1, 1);
  all.push_back(n);
  UOp read = contiguous(keys), mine = expand(reshape(read, column), all),
      other = expand(reshape(read, row), all);
  UOp earlier =
      binary(Op::CmpLt, iota_along(all, last, DType::I32), iota_along(all, last - 1, DType::I32));
  UOp before = binary(Op::Or, binary(Op::CmpLt, other, mine),
                      binary(Op::And, binary(Op::CmpEq, other, mine), earlier));
  UOp rank = reshape(reduce(ReduceOp::Sum, cast(before, DType::I32), Dims{int64_t(last)}), shape);
  UOp order = UOp::make(Op::ScatterAdd, DType::I32, {rank, iota_along(shape, last - 1, DType::I32)},
                        Dims{int64_t(last) - 1, n});
  return first_places(order, k);
}

// Each word beside its partner: blocks of `size` words, the second half of each as far from the
// first, or mirrored.
UOp exchanged(const UOp& words, int64_t size, bool mirrored) {
  Dims shape = dims(words), blocks = shape;
  blocks.back() /= size;
  blocks.insert(blocks.end(), {2, size / 2});
  const int64_t half = int64_t(blocks.size()) - 2;
  UOp mine = reshape(words, blocks);
  UOp partner = flip(mine, mirrored ? Dims{half, half + 1} : Dims{half});
  UOp first = binary(Op::CmpEq, iota_along(blocks, size_t(half), DType::I32),
                     const_int(DType::I32, 0, blocks));
  UOp keeps = binary(Op::CmpEq, binary(Op::CmpLt, mine, partner), first);
  return contiguous(reshape(where(keeps, mine, partner), shape));
}

// The order of keys of up to 32 bits.
UOp by_network(const UOp& keys) {
  Dims shape = dims(keys);
  const int64_t n = shape.back();
  UOp upper = binary(Op::Shl, cast(keys, DType::U64), const_int(DType::U64, 32, shape));
  UOp words = binary(Op::Or, upper, iota_along(shape, shape.size() - 1, DType::U64));
  int64_t whole = 1;
  while (whole < n) whole *= 2;
  if (whole > n) {
    // Pads with zeros: of the complement, so that the padding is largest.
    auto complement = [](const UOp& x) { return unary(Op::Not, x); };
    Dims behind(2 * shape.size());
    behind.back() = whole - n;
    words = complement(pad(complement(words), behind));
  }
  words = contiguous(words);
  for (int64_t run = 2; run <= whole; run *= 2) {
    for (int64_t size = run; size > 1; size /= 2) words = exchanged(words, size, size == run);
  }
  UOp places = first_places(words, n);
  return cast(binary(Op::And, places, const_int(DType::U64, 0xffffffff, shape)), DType::I32);
}

UOp by_networks(const UOp& keys) {
  if (itemsize(keys.dtype()) < 8) return by_network(keys);
  const Dims shape = dims(keys);
  const Dims last{int64_t(shape.size()) - 1};
  UOp mask = const_int(DType::U64, 0xffffffff, shape), bits = const_int(DType::U64, 32, shape);
  UOp lower = by_network(cast(binary(Op::And, keys, mask), DType::U32));
  UOp upper = cast(binary(Op::Shr, keys, bits), DType::U32);
  UOp order = by_network(UOp::make(Op::Gather, DType::U32, {upper, lower}, last));
  return UOp::make(Op::Gather, DType::I32, {lower, order}, last);
}

}  // namespace

std::vector<UOp> lower_sorts(const Graph& graph,
                             const std::function<bool(const LibraryCall&)>& library_supports,
                             SortLimits limits) {
  return rewrite_once(graph, [&](const UOp& x) {
    if (x.op() != Op::Sort) return UOp();
    const UOp& keys = x.src(0);
    const int64_t n = keys.shape().back(), k = sorted_places(*x);
    bool library = library_supports(row_major_call(x));
    if (n <= (library ? limits.pairs_before_library : limits.pairs_before_network))
      return by_pairs(keys, k);
    return library ? UOp() : contiguous(first_places(by_networks(keys), k));
  });
}

}  // namespace tinyshard
