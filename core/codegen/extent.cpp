// An extent is read off the masks, from the store or fold downwards: a conjunction admits what all
// of its parts admit, a product of zeros is zero, a sum of nothing is nothing. A comparison counts
// where one side is the range, divided by a constant or moved by one, and the other side is the
// same for all values of all ranges:
//
//   r / c + k < n    is    r < c * n - c * k
//   n < r / c + k    is    r >= c * n + c * (1 - k)
#include "core/codegen/extent.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/rewrite/fold.h"
#include "core/uop/args.h"

namespace tinyshard::codegen {
namespace {

// floor(range / divisor) + offset
struct Place {
  int64_t divisor = 1, offset = 0;
};

class Masks {
 public:
  Masks(const Graph& graph, int range, bool constants)
      : graph_(graph), range_(range), constants_(constants) {}

  // Returns the extent that is admitted where `condition` has to be `wanted`.
  Extent of_condition(int condition, bool wanted) const {
    const KernelNode& n = graph_[condition];
    if (n.dtype != DType::Bool || !(n.varies & bit(range_)) || --steps_ < 0) return {};
    auto source = [&](int i) { return graph_.source(condition, i); };
    switch (n.op) {
      case Op::Not:
        return of_condition(source(0), !wanted);
      case Op::And:
        if (wanted) return both(of_condition(source(0), true), of_condition(source(1), true));
        return {};
      case Op::Or:
        if (!wanted) return both(of_condition(source(0), false), of_condition(source(1), false));
        return {};
      case Op::CmpLt:
        return of_comparison(condition, source(0), source(1), wanted);
      case Op::CmpEq:
        return wanted ? of_equality(condition, source(0), source(1)) : Extent();
      case Op::CmpNe:
        return wanted ? Extent() : of_equality(-1, source(0), source(1));
      default:
        return {};
    }
  }

  // Where `value` is anything but the identity of the reduction.
  Extent of_value(int value, ReduceOp op) const {
    const KernelNode& n = graph_[value];
    if (!(n.varies & bit(range_)) || --steps_ < 0) return {};
    auto source = [&](int i) { return graph_.source(value, i); };
    const bool zero = info(op).start == ReduceInfo::Start::Zero;
    switch (n.op) {
      case Op::Where:
        if (is_identity(source(2), op))
          return both(of_condition(source(0), true), of_value(source(1), op));
        if (is_identity(source(1), op))
          return both(of_condition(source(0), false), of_value(source(2), op));
        return {};
      case Op::Load:
        if (!zero || n.source_count < 3) return {};
        return of_condition(source(2), true);
      case Op::Cast: {
        const bool floats = is_float(n.dtype) && is_float(graph_[source(0)].dtype);
        const bool integers = !is_float(n.dtype) && !is_float(graph_[source(0)].dtype);
        const bool keeps = zero ? floats || integers : floats;
        return keeps ? of_value(source(0), op) : Extent();
      }
      case Op::Mul:  // zero times anything may be NaN
        if (!zero) return {};
        return common(of_value(source(0), op), of_value(source(1), op));
      case Op::Add:
        if (!zero) return {};
        return common(of_value(source(0), op), of_value(source(1), op));
      case Op::Fold:
        if (fold_arg(graph_.node(value)).op != op) return {};
        return of_value(source(0), op);
      default:
        return {};
    }
  }

  // both() is what lies in both; common() holds what lies in either, where that has a simple form.
  static Extent both(Extent a, const Extent& b) {
    auto add = [](auto& to, const auto& from) {
      for (const auto& x : from) {
        if (std::ranges::find(to, x) == to.end()) to.push_back(x);
      }
    };
    add(a.low, b.low);
    add(a.high, b.high);
    add(a.conditions, b.conditions);
    return a;
  }
  static Extent common(const Extent& a, const Extent& b) {
    Extent out;
    auto keep = [](auto& to, const auto& one, const auto& other) {
      for (const auto& x : one) {
        if (std::ranges::find(other, x) != other.end()) to.push_back(x);
      }
    };
    keep(out.low, a.low, b.low);
    keep(out.high, a.high, b.high);
    if (out.low.size() == a.low.size() && out.high.size() == a.high.size())
      out.conditions = a.conditions;
    if (out.low.size() == b.low.size() && out.high.size() == b.high.size())
      out.conditions.insert(out.conditions.end(), b.conditions.begin(), b.conditions.end());
    return out;
  }

 private:
  bool is_bound(int node) const {
    const KernelNode& n = graph_[node];
    return n.varies == 0 && n.dtype != DType::Bool && !is_float(n.dtype) && n.dtype != DType::U64 &&
           (n.has_load || constants_) && !has_fold(node);
  }

  // A reduced value is not there before its loops.
  bool has_fold(int node) const {
    if (graph_[node].op == Op::Fold || --steps_ < 0) return true;
    return std::ranges::any_of(graph_.sources(node), [&](int s) { return has_fold(s); });
  }

