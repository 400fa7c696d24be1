// Lowering pushes index ranges from a value that gets memory down to the loads. Movement ops change the
// index, and leave no code of their own:
//
//   y = sum over axis 1 of (reshape x to [2, 3]).T, x of 6 elements in memory
//     y [i]                      i < 3
//     fold over k (2)            permute: index [k, i]; reshape: index 3 k + i
//     load x [3 k + i]
#include "core/schedule/lower.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/rewrite/affine.h"
#include "core/rewrite/type_facts.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

UOp add(const UOp& a, int64_t b) { return b == 0 ? a : binary(Op::Add, a, index_const(b)); }
UOp both(const UOp& a, const UOp& b) {
  if (!a) return b;
  if (!b || a == b) return a;
  return binary(Op::And, a, b);
}
bool always(const UOp& condition) { return !condition || is_const(condition, 1); }

// Deepest nesting of folds that encloses a place where `index` is evaluated. Fold ranges carry
// their level in the id, so that ranges of nested folds differ and those of sibling folds agree.
constexpr int64_t kLevelStride = 64;
int64_t fold_level(std::span<const UOp> expressions) {
  int64_t level = 0;
  for (const UOp& x : toposort(expressions)) {
    if (x.op() == Op::Range && range_arg(*x).kind == RangeKind::Fold)
      level = std::max(level, range_arg(*x).id / kLevelStride);
  }
  return level;
}

}  // namespace

UOp flat_index(DimSpan shape, std::span<const UOp> index) {
  UOp flat = index_const(0);
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1) flat = binary(Op::Add, binary(Op::Mul, index[i], index_const(stride)), flat);
    stride *= shape[i];
  }
  return flat;
}

size_t Lowering::IntsHash::operator()(const Dims& ints) const {
  uint64_t h = ints.size();
  for (int64_t n : ints) h = combine(h, uint64_t(n));
  return h;
}

size_t Lowering::KeyHash::operator()(const Key& key) const {
  uint64_t h = key.node->hash;
  for (const Node* n : key.index) h = combine(h, n ? n->id : 0);
  return h;
}

KernelDraft Lowering::kernel(const UOp& value, int buffer) {
  memo_.clear();
  alive_.clear();
  if (fold_origin_.size() > 0) fold_origin_ = NodeMap<UOp>();
  draft_ = KernelDraft();
  std::vector<UOp> index;
  for (size_t i = 0; i < value.shape().size(); ++i) {
    int64_t size = value.shape()[i];
    if (size == 1) {
      index.push_back(index_const(0));
    } else {
      index.push_back(range(int64_t(i), size, RangeKind::Loop));
      draft_.loops.push_back(index.back());
    }
  }
  root_ = value.get();
  UOp result = lower_new(value, index, UOp());
  draft_.outputs.push_back(
      {buffer, simplified_flat_index(value.shape(), index), simplify_(result)});
  if (UOp valid = demanded(value, index)) draft_.outputs.back().valid = simplify_(valid);
  return std::move(draft_);
}

const UOp& Lowering::simplified_flat_index(DimSpan shape, std::span<const UOp> index) {
  flat_key_.assign(shape.begin(), shape.end());
  for (const UOp& i : index) flat_key_.push_back(int64_t(i->id));
  auto [known, is_new] = flat_.try_emplace(flat_key_);
  if (is_new) known->second = simplify_(flat_index(shape, index));
  return known->second;
}

// Returns the mask of the elements of x that somebody looks at; null for all.
UOp Lowering::demanded(const UOp& x, const std::vector<UOp>& index) {
  UOp valid;
  std::span<const UOp> below = demand_.of(x);
  for (size_t d = 0; d < below.size(); ++d) {
    if (!below[d] || x.shape()[d] == 1) continue;
    // A bound that a kernel computes is left out, because that kernel might depend on this one. A
    // bound that is copied in depends on nothing.
    const NodeOrder needed = toposort(below.subspan(d, 1));
    if (std::ranges::any_of(needed, [&](const UOp& y) {
          return y.op() != Op::Buffer && y.op() != Op::CopyIn && fusion_.materialized(y);
        }))
      continue;
    UOp n = lower(below[d], std::vector<UOp>(below[d].shape().size(), index_const(0)), UOp());
    valid = both(valid, binary(Op::CmpLt, cast(index[d], n.dtype()), n));
  }
  return valid;
}

