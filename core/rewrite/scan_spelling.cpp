// A scan in smaller ops. A row is cut into chunks. Inside of one, all pairs of elements are looked at;
// the totals of the chunks are scanned the same way, and each chunk comes after those before it:
//
//   3 1 2 | 5 1 4      inside 3 4 6 | 5 6 10      totals 6 10, before each 0 6
//                      out    3 4 6 | 11 12 16
//
// Running sums of floats never fall where nothing is negative: each is the sum of one tree over the
// whole row, in which what comes later is 0. A tree over parts adds neighbours, then neighbours of
// these sums:
//
//   parts 0 to 5, of the last of which the first elements sum up to s:
//   ((t0 + t1) + (t2 + t3)) + (t4 + s)      before the last part: t4, then (t0 + t1) + (t2 + t3)
#include "core/rewrite/scan_spelling.h"

#include <limits>
#include <numbers>
#include <vector>

#include "core/base/error.h"
#include "core/rewrite/fold.h"

namespace tinyshard {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Parts whose sums one tree adds.
constexpr int64_t kLeaves = 32;

Dims dims(const UOp& x) { return {x.shape().begin(), x.shape().end()}; }
size_t last_of(const UOp& x) { return x.shape().size() - 1; }

UOp contiguous(const UOp& x) { return unary(Op::Contiguous, x); }
UOp detach(const UOp& x) { return unary(Op::Detach, x); }
UOp zeros_like(const UOp& x) { return const_like(x, 0); }

ReduceOp reduction_of(ScanKind kind) {
  switch (kind) {
    case ScanKind::Sum:
      return ReduceOp::Sum;
    case ScanKind::Prod:
      return ReduceOp::Prod;
    case ScanKind::Max:
      return ReduceOp::Max;
    case ScanKind::Min:
      return ReduceOp::Min;
    case ScanKind::LogSumExp:
      break;
  }
  throw InternalError("scan: no reduction is a log of sums");
}

// A scalar that changes no total.
UOp nothing(ScanKind kind, DType type) {
  if (kind == ScanKind::LogSumExp) return const_float(type, -kInfinity);
  return identity_of(reduction_of(kind), type);
}

UOp part(const UOp& x, size_t dim, int64_t low, int64_t high) {
  Dims bounds;
  for (int64_t d : x.shape()) bounds.insert(bounds.end(), {0, d});
  bounds[2 * dim] = low, bounds[2 * dim + 1] = high;
  return shrink(x, bounds);
}

UOp squeezed(const UOp& x, size_t dim) {
  Dims shape = dims(x);
  shape.erase(shape.begin() + int64_t(dim));
  return reshape(x, shape);
}

// [..] as [.., n], the same for all of the new dim.
UOp repeated_along(const UOp& x, int64_t n) {
  Dims shape = dims(x);
  shape.push_back(1);
  const UOp column = reshape(x, shape);
  shape.back() = n;
  return expand(column, shape);
}

UOp padded(const UOp& x, int64_t before, int64_t behind, const UOp& identity) {
  if (before == 0 && behind == 0) return x;
  Dims padding(2 * x.shape().size(), 0);
  padding[padding.size() - 2] = before, padding.back() = behind;
  UOp zeros = pad(x, padding);
  if (is_const(identity, 0)) return zeros;
  const UOp inside = pad(const_int(DType::Bool, 1, x.shape()), padding);
  return where(inside, zeros, reshaped_const(identity, zeros.shape()));
}

// [.., n] as [.., groups, each], with `identity` behind the last one.
UOp in_groups(const UOp& x, int64_t each, const UOp& identity) {
  const int64_t n = x.shape().back(), groups = (n + each - 1) / each;
  Dims shape = dims(x);
  shape.back() = groups;
  shape.push_back(each);
  return reshape(padded(x, 0, groups * each - n, identity), shape);
}
UOp in_groups(const UOp& x, int64_t each) { return in_groups(x, each, const_like(x, 0)); }

// The sums of neighbours along the last dim.
UOp sum_of_pairs(const UOp& x) {
  const size_t last = last_of(x) + 1;
  const UOp pairs = in_groups(x, 2);
  return squeezed(binary(Op::Add, part(pairs, last, 0, 1), part(pairs, last, 1, 2)), last);
}

// Each of [.., m] so many times, up to n of them.
UOp repeated(const UOp& x, int64_t times, int64_t n) {
  Dims flat = dims(x);
  flat.back() *= times;
  return part(reshape(repeated_along(x, times), flat), last_of(x), 0, n);
}

// Returns what the parts [.., n] have before them: several [.., n], to be added in this order.
std::vector<UOp> sums_before(const UOp& parts) {
  const size_t last = last_of(parts);
  const int64_t n = parts.shape().back();
  std::vector<UOp> before;
  if (n > kLeaves) {
    const UOp groups = in_groups(parts, kLeaves);
    for (const UOp& x : sums_before(groups)) {
      Dims flat = dims(parts);
      flat.back() = groups.shape()[last] * kLeaves;
      before.push_back(contiguous(part(reshape(x, flat), last, 0, n)));
    }
    UOp totals = groups;
    for (int64_t size = 1; size < kLeaves; size *= 2) totals = sum_of_pairs(totals);
    totals = contiguous(squeezed(totals, last + 1));
    for (const UOp& x : sums_before(totals)) before.push_back(repeated(x, kLeaves, n));
    return before;
  }
  UOp sums = parts;
  for (int64_t size = 1; size < n; size *= 2) {
    // Right ones come behind the left ones.
    const UOp left = part(in_groups(sums, 2), last + 1, 0, 1);
    const UOp pairs = padded(left, 1, 0, const_like(left, 0));
    Dims line = dims(left);
    line.pop_back();
    line.back() *= 2;
    before.push_back(repeated(reshape(pairs, line), size, n));
    sums = sum_of_pairs(sums);
  }
  return before;
}

// Each element of a chunk beside all of the chunk up to there: [.., n, n].
UOp pairs_of(const UOp& x, const UOp& identity) {
  const size_t last = last_of(x);
  Dims row = dims(x), all = row;
  const int64_t n = row.back();
  row.insert(row.end() - 1, 1);
  all.push_back(n);
  const UOp later =
      binary(Op::CmpLt, iota_along(all, last, DType::I32), iota_along(all, last + 1, DType::I32));
  return where(later, reshaped_const(identity, all), expand(reshape(x, row), all));
}

UOp infinite(const UOp& x) {
  return binary(Op::Or, binary(Op::CmpEq, x, const_like(x, kInfinity)),
                binary(Op::CmpEq, x, const_like(x, -kInfinity)));
}
UOp exp_of(const UOp& x) {
  return unary(Op::Exp2, binary(Op::Mul, x, const_like(x, std::numbers::log2e)));
}
// Where the sums are zero, and their logarithm is -infinity, no gradient goes through it.
UOp log_of_sums(const UOp& sums) {
  const UOp none = binary(Op::CmpEq, sums, zeros_like(sums));
  const UOp some = unary(Op::Log2, where(none, const_like(sums, 1), sums));
  return where(none, const_like(sums, -kInfinity),
               binary(Op::Mul, some, const_like(sums, std::numbers::ln2)));
}
// An infinite base would make a NaN of what is as infinite.
UOp base_of(const UOp& largest) { return where(infinite(largest), zeros_like(largest), largest); }

// Each row of a chunk's pairs is shifted by its own maximum.
UOp log_of_sums_inside(const UOp& x) {
  const UOp pairs = pairs_of(x, const_float(x.dtype(), -kInfinity));
  const Dims axes{int64_t(x.shape().size())};
  const UOp base = base_of(detach(reduce(ReduceOp::Max, pairs, axes)));
  const UOp terms = exp_of(binary(Op::Sub, pairs, expand(base, pairs.shape())));
  const UOp sums = reduce(ReduceOp::Sum, terms, axes);
  return reshape(binary(Op::Add, log_of_sums(sums), base), x.shape());
}

UOp scan_inside(const UOp& x, ScanKind kind) {
  if (kind == ScanKind::LogSumExp) return log_of_sums_inside(x);
  const UOp pairs = pairs_of(x, nothing(kind, x.dtype()));
  return reshape(reduce(reduction_of(kind), pairs, Dims{int64_t(x.shape().size())}), x.shape());
}

UOp is_nan(const UOp& x) { return binary(Op::CmpNe, x, x); }

// The maximum before a part counts unless that inside is better.
UOp better_of(ScanKind kind, const UOp& before, const UOp& own) {
  UOp better =
      kind == ScanKind::Max ? binary(Op::CmpLt, before, own) : binary(Op::CmpLt, own, before);
  if (is_float(own.dtype())) {
    const UOp known = binary(Op::CmpEq, before, before);
    better = binary(Op::Or, better, binary(Op::And, is_nan(own), known));
  }
  // Before the first part there is nothing, which is no better than an infinity.
  const UOp place = iota_along(own.shape(), last_of(own) - 1, DType::I32);
  return where(binary(Op::Or, better, binary(Op::CmpEq, place, zeros_like(place))), own, before);
}

UOp log_of_both(const UOp& a, const UOp& b) {
  const UOp base = base_of(detach(binary(Op::Max, a, b)));
  const UOp sums =
      binary(Op::Add, exp_of(binary(Op::Sub, a, base)), exp_of(binary(Op::Sub, b, base)));
  return binary(Op::Add, log_of_sums(sums), base);
}

// Parts after what comes before each: both [.., parts, n].
UOp combined(ScanKind kind, const UOp& before, const UOp& own) {
  switch (kind) {
    case ScanKind::Sum:
      return binary(Op::Add, before, own);
    case ScanKind::Prod:
      return binary(Op::Mul, before, own);
    case ScanKind::Max:
    case ScanKind::Min:
      return better_of(kind, before, own);
    case ScanKind::LogSumExp:
      return log_of_both(before, own);
  }
  throw InternalError("scan: no kind of this number");
}

UOp totals_up_to_each(const UOp& x, ScanKind kind, const ScanChunks& chunks) {
  const int64_t n = x.shape().back(), chunk = chunks.chunk;
  if (n <= chunk) return scan_inside(x, kind);
  const UOp inside = scan_inside(in_parts(x, (n + chunk - 1) / chunk, chunk, kind), kind);
  return joined_scans(inside, n, kind, chunks, contiguous);
}

}  // namespace