  std::optional<Place> place(int node) const {
    const KernelNode& n = graph_[node];
    if (n.dtype == DType::Index) {
      const Form& form = graph_.form(node);
      if (form.terms.size() != 1 || form.terms[0].coefficient != 1) return {};
      const int term = form.terms[0].node;
      if (graph_[term].range == range_) return Place{1, form.constant};
      if (graph_[term].op != Op::IDiv) return {};
      const Form &inner = graph_.form(graph_.source(term, 0)),
                 &by = graph_.form(graph_.source(term, 1));
      const bool simple = inner.terms.size() == 1 && inner.constant == 0 &&
                          inner.terms[0].coefficient == 1 &&
                          graph_[inner.terms[0].node].range == range_;
      if (!simple || !by.terms.empty() || by.constant <= 0) return {};
      return Place{by.constant, form.constant};
    }
    if (n.op == Op::Cast && (n.dtype == DType::I32 || n.dtype == DType::I64)) {
      auto at = place(graph_.source(node, 0));
      const bool exact = at && graph_.range(range_).size + std::abs(at->offset) < INT32_MAX;
      return exact ? at : std::nullopt;
    }
    if (n.op == Op::Add && (n.dtype == DType::I32 || n.dtype == DType::I64)) {
      for (int i : {0, 1}) {
        const KernelNode& moved = graph_[graph_.source(node, i)];
        // A constant that comes with the call may be another one at the next call.
        const bool is_known = moved.op == Op::Const && moved.scalar < 0;
        auto at = is_known ? place(graph_.source(node, 1 - i)) : std::nullopt;
        constexpr int64_t kFar = 1 << 30;
        if (!at || std::abs(const_bits(*moved.uop)) > kFar || at->offset != 0) continue;
        return Place{at->divisor, const_bits(*moved.uop)};
      }
    }
    return {};
  }

  Extent of_comparison(int condition, int a, int b, bool wanted) const {
    if (auto left = place(a); left && is_bound(b)) {
      const int64_t c = left->divisor, k = left->offset;
      Extent out{{}, {}, {}};
      if (wanted)
        out.high.push_back({b, c, -c * k});
      else
        out.low.push_back({b, c, -c * k});
      if (wanted) out.conditions.push_back(condition);
      return out;
    }
    if (auto right = place(b); right && is_bound(a)) {
      const int64_t c = right->divisor, k = right->offset;
      Extent out{{}, {}, {}};
      if (wanted)
        out.low.push_back({a, c, c * (1 - k)});
      else
        out.high.push_back({a, c, c * (1 - k)});
      if (wanted) out.conditions.push_back(condition);
      return out;
    }
    return {};
  }

  Extent of_equality(int condition, int a, int b) const {
    if (!place(a)) std::swap(a, b);
    auto at = place(a);
    if (!at || !is_bound(b)) return {};
    const int64_t c = at->divisor, k = at->offset;
    Extent out{{{b, c, -c * k}}, {{b, c, c * (1 - k)}}, {}};
    if (condition >= 0) out.conditions.push_back(condition);
    return out;
  }

  bool is_identity(int node, ReduceOp op) const {
    const KernelNode& n = graph_[node];
    if (n.op != Op::Const) return false;
    const UOp identity = identity_of(op, n.dtype);
    if (!is_float(n.dtype)) return const_bits(*n.uop) == const_bits(*identity);
    return is_const(UOp::make(Op::Const, n.dtype, {}, n.uop->arg()), const_as_double(identity));
  }

  const Graph& graph_;
  const int range_;
  const bool constants_;
  // Left of what may be asked: x * x of x * x of .. has as many ways down as two to their number.
  // Where none are left, what is asked about restricts nothing.
  mutable int steps_ = 10'000;
};

}  // namespace

const RangeBound* Extent::only_value() const {
  const auto found = std::ranges::find_if(low, [&](const RangeBound& first) {
    return std::ranges::any_of(high, [&](const RangeBound& end) {
      return end.node == first.node && end.scale == first.scale && end.offset <= first.offset + 1;
    });
  });
  return found == low.end() ? nullptr : &*found;
}

Extent extent_of_stores(const Graph& graph, const std::vector<int>& stores, int range) {
  std::optional<Extent> all;
  for (int store : stores) {
    if (graph[store].source_count < 4) return {};
    Extent own = Masks(graph, range, true).of_condition(graph.source(store, 3), true);
    all = all ? Masks::common(*all, own) : own;
  }
  return all.value_or(Extent());
}

Extent extent_of_folds(const Graph& graph, const std::vector<int>& folds, int range) {
  std::optional<Extent> all;
  for (int fold : folds) {
    const auto op = fold_arg(graph.node(fold)).op;
    Extent own = Masks(graph, range, false).of_value(graph.source(fold, 0), op);
    all = all ? Masks::common(*all, own) : own;
  }
  return all.value_or(Extent());
}

}  // namespace tinyshard::codegen