UOp Lowering::lower(const UOp& x, const std::vector<UOp>& index, const UOp& valid) {
  auto lowered = [&] {
    return x.get() != root_ && fusion_.materialized(x) ? load(x, index, valid)
                                                       : lower_new(x, index, valid);
  };
  if (fusion_.read_once(x)) return lowered();  // nobody asks again
  Key key{x.get(), {}};
  key.index.reserve(index.size() + 1);
  for (const UOp& i : index) key.index.push_back(i.get());
  key.index.push_back(valid.get());
  if (auto found = memo_.find(key); found != memo_.end()) return found->second;
  alive_.insert(alive_.end(), index.begin(), index.end());
  if (valid) alive_.push_back(valid);
  UOp result = lowered();
  memo_.emplace(std::move(key), result);
  return result;
}

UOp Lowering::load(const UOp& x, const std::vector<UOp>& index, const UOp& valid) {
  const int64_t slot = draft_.slot_for(buffer_of_(x));
  UOp param = UOp::make(Op::Param, x.dtype(), {}, DimSpan(&slot, 1));
  UOp flat = simplified_flat_index(x.shape(), index);
  // A single number is there wherever it is not wanted: a mask that tells places by it stays one.
  if (always(valid) || x->numel() == 1) return UOp::make(Op::Load, x.dtype(), {param, flat});
  return UOp::make(Op::Load, x.dtype(), {param, flat, simplify_(valid)});
}

// x at `index`, which only counts where `inside` holds: zero elsewhere.
UOp Lowering::guarded(const UOp& x, std::vector<UOp> index, const UOp& valid, const UOp& inside) {
  if (always(inside)) return lower(x, index, valid);
  UOp value = lower(x, index, simplify_(both(valid, inside)));
  if (value.op() == Op::Load && value->src().size() == 3) return value;  // the load gives the zero
  return where(inside, value, const_float(x.dtype(), 0));
}

std::vector<UOp> Lowering::through_reshape(DimSpan from, DimSpan to,
                                           const std::vector<UOp>& index) {
  // Dims are matched in groups of equal product, so that untouched dims keep their index as it is.
  std::vector<UOp> result(from.size());
  size_t f = 0, t = 0;
  while (f < from.size() || t < to.size()) {
    size_t f0 = f, t0 = t;
    int64_t pf = f < from.size() ? from[f++] : 1, pt = t < to.size() ? to[t++] : 1;
    while (pf != pt) {
      if ((pf < pt && f < from.size()) || t >= to.size())
        pf *= from[f++];
      else
        pt *= to[t++];
    }
    if (f - f0 == 1 && t - t0 == 1) {
      result[f0] = index[t0];
      continue;
    }
    UOp flat = simplify_(flat_index(to.subspan(t0, t - t0), std::span(index).subspan(t0, t - t0)));
    int64_t stride = pf;
    for (size_t i = f0; i < f; ++i) {
      if (from[i] == 1) {
        result[i] = index_const(0);
        continue;
      }
      stride /= from[i];
      UOp part = stride == 1 ? flat : binary(Op::IDiv, flat, index_const(stride));
      if (stride * from[i] != pf) part = binary(Op::Mod, part, index_const(from[i]));
      result[i] = simplify_(part);
    }
  }
  return result;
}

// An integer made of iotas, constants and numbers of the device, as index arithmetic that later
// stages can simplify; null for anything else. An index does not wrap as an integer of few bits does:
// of one that might, the integer itself is the place.
//
//   cast i64 (cast u8 (iota 300))    0 to 255 and 0 to 43, the index 0 to 299
UOp Lowering::position(const UOp& x, const std::vector<UOp>& index) {
  const UOp found = position_of(x, index);
  return found && fits({found->low, found->high}, x.dtype()) ? found : UOp();
}