ScanChunks short_chunks(const UOp& x, ScanKind kind) {
  constexpr int64_t kMany = 1 << 12;
  if (x->numel() < kMany) return {};
  // A pair costs an exponential.
  if (kind == ScanKind::LogSumExp) return {.chunk = 4, .long_row = 4};
  return {.chunk = 8, .long_row = 1 << 14};
}

UOp in_parts(const UOp& x, int64_t parts, int64_t each, ScanKind kind) {
  Dims shape = dims(x);
  shape.back() = parts;
  shape.push_back(each);
  const UOp row = padded(x, 0, parts * each - x.shape().back(), nothing(kind, x.dtype()));
  return reshape(row, shape);
}

UOp joined_scans(const UOp& inside, int64_t size, ScanKind kind, const ScanChunks& chunks,
                 const std::function<UOp(const UOp&)>& at_hand) {
  const size_t last = last_of(inside);
  const int64_t parts = inside.shape()[last - 1], n = inside.shape().back();
  const UOp totals = at_hand(squeezed(part(inside, last, n - 1, n), last));
  UOp out = inside;
  if (kind == ScanKind::Sum && is_float(inside.dtype())) {
    for (const UOp& before : sums_before(totals))
      out = binary(Op::Add, repeated_along(before, n), out);
  } else {
    UOp scanned = totals_up_to_each(totals, kind, chunks);
    // The rounds of a long row would be computed once for each element of a part.
    if (parts >= chunks.long_row) scanned = contiguous(scanned);
    const UOp before =
        padded(part(scanned, last - 1, 0, parts - 1), 1, 0, nothing(kind, inside.dtype()));
    out = combined(kind, repeated_along(before, n), inside);
  }
  Dims flat = dims(inside);
  flat.pop_back();
  flat.back() = parts * n;
  return part(reshape(out, flat), last - 1, 0, size);
}

