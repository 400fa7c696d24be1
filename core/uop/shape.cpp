// The shape of each op's result from its sources and arguments, and the errors where these do not fit:
//
//   dot f32[4, 2, 3] f32[4, 3, 5]      f32[4, 2, 5]
//   shrink f32[6, 4] {1, 3, 0, 4}      f32[2, 4]
#include "core/uop/shape.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/uop/args.h"
#include "core/uop/product_region.h"
#include "core/uop/scan.h"

namespace tinyshard {
namespace {

[[noreturn]] void misfit(Op op, std::span<const UOp> src, DimSpan arg, const char* why) {
  std::string text = fmt::format("{}{}: {}; sources", info(op).name, to_string(arg), why);
  for (const UOp& s : src) text += s ? " " + describe(*s) : " null";
  throw InternalError(text);
}

Dims copy(DimSpan dims) { return {dims.begin(), dims.end()}; }

void swap_heads(Dims& dims) { std::swap(dims[dims.size() - 3], dims[dims.size() - 2]); }

int64_t ceil_div(int64_t a, int64_t b) { return a / b + (a % b != 0); }

}  // namespace

void check_size(DimSpan shape, DType dtype) {
  if (checked_bytes(shape, itemsize(dtype)) && shape.size() <= kMaxRank) [[likely]]
    return;
  if (std::ranges::any_of(shape, [](int64_t d) { return d < 0; }))
    fail(fmt::format("shape {} has a negative size", to_string(shape)));
  if (shape.size() > kMaxRank)
    fail(fmt::format("a shape of {} dims; there are at most {}", shape.size(), kMaxRank));
  fail(fmt::format("{}{} is too large: elements and bytes must stay below 2^62", name(dtype),
                   to_string(shape)));
}

namespace {

// Returns the shape of the ops that change that of their first source.
Dims changed_shape(Op op, DType dtype, std::span<const UOp> src, DimSpan arg, const void* payload) {
  auto need = [&](bool holds, const char* why) {
    if (!holds) misfit(op, src, arg, why);
  };
  Dims s = src.empty() ? Dims{} : copy(src[0].shape());
  switch (op) {
    case Op::Permute: {
      need(arg.size() == s.size(), "rank differs");
      const DimSpan from = src[0].shape();
      uint64_t seen = 0;
      for (size_t i = 0; i < arg.size(); ++i) {
        const int64_t axis = arg[i];
        need(axis >= 0 && axis < int64_t(s.size()) && !(seen >> axis & 1), "not a permutation");
        seen |= uint64_t{1} << axis;
        s[i] = from[size_t(axis)];
      }
      return s;
    }
    case Op::Pad:
    case Op::Shrink:
      need(arg.size() == 2 * s.size(), "a pair for each dim");
      for (size_t i = 0; i < s.size(); ++i) {
        int64_t lo = arg[2 * i], hi = arg[2 * i + 1];
        if (op == Op::Pad) {
          need(lo >= 0 && hi >= 0, "negative padding");
          s[i] = add_sizes(s[i], add_sizes(lo, hi));
        } else {
          need(0 <= lo && lo <= hi && hi <= s[i], "outside of the dim");
          s[i] = hi - lo;
        }
      }
      return s;
    case Op::ShardSlice:
      need(arg.size() == 3 && arg[0] < int64_t(s.size()), "axis, mesh axis and parts");
      // -parts: the value whose parts these are (multi/per_device.h)
      s[arg[0]] = arg[2] < 0 ? multiply_sizes(s[arg[0]], -arg[2]) : ceil_div(s[arg[0]], arg[2]);
      return s;
    case Op::Reduce:
      for (int64_t axis : arg.subspan(1)) {
        need(axis >= 0 && axis < int64_t(s.size()), "axis out of range");
        s[axis] = 1;
      }
      return s;
    case Op::Gather: {
      Dims out = copy(src[1].shape());
      need(!arg.empty() && out.size() == s.size() && arg[0] < int64_t(s.size()), "ranks differ");
      need(arg.size() == 1 || (arg.size() == 2 && arg[0] + 1 == int64_t(s.size())),
           "only the last dim is sorted");
      for (size_t i = 0; i < s.size(); ++i)
        need(int64_t(i) == arg[0] || out[i] <= s[i], "index is larger than x");
      return out;
    }
    case Op::ScatterAdd: {
      need(src.size() == 2 || src.size() == 3, "wrong number of sources");
      const bool reduces = arg.size() == 2 || (arg.size() == 3 && src.size() == 2);
      need(reduces || (arg.size() == 4 && src.size() == 3), "axis, size and reduction");
      need(std::ranges::equal(s, src[1].shape()), "index and source differ");
      s[arg[0]] = arg[1];
      need(src.size() == 2 || std::ranges::equal(s, src[2].shape()), "base and result differ");
      return s;
    }
    case Op::Sort:
      need(arg.size() == 1 && !s.empty() && arg[0] >= 0 && arg[0] <= s.back(),
           "how many places of a row");
      s.back() = arg[0];
      return s;
    case Op::Scan:
      need(arg.size() == 4 && arg[0] >= 0 && arg[0] <= int64_t(ScanKind::LogSumExp) &&
               arg[1] >= 0 && arg[1] < int64_t(s.size()),
           "which totals along which dim");
      need((!arg[2] || ScanKind(arg[0]) == ScanKind::Sum) &&
               (!arg[3] || ScanKind(arg[0]) == ScanKind::Max || ScanKind(arg[0]) == ScanKind::Min),
           "sums are reversed, and maxima have places");
      return s;
    case Op::Decompose: {
      need(arg.size() == 2 && arg[0] >= 0 && arg[0] <= int64_t(Factor::V) && s.size() >= 2,
           "which factor of a matrix");
      const int64_t m = s[s.size() - 2], n = s.back(), least = std::min(m, n);
      const bool full = arg[1] != 0;
      s.pop_back();
      switch (Factor(arg[0])) {
        case Factor::Q:
          s.back() = m, s.push_back(m);
          break;
        case Factor::R:
          s.back() = m, s.push_back(n);
          break;
        case Factor::U:
          s.back() = m, s.push_back(full ? m : least);
          break;
        case Factor::S:
          s.back() = least;
          break;
        case Factor::V:
          s.back() = full ? n : least, s.push_back(n);
          break;
      }
      return s;
    }
    case Op::Dot: {
      const auto* region = static_cast<const ProductRegion*>(payload);
      need(region ? src.size() >= 2 : src.size() == 2, "wrong number of sources");
      need(region ? arg.size() == 2 && arg[1] == region->number : arg.size() == 1,
           "batch axes, and the number of a region where there is one");
      DimSpan b = src[1].shape();
      size_t batch = arg[0], rank = batch + 2;
      need(s.size() == rank && b.size() == rank, "ranks differ");
      for (size_t i = 0; i < batch; ++i) need(s[i] == b[i], "batch dims differ");
      need(s[rank - 1] == b[rank - 2], "inner sizes differ");
      s[rank - 1] = b[rank - 1];
      if (region) {
        const char* why = region->misfit(dtype, s, src.subspan(2));
        need(!why, why);
      }
      return s;
    }
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight:
      need(arg.size() == ConvArg::kInts && s.size() == 4 && src[1].shape().size() == 4,
           "four dims");
      return copy(arg.last(4));
    case Op::Attention: {
      need(src.size() == 3 || src.size() == 4, "q, k, v, perhaps positions");
      DimSpan k = src[1].shape(), v = src[2].shape();
      size_t rank = s.size();
      need(arg.size() == 4 && arg[0] >= 0 && arg[0] < 2, "which result, causal, scale, order");
      need(rank >= 2 && k.size() == rank && v.size() == rank, "ranks differ");
      for (size_t i = 0; i + 2 < rank; ++i) {
        const bool shared = i + 3 == rank && k[i] > 0 && s[i] % k[i] == 0;
        need((s[i] == k[i] || shared) && k[i] == v[i], "batch dims differ");
      }
      need(src.size() == 3 || std::ranges::equal(src[3].shape(), Dims{s[rank - 2]}),
           "a position for each row");
      need(s[rank - 1] == k[rank - 1] && k[rank - 2] == v[rank - 2], "inner sizes differ");
      s[rank - 1] = arg[0] == 0 ? v[rank - 1] : 1;
      need(!arg[3] || rank > 2, "no heads to swap");
      if (arg[3]) swap_heads(s);
      return s;
    }
    case Op::AttentionBackward: {
      need(src.size() == 6 || src.size() == 7, "six operands, perhaps positions");
      need(arg.size() == 4 && arg[0] >= 0 && arg[0] < 3, "which result, causal, scale, order");
      need(std::ranges::equal(src[3].shape(), src[5].shape()), "result and gradient differ");
      s = copy(src[arg[0]].shape());
      need(!arg[3] || s.size() > 2, "no heads to swap");
      if (arg[3]) swap_heads(s);
      return s;
    }
    case Op::Unfold:
    case Op::UnfoldBackward: {
      const bool back = op == Op::UnfoldBackward;
      need(arg.size() == 4 && s.size() >= (back ? 2u : 1u), "kernel, stride, dilation, size");
      const int64_t kernel = arg[0], reach = arg[2] * (kernel - 1) + 1;
      need(kernel > 0 && arg[1] > 0 && arg[2] > 0, "kernel, stride and dilation are positive");
      const int64_t n = back ? arg[3] : s.back();
      const int64_t most = n < reach ? 0 : (n - reach) / arg[1] + 1;
      if (back) {
        need(s.back() == kernel && s[s.size() - 2] <= most,
             "the windows are not those of the size");
        s.pop_back();
        s.back() = n;
      } else {
        s.back() = most;
        s.push_back(kernel);
      }
      return s;
    }
    case Op::Collective:  // {CollectiveOp, ReduceOp, mesh axis, parts, has parts before, has parts
                          // after}, a broadcast's root, a timed gather's block, prefetch and
                          // keep, or an exchange's rows
      need(arg.size() >= 6, "six integers at least");
      if (arg.size() > 7 && arg.size() != 9) {
        need(!s.empty() && arg.size() % 3 == 1, "rows received, then transfers of rows");
        s[0] = arg[6];
      }
      if (arg[4]) {
        need(!s.empty() && s[0] == arg[3], "the first dim counts the parts");
        s.erase(s.begin());
      }
      if (arg[5]) s.insert(s.begin(), arg[3]);
      return s;
    case Op::CopyIn:  // {(axis, mesh axis, parts)...}, or {times} between meshes, where
                      // the first dim repeats what is sent to several devices; 0: there is none;
                      // or {mesh axis, other mesh axis} that change places; or {kFromItsPlace}
                      // or {kFromPlaces, places..}, which the first dim counts
      if (arg.size() > 1 && arg[0] == kFromPlaces) {
        s.insert(s.begin(), int64_t(arg.size()) - 1);
        return s;
      }
      if (arg.size() == 1 && arg[0] > 0) s.erase(s.begin());
      for (size_t i = 0; i + 2 < arg.size(); i += 3) s[arg[i]] = ceil_div(s[arg[i]], arg[i + 2]);
      return s;
    default:
      return s;
  }
}

}  // namespace

DimSpan infer_shape(Op op, DType dtype, std::span<const UOp> src, DimSpan arg, const void* payload,
                    Dims& room) {
  auto need = [&](bool holds, const char* why) {
    if (!holds) misfit(op, src, arg, why);
  };
  const OpInfo& facts = info(op);
  need(facts.arity < 0 || src.size() == static_cast<size_t>(facts.arity),
       "wrong number of sources");
  for (const UOp& s : src) need(bool(s), "null source");
  if (op == Op::Sink) return arg;  // of a kernel within a graph: core/uop/own_kernel.h
  if (facts.op_class == OpClass::Kernel) return {};
  const DimSpan first = src.empty() ? DimSpan() : src[0].shape();
  if (facts.op_class == OpClass::Elementwise) {
    for (const UOp& s : src) need(std::ranges::equal(s.shape(), first), "shapes differ");
    return first;
  }
  switch (op) {
    case Op::Const:
    case Op::Buffer:
      need(!arg.empty(), "argument missing");
      return arg.subspan(1);
    case Op::Iota:
      need(arg.size() == 1 && arg[0] >= 0, "length missing");
      return arg;
    case Op::Reshape:
      check_size(arg, src[0].dtype());
      need(product(arg) == product(first), "number of elements differs");
      return arg;
    case Op::Expand:
      need(arg.size() == first.size(), "rank differs");
      for (size_t i = 0; i < first.size(); ++i)
        need(first[i] == arg[i] || first[i] == 1, "only a dim of size 1 expands");
      return arg;
    case Op::Flip:
      for (int64_t axis : arg) need(axis >= 0 && axis < int64_t(first.size()), "axis out of range");
      return first;
    case Op::Identity:
    case Op::Detach:
    case Op::Contiguous:
      return first;
    case Op::Assign:
      need(std::ranges::equal(first, src[1].shape()), "shapes differ");
      return first;
    default:
      room = changed_shape(op, dtype, src, arg, payload);
      return room;
  }
}

Bounds infer_bounds(Op op, DType dtype, std::span<const UOp> src, DimSpan arg) {
  constexpr int64_t kFar = int64_t{1} << 62;
  constexpr Bounds kAny{-kFar, kFar};
  auto clamp = [](__int128 x) { return int64_t(x < -kFar ? -kFar : x > kFar ? kFar : x); };
  auto of = [&](size_t i) { return Bounds{src[i]->low, src[i]->high}; };
  if (is_float(dtype)) return kAny;
  switch (op) {
    case Op::Const:
      return {std::max(-kFar, std::min(kFar, arg[0])), std::max(-kFar, std::min(kFar, arg[0]))};
    case Op::Range:
      return {0, std::max<int64_t>(arg[1] - 1, 0)};
    case Op::DeviceCoordinate:
      return {0, arg[1] - 1};
    case Op::Cast:
      return dtype == DType::Index && !is_float(src[0].dtype()) ? of(0) : kAny;
    default:
      break;
  }
  if (dtype == DType::Bool) {
    if (op == Op::CmpLt && !is_float(src[0].dtype())) {
      if (of(0).high < of(1).low) return {1, 1};
      if (of(0).low >= of(1).high) return {0, 0};
    }
    return {0, 1};
  }
  if (dtype != DType::Index) return kAny;
  switch (op) {
    case Op::Neg:
      return {clamp(-__int128(of(0).high)), clamp(-__int128(of(0).low))};
    case Op::Add:
      return {clamp(__int128(of(0).low) + of(1).low), clamp(__int128(of(0).high) + of(1).high)};
    case Op::Sub:
      return {clamp(__int128(of(0).low) - of(1).high), clamp(__int128(of(0).high) - of(1).low)};
    case Op::Mul: {
      __int128 p[4] = {__int128(of(0).low) * of(1).low, __int128(of(0).low) * of(1).high,
                       __int128(of(0).high) * of(1).low, __int128(of(0).high) * of(1).high};
      return {clamp(*std::min_element(p, p + 4)), clamp(*std::max_element(p, p + 4))};
    }
    case Op::Max:
      return {std::max(of(0).low, of(1).low), std::max(of(0).high, of(1).high)};
    case Op::IDiv: {
      if (of(1).low <= 0 || of(1).low != of(1).high) return kAny;
      int64_t d = of(1).low;
      auto floor_div = [&](int64_t a) { return a >= 0 ? a / d : -((-a + d - 1) / d); };
      return {floor_div(of(0).low), floor_div(of(0).high)};
    }
    case Op::Mod: {
      if (of(1).low <= 0) return kAny;
      if (of(0).low >= 0 && of(0).high < of(1).low) return of(0);
      return {0, of(1).high - 1};
    }
    case Op::Where:
      return {std::min(of(1).low, of(2).low), std::max(of(1).high, of(2).high)};
    default:
      return kAny;
  }
}

}  // namespace tinyshard