UOp Lowering::position_of(const UOp& x, const std::vector<UOp>& index) {
  if (fusion_.materialized(x) && x.get() != root_) return UOp();
  switch (x.op()) {
    case Op::Const:
      return is_int(x.dtype()) ? index_const(const_bits(*x)) : UOp();
    case Op::Iota:
      return index[0];
    case Op::Cast:
      return is_int(x.dtype()) && is_int(x.src(0).dtype()) ? position(x.src(0), index) : UOp();
    case Op::Add:
    case Op::Sub:
    case Op::Mul: {
      UOp a = position(x.src(0), index), b = a ? position(x.src(1), index) : UOp();
      return b ? binary(x.op(), a, b) : UOp();
    }
    case Op::Reshape:
      return position(x.src(0), through_reshape(x.src(0).shape(), x.shape(), index));
    case Op::Expand: {
      std::vector<UOp> inner = index;
      for (size_t i = 0; i < inner.size(); ++i) {
        if (x.src(0).shape()[i] == 1) inner[i] = index_const(0);
      }
      return position(x.src(0), inner);
    }
    case Op::Permute: {
      std::vector<UOp> inner(index.size());
      for (size_t i = 0; i < x->arg().size(); ++i) inner[x->arg()[i]] = index[i];
      return position(x.src(0), inner);
    }
    default:
      return number_of_device(x, index);
  }
}

// A single number that depends on no memory, but maybe on the device: a part of an index by itself.
UOp Lowering::number_of_device(const UOp& x, const std::vector<UOp>& index) {
  if (x->numel() != 1 || (!is_elementwise(x.op()) && x.op() != Op::ShardSlice)) return UOp();
  const UOp number = simplify_(cast(lower(x, index, UOp()), DType::Index));
  const NodeOrder nodes = toposort(std::span(&number, 1));
  const bool alone = std::ranges::none_of(nodes, [](const UOp& n) {
    return n.op() == Op::Load || n.op() == Op::Range || n.op() == Op::Fold;
  });
  return alone ? number : UOp();
}

// Tells whether x sums products that nothing else reads: they need no rounding of their own.
bool Lowering::adds_products(const UOp& x) const {
  UOp product = x.src(0);
  while (is_movement(product.op())) product = product.src(0);
  return reduce_arg(*x).op == ReduceOp::Sum && is_float(x.dtype()) && product.op() == Op::Mul &&
         fusion_.read_once(product);
}

UOp Lowering::fold(const UOp& x, const std::vector<UOp>& index, const UOp& valid) {
  std::vector<UOp> inner = index, src(1);
  std::vector<UOp> context = index;
  if (valid) context.push_back(valid);
  int64_t id = (fold_level(context) + 1) * kLevelStride;
  for (int64_t axis : reduce_arg(*x).axes) {
    int64_t size = x.src(0).shape()[axis];
    if (size == 1) {
      inner[axis] = index_const(0);
      continue;
    }
    inner[axis] = range(id++, size, RangeKind::Fold);
    src.push_back(inner[axis]);
  }
  // Everything outside of `valid` is discarded as a whole, so the fold itself need not be guarded,
  // but its loads must be.
  src[0] = simplify_(lower(x.src(0), inner, valid));
  if (src.size() == 1) return src[0];
  UOp result =
      UOp::make(Op::Fold, x.dtype(), src, to_ints(FoldArg{reduce_arg(*x).op, adds_products(x)}));
  fold_origin_[result] = x;
  alive_.push_back(result);
  return result;
}

std::vector<UOp> Lowering::float_reductions(std::span<const UOp> folds) const {
  std::vector<UOp> found;
  for (const UOp& x : folds) {
    const UOp* origin = is_float(x.dtype()) ? fold_origin_.find(x) : nullptr;
    if (origin && std::ranges::find(found, *origin) == found.end()) found.push_back(*origin);
  }
  return found;
}

UOp Lowering::reduced_twice(std::span<const UOp> folds, FreeRanges& free_ranges) const {
  NodeMap<UOp> fold_of(folds.size());  // of each Reduce
  for (const UOp& x : folds) {
    const UOp* origin = is_float(x.dtype()) ? fold_origin_.find(x) : nullptr;
    if (!origin) continue;
    if (const UOp* other = fold_of.find(*origin); other && !(*other == x)) return *origin;
    fold_of[*origin] = x;
  }
  UOp inside = reduced_inside_two(folds, free_ranges);
  const UOp* origin = inside ? fold_origin_.find(inside) : nullptr;
  return origin ? *origin : UOp();
}

