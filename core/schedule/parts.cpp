// The walk goes from the whole down to the values that `ends` names, and carries along where in the
// whole an element lies, as strides. A sum of pads is a concatenation if the boxes do not overlap
// and together have as many elements as the whole. A view that strides cannot say ends it.
#include "core/schedule/parts.h"

#include <algorithm>

#include "core/uop/args.h"

namespace tinyshard {
namespace {

// Returns a view of the same elements in the same order with another shape; nothing if no strides
// say where they lie. None of the shapes is empty.
std::optional<StridedView> reshaped(const StridedView& view, DimSpan shape) {
  StridedView result{view.offset, Dims(shape.begin(), shape.end()), Dims(shape.size())};
  // Dims are matched in groups of equal product. Within a group all elements have to lie evenly.
  size_t f = 0, t = 0;
  while (f < view.shape.size() || t < shape.size()) {
    size_t f0 = f, t0 = t;
    int64_t pf = f < view.shape.size() ? view.shape[f++] : 1,
            pt = t < shape.size() ? shape[t++] : 1;
    while (pf != pt) {
      if (pf < pt)
        pf *= view.shape[f++];
      else
        pt *= shape[t++];
    }
    auto joint = joint_stride(view, f0, f);
    if (!joint) return std::nullopt;
    int64_t stride = std::max<int64_t>(*joint, 1);
    for (size_t i = t; i-- > t0; stride *= shape[i]) result.strides[i] = stride;
  }
  return result;
}

// A term of a sum: zero outside of [low, high).
struct Term {
  UOp value;  // of that size
  Dims low, high;
};

bool overlap(const Term& a, const Term& b) {
  for (size_t i = 0; i < a.low.size(); ++i) {
    if (a.high[i] <= b.low[i] || b.high[i] <= a.low[i]) return false;
  }
  return true;
}

class Parts {
 public:
  explicit Parts(const std::function<bool(const UOp&)>& ends) : ends_(ends) {}

  // Looks into x, whose elements lie at `view`; false where they are no parts.
  bool look_into(const UOp& x, const StridedView& view) {
    switch (x.op()) {
      case Op::Contiguous:
        return place(x.src(0), view);
      case Op::Reshape: {
        auto inner = reshaped(view, x.src(0).shape());
        return inner && place(x.src(0), *inner);
      }
      case Op::Permute: {
        StridedView inner = view;
        for (size_t i = 0; i < x->arg().size(); ++i) {
          inner.shape[size_t(x->arg()[size_t(i)])] = view.shape[i];
          inner.strides[size_t(x->arg()[size_t(i)])] = view.strides[i];
        }
        return place(x.src(0), inner);
      }
      case Op::Add:
      case Op::Or:
      case Op::Pad:
        return place_terms(x, view);
      default:
        return false;
    }
  }
  std::vector<Part> take() { return std::move(found_); }

 private:
  bool place(const UOp& x, const StridedView& view) {
    if (!ends_(x)) return look_into(x, view);
    found_.push_back({x, view});
    return true;
  }

  bool place_terms(const UOp& sum, const StridedView& view) {
    DimSpan shape = sum.shape();
    std::vector<Term> terms;
    auto is = [&](const UOp& y, Op op) { return y.op() == op && (y == sum || !ends_(y)); };
    // Terms cover the sum if they do not overlap and together have as many elements as it. The walk
    // uses a list, so a long sum needs no deep stack. It ends when two terms overlap.
    int64_t elements = 0;
    for (std::vector<UOp> rest{sum}; !rest.empty();) {
      UOp x = rest.back();
      rest.pop_back();
      if (is(x, Op::Add) || is(x, Op::Or)) {
        rest.push_back(x.src(1));
        rest.push_back(x.src(0));
        continue;
      }
      Term term{x, Dims(shape.size()), Dims(shape.begin(), shape.end())};
      for (; is(term.value, Op::Pad); term.value = term.value.src(0)) {
        for (size_t i = 0; i < shape.size(); ++i) {
          term.low[i] += bounds_arg(*term.value).low(i);
          term.high[i] -= bounds_arg(*term.value).high(i);
        }
      }
      if (term.value->numel() == 0) return false;
      elements += term.value->numel();
      if (elements > sum->numel()) return false;
      if (std::ranges::any_of(terms, [&](const Term& other) { return overlap(term, other); }))
        return false;
      terms.push_back(std::move(term));
    }
    if (elements != sum->numel()) return false;
    return std::ranges::all_of(terms, [&](const Term& term) {
      DimSpan size = term.value.shape();
      StridedView box{view.offset, Dims(size.begin(), size.end()), view.strides};
      for (size_t i = 0; i < size.size(); ++i) box.offset += term.low[i] * view.strides[i];
      return place(term.value, box);
    });
  }

  const std::function<bool(const UOp&)>& ends_;
  std::vector<Part> found_;
};

}  // namespace

std::optional<std::vector<Part>> parts_of(const UOp& whole,
                                          const std::function<bool(const UOp&)>& ends) {
  if (whole->numel() == 0) return std::nullopt;
  Parts parts(ends);
  if (!parts.look_into(whole, row_major(whole.shape()))) return std::nullopt;
  return parts.take();
}

}  // namespace tinyshard
