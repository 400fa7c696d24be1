// Users before sources: a source is demanded wherever one of its users is, moved as the user moves
// it. Two users that end at different places demand all.
#include "core/rewrite/demand.h"

#include <algorithm>
#include <optional>

#include "core/uop/args.h"

namespace tinyshard {
namespace {

// The dim of `to` that is dim d of `from` after a reshape; -1 for none.
int reshaped_dim(DimSpan from, DimSpan to, size_t d) {
  const int64_t before = product(from.first(d));
  int64_t left = 1;
  for (size_t i = 0; i < to.size(); ++i) {
    if (left == before && to[i] == from[d] && from[d] != 1) return int(i);
    left *= to[i];
  }
  return -1;
}

// The dim along which x counts 0, 1, 2 ..; -1 for none.
int counting_dim(const UOp& x) {
  switch (x.op()) {
    case Op::Iota:
      return 0;
    case Op::Cast:
      return is_int(x.dtype()) && itemsize(x.dtype()) >= 4 && is_int(x.src(0).dtype())
                 ? counting_dim(x.src(0))
                 : -1;
    case Op::Reshape: {
      const int d = counting_dim(x.src(0));
      return d < 0 ? -1 : reshaped_dim(x.src(0).shape(), x.shape(), size_t(d));
    }
    case Op::Expand: {
      const int d = counting_dim(x.src(0));
      return d >= 0 && x.shape()[size_t(d)] == x.src(0).shape()[size_t(d)] ? d : -1;
    }
    case Op::Permute: {
      const int d = counting_dim(x.src(0));
      return d < 0 ? -1 : int(std::ranges::find(x->arg(), d) - x->arg().begin());
    }
    default:
      return -1;
  }
}

// Limit of the steps that a question about a condition or a number may take. A graph that needs
// more is no size of a tensor, or has shared parts, which would be asked about once for each way
// that leads to them.
constexpr int kSteps = 200;

bool is_computed_of_buffers(const UOp& x, int& steps) {
  if (--steps < 0) return false;
  if (x.op() == Op::Buffer || x.op() == Op::Const) return true;
  // Brought over from another device it is as well known there.
  const bool moves = x.op() == Op::Reshape || x.op() == Op::CopyIn;
  if (!moves && !is_elementwise(x.op())) return false;
  return x->numel() == 1 && std::ranges::all_of(x->src(), [&](const UOp& s) {
           return is_computed_of_buffers(s, steps);
         });
}

// The one number that x repeats, if it is known before the kernels and not a constant.
std::optional<UOp> number(const UOp& x) {
  UOp one = x;
  while (one->numel() != 1 || one.op() == Op::Expand || one.op() == Op::Reshape) {
    if (one.op() != Op::Expand && one.op() != Op::Reshape) return std::nullopt;
    one = one.src(0);
  }
  const bool integer = is_signed_int(one.dtype()) && itemsize(one.dtype()) >= 4;
  int steps = kSteps;
  if (!integer || is_const(one) || !is_computed_of_buffers(one, steps)) return std::nullopt;
  return one;
}

std::vector<UOp> both(std::vector<UOp> a, const std::vector<UOp>& b) {
  if (a.empty()) return b;
  for (size_t d = 0; d < b.size(); ++d) {
    if (!a[d]) a[d] = b[d];
  }
  return a;
}

bool any(const std::vector<UOp>& dims) {
  return std::ranges::any_of(dims, [](const UOp& n) { return bool(n); });
}

// Returns what a movement op demands of its source.
std::vector<UOp> moved_back(const UOp& x, const std::vector<UOp>& dims) {
  const DimSpan from = x.src(0).shape();
  std::vector<UOp> out(from.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!dims[d]) continue;
    switch (x.op()) {
      case Op::Reshape:
        if (int source = reshaped_dim(x.shape(), from, d); source >= 0)
          out[size_t(source)] = dims[d];
        break;
      case Op::Expand:
        if (from[d] == x.shape()[d]) out[d] = dims[d];
        break;
      case Op::Permute:
        out[size_t(x->arg()[size_t(d)])] = dims[d];
        break;
      case Op::Pad:
      case Op::Shrink:
        if (bounds_arg(*x).low(d) == 0) out[d] = dims[d];
        break;
      case Op::Flip:
        if (std::ranges::find(x->arg(), int64_t(d)) == x->arg().end()) out[d] = dims[d];
        break;
      default:
        break;
    }
  }
  return out;
}

std::vector<UOp> places_below(const UOp& c, bool wanted, int& steps) {
  std::vector<UOp> none;
  if (--steps < 0) return none;
  auto along = [&](const UOp& counts, const UOp& n) {
    const int dim = counting_dim(counts);
    if (dim < 0 || !n) return none;
    std::vector<UOp> dims(c.shape().size());
    dims[size_t(dim)] = n;
    return dims;
  };
  switch (c.op()) {
    case Op::Not:
      return places_below(c.src(0), !wanted, steps);
    case Op::And:
      if (!wanted) return none;
      return both(places_below(c.src(0), true, steps), places_below(c.src(1), true, steps));
    case Op::Or:
      if (wanted) return none;
      return both(places_below(c.src(0), false, steps), places_below(c.src(1), false, steps));
    case Op::CmpLt: {
      if (is_float(c.src(0).dtype())) return none;
      auto n = number(c.src(wanted ? 1 : 0));
      if (!n) return none;
      if (wanted) return along(c.src(0), *n);
      return along(c.src(1), binary(Op::Add, *n, const_int(n->dtype(), 1, n->shape())));
    }
    case Op::Reshape:
    case Op::Expand:
    case Op::Permute: {
      const std::vector<UOp> inner = places_below(c.src(0), wanted, steps);
      if (inner.empty()) return none;
      std::vector<UOp> dims(c.shape().size());
      const DimSpan from = c.src(0).shape();
      for (size_t d = 0; d < inner.size(); ++d) {
        if (!inner[d]) continue;
        int to = int(d);
        if (c.op() == Op::Reshape) to = reshaped_dim(from, c.shape(), d);
        if (c.op() == Op::Permute)
          to = int(std::ranges::find(c->arg(), int64_t(d)) - c->arg().begin());
        if (to >= 0) dims[size_t(to)] = inner[d];
      }
      return any(dims) ? dims : none;
    }
    default:
      return none;
  }
}

}  // namespace