UOp Lowering::lower_new(const UOp& x, const std::vector<UOp>& index, const UOp& valid) {
  auto arg = x->arg();
  if (is_elementwise(x.op())) {
    std::vector<UOp> src;
    src.reserve(3);
    for (const UOp& s : x->src()) src.push_back(lower(s, index, valid));
    return UOp::make(x.op(), x.dtype(), src, arg);
  }
  switch (x.op()) {
    case Op::Const:
      return reshaped_const(x, {});
    case Op::Iota:
      return cast(index[0], DType::I64);
    case Op::Reshape:
      return lower(x.src(0), through_reshape(x.src(0).shape(), x.shape(), index), valid);
    case Op::Expand: {
      std::vector<UOp> inner = index;
      for (size_t i = 0; i < inner.size(); ++i) {
        if (x.src(0).shape()[i] == 1) inner[i] = index_const(0);
      }
      return lower(x.src(0), inner, valid);
    }
    case Op::Permute: {
      std::vector<UOp> inner(index.size());
      for (size_t i = 0; i < arg.size(); ++i) inner[arg[i]] = index[i];
      return lower(x.src(0), inner, valid);
    }
    case Op::Flip: {
      std::vector<UOp> inner = index;
      for (int64_t axis : arg) {
        inner[axis] = simplify_(binary(Op::Sub, index_const(x.shape()[axis] - 1), index[axis]));
      }
      return lower(x.src(0), inner, valid);
    }
    case Op::Shrink: {
      std::vector<UOp> inner = index;
      const BoundsArg bounds = bounds_arg(*x);
      for (size_t i = 0; i < inner.size(); ++i) inner[i] = simplify_(add(index[i], bounds.low(i)));
      return lower(x.src(0), inner, valid);
    }
    case Op::Pad: {
      std::vector<UOp> inner = index;
      UOp inside;
      const BoundsArg bounds = bounds_arg(*x);
      for (size_t i = 0; i < inner.size(); ++i) {
        const int64_t low = bounds.low(i), high = bounds.high(i), size = x.src(0).shape()[i];
        if (low == 0 && high == 0) continue;
        if (low > 0) inside = both(inside, binary(Op::CmpLt, index_const(low - 1), index[i]));
        if (high > 0) inside = both(inside, binary(Op::CmpLt, index[i], index_const(low + size)));
        inner[i] = simplify_(add(index[i], -low));
      }
      return guarded(x.src(0), std::move(inner), valid, simplify_(inside));
    }
    case Op::ShardSlice: {
      std::vector<UOp> inner = index;
      const auto [axis, mesh_axis, parts] = shard_slice_arg(*x);
      const int64_t whole = x.src(0).shape()[axis], part = x.shape()[axis];
      UOp place = UOp::make(Op::DeviceCoordinate, DType::Index, {},
                            to_ints(CoordinateArg{mesh_axis, parts}));
      inner[axis] =
          simplify_(binary(Op::Add, binary(Op::Mul, place, index_const(part)), index[axis]));
      UOp inside;
      if (part * parts != whole)
        inside = simplify_(binary(Op::CmpLt, inner[axis], index_const(whole)));
      return guarded(x.src(0), std::move(inner), valid, inside);
    }
    case Op::Reduce:
      return fold(x, index, valid);
    case Op::Gather: {
      std::vector<UOp> inner = index;
      UOp place = position(x.src(1), index);
      place = place ? simplify_(place) : cast(lower(x.src(1), index, valid), DType::Index);
      inner[gather_axis(*x)] = place;
      // An index out of range reads zero.
      int64_t size = x.src(0).shape()[gather_axis(*x)];
      UOp inside;
      if (place->low < 0) inside = binary(Op::CmpLt, index_const(-1), place);
      if (place->high >= size) inside = both(inside, binary(Op::CmpLt, place, index_const(size)));
      return guarded(x.src(0), std::move(inner), valid, inside ? simplify_(inside) : inside);
    }
    case Op::Contiguous:
    case Op::Detach:
    case Op::ContiguousBackward:
    case Op::Checkpoint:
      return lower(x.src(0), index, valid);
    case Op::Assign:
      return lower(x.src(1), index, valid);
    default:
      throw InternalError("no kernel can be made of " + describe(*x));
  }
}

std::optional<std::pair<UOp, StridedView>> Lowering::view(const UOp& operand) {
  UOp base = operand;
  while (is_movement(base.op()) && !fusion_.materialized(base)) base = base.src(0);
  if (!fusion_.materialized(base)) return std::nullopt;
  std::vector<UOp> index;
  for (size_t i = 0; i < operand.shape().size(); ++i) {
    int64_t size = operand.shape()[i];
    index.push_back(size == 1 ? index_const(0) : range(int64_t(i), size, RangeKind::Loop));
  }
  memo_.clear();
  alive_.clear();
  root_ = nullptr;
  draft_ = KernelDraft();
  UOp value = lower(operand, index, UOp());
  if (value.op() != Op::Load || value->src().size() != 2) return std::nullopt;
  auto affine = as_affine(value.src(1));
  if (!affine) return std::nullopt;
  StridedView result;
  result.offset = affine->constant;
  result.shape.assign(operand.shape().begin(), operand.shape().end());
  for (const UOp& i : index) {
    result.strides.push_back(i.op() == Op::Range ? affine->coefficient(i) : 0);
  }
  size_t ranges = std::ranges::count_if(result.strides, [](int64_t s) { return s != 0; });
  if (affine->terms.size() != ranges) return std::nullopt;  // depends on the device's place
  return std::pair{base, result};
}