UOp places_of(const UOp& best, const std::function<UOp(const UOp&)>& scanned) {
  const size_t last = last_of(best);
  const int64_t n = best.shape().back();
  const UOp before = padded(part(best, last, 0, n - 1), 1, 0, const_like(best, 0));
  UOp changed = binary(Op::CmpNe, best, before);
  // NaN, once reached, stays.
  if (is_float(best.dtype())) {
    const UOp known =
        binary(Op::Or, binary(Op::CmpEq, best, best), binary(Op::CmpEq, before, before));
    changed = binary(Op::And, changed, known);
  }
  const UOp place = iota_along(best.shape(), last, DType::I32);
  // A whole chunk reads each of them.
  return scanned(contiguous(where(changed, place, zeros_like(place))));
}

namespace {

UOp spelled_along_last(const UOp& x, const ScanArg& arg, const ScanChunks& chunks) {
  const Dims last{int64_t(last_of(x))};
  if (arg.reverse) return flip(totals_up_to_each(flip(x, last), arg.kind, chunks), last);
  const bool best = arg.kind == ScanKind::Max || arg.kind == ScanKind::Min;
  UOp totals = totals_up_to_each(best ? detach(x) : x, arg.kind, chunks);
  if (!best || (!arg.places && !is_float(x.dtype()))) return totals;
  const UOp places = places_of(
      totals, [&](const UOp& at) { return totals_up_to_each(at, ScanKind::Max, chunks); });
  // The elements themselves: the first of equal zeros, whatever its sign.
  return arg.places ? places : UOp::make(Op::Gather, x.dtype(), {x, places}, last);
}

}  // namespace

UOp spelled_scan(const UOp& x, const ScanArg& arg, const ScanChunks& chunks) {
  const int64_t last = int64_t(last_of(x));
  if (arg.axis == last) return spelled_along_last(x, arg, chunks);
  Dims order, back(x.shape().size());
  for (int64_t d = 0; d <= last; ++d) {
    if (d != arg.axis) order.push_back(d);
  }
  order.push_back(arg.axis);
  for (size_t i = 0; i < order.size(); ++i) back[size_t(order[i])] = int64_t(i);
  return permute(spelled_along_last(permute(x, order), arg, chunks), back);
}

}  // namespace tinyshard