std::vector<UOp> places_below(const UOp& condition, bool wanted) {
  int steps = kSteps;
  return places_below(condition, wanted, steps);
}

bool is_mask(const UOp& x) {
  if (x.op() != Op::Where || !(is_const(x.src(1)) || is_const(x.src(2)))) return false;
  return any(places_below(x.src(0), is_const(x.src(2))));
}

Demand::Demand(std::span<const UOp> order, std::span<const UOp> roots) {
  if (std::ranges::none_of(order, is_mask)) return;
  demanded_ = NodeMap<std::vector<UOp>>(order.size());
  for (const UOp& root : roots) demanded_[root] = std::vector<UOp>(root.shape().size());
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& x = order[i];
    const std::vector<UOp>* found = demanded_.find(x);
    const std::vector<UOp> dims = found ? *found : std::vector<UOp>(x.shape().size());
    auto all_of = [&](const UOp& s) { add(s, std::vector<UOp>(s.shape().size())); };
    if (x.op() == Op::Where) {
      add(x.src(0), dims);
      add(x.src(1), both(dims, places_below(x.src(0), true)));
      add(x.src(2), both(dims, places_below(x.src(0), false)));
    } else if (is_elementwise(x.op()) || x.op() == Op::Contiguous) {
      for (const UOp& s : x->src()) add(s, dims);
    } else if (is_movement(x.op()) && x.op() != Op::ShardSlice) {
      add(x.src(0), moved_back(x, dims));
    } else if (x.op() == Op::Reduce) {
      std::vector<UOp> inner = dims;
      for (int64_t axis : reduce_arg(*x).axes) inner[size_t(axis)] = UOp();
      add(x.src(0), inner);
    } else if (x.op() == Op::Dot) {
      std::vector<UOp> a = dims, b = dims;
      a.back() = b[b.size() - 2] = UOp();
      add(x.src(0), a);
      add(x.src(1), b);
      for (const UOp& s : x->src().subspan(2)) all_of(s);
    } else {
      for (const UOp& s : x->src()) all_of(s);
    }
  }
}

void Demand::add(const UOp& x, std::vector<UOp> dims) {
  if (dims.empty()) dims.resize(x.shape().size());
  std::vector<UOp>* mine = demanded_.find(x);
  if (!mine) {
    demanded_[x] = std::move(dims);
    return;
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    if ((*mine)[d] && !((*mine)[d] == dims[d])) (*mine)[d] = UOp();
  }
}

std::span<const UOp> Demand::of(const UOp& x) const {
  const std::vector<UOp>* found = demanded_.find(x);
  if (!found || !any(*found)) return {};
  return *found;
}

}  // namespace tinyshard