int KernelDraft::slot_for(int buffer) {
  auto found = std::ranges::find(slots, buffer);
  if (found == slots.end()) found = slots.insert(found, buffer);
  return int(found - slots.begin());
}

std::vector<int> KernelDraft::slots_for(const KernelDraft& other) {
  std::vector<int> taken;
  for (int buffer : other.slots) taken.push_back(slot_for(buffer));
  return taken;
}

void rename_slots(std::span<const UOp> nodes, std::span<const int> taken, NodeMap<UOp>& map) {
  for (const UOp& x : nodes) {
    if (x.op() != Op::Param) continue;
    const int slot = taken[size_t(param_slot(*x))];
    if (slot != param_slot(*x)) map[x] = UOp::make(Op::Param, x.dtype(), {}, Dims{slot});
  }
}

std::vector<UOp> expressions(const KernelDraft& draft) {
  std::vector<UOp> all;
  for (const auto& out : draft.outputs) {
    all.push_back(out.index);
    all.push_back(out.value);
    if (out.valid) all.push_back(out.valid);
  }
  return all;
}

NodeOrder all_nodes(const KernelDraft& draft) {
  const std::vector<UOp> roots = expressions(draft);  // which the draft keeps
  return toposort(roots);
}

std::vector<UOp> folds_among(std::span<const UOp> nodes) {
  std::vector<UOp> folds;
  for (const UOp& x : nodes) {
    if (x.op() == Op::Fold) folds.push_back(x);
  }
  return folds;
}

UOp reduced_inside_two(std::span<const UOp> folds, FreeRanges& free_ranges) {
  if (folds.size() < 3) return UOp();  // it takes two around a third
  auto is_nested = [&](const UOp& fold) {
    return is_float(fold.dtype()) && std::ranges::any_of(free_ranges(fold), [](const UOp& r) {
             return range_arg(*r).kind == RangeKind::Fold;
           });
  };
  for (const UOp& inner : folds) {
    if (!is_nested(inner)) continue;
    int around = 0;
    for (const UOp& outer : folds) {
      bool binds = !(outer == inner) && std::ranges::any_of(free_ranges(inner), [&](const UOp& r) {
        return std::ranges::find(outer->src().subspan(1), r) != outer->src().end();
      });
      if (!binds) continue;
      const NodeOrder body = toposort(std::span(&outer->src()[0], 1));
      if (std::ranges::find(body, inner) != body.end() && ++around > 1) return inner;
    }
  }
  return UOp();
}

// Does not walk again what the table knows: expressions grow, and are asked about as they do.
const std::vector<UOp>& FreeRanges::operator()(const UOp& root) {
  if (auto* found = memo_.find(root)) return *found;
  std::vector<const UOp*> todo{&root};
  while (!todo.empty()) {
    const UOp& x = *todo.back();
    auto src = x->src();
    const size_t before = todo.size();
    if (!memo_.contains(x)) {
      for (size_t i = src.size(); i-- > 0;) {
        if (!memo_.contains(src[i])) todo.push_back(&src[i]);
      }
    }
    if (todo.size() > before) continue;
    todo.pop_back();
    if (memo_.contains(x)) continue;
    std::vector<UOp> free;
    if (x.op() == Op::Range) free.push_back(x);
    size_t values = x.op() == Op::Fold ? 1 : src.size();
    for (size_t i = 0; i < values; ++i) {
      for (const UOp& r : memo_.at(src[i])) {
        bool bound = x.op() == Op::Fold && std::ranges::find(src.subspan(1), r) != src.end();
        if (!bound && std::ranges::find(free, r) == free.end()) free.push_back(r);
      }
    }
    memo_[x] = std::move(free);
    alive_.push_back(x);
  }
  return memo_.at(root);
}

}  // namespace tinyshard
