// Vertical fusion. The kernel of y = x * 2 and that of z = relu(y) + y are over the same loops and
// the second reads y where it itself stands, so they become one kernel:
//
//   y[i] = x[i] * 2                      z[i] = max(y[i], 0) + y[i]         i of 4096
//   y[i] = x[i] * 2,  z[i] = max(x[i] * 2, 0) + x[i] * 2                    one kernel, two outputs
//
// The ranges need not be equal: where the consumer reads y[i * 64 + j] over i and j of 64, the
// producer's i becomes i * 64 + j there. If nothing else reads y, its output is dropped at the end.
// Each fold must still be computed once (loops.h).
#include "core/schedule/fused.h"

#include <algorithm>
#include <utility>

#include "core/rewrite/affine.h"
#include "core/rewrite/pattern.h"
#include "core/schedule/limits.h"
#include "core/schedule/loops.h"
#include "core/uop/args.h"

namespace tinyshard {
namespace {

constexpr size_t kFusedNodes = 800, kFusedOutputs = 12;

// The producer's ranges as functions of the consumer's, when the consumer reads the stored value
// exactly once for each of its elements: `read` enumerates 0..n-1 over some of the consumer's
// loops.
std::optional<NodeMap<UOp>> match_ranges(const KernelDraft& producer, const UOp& store_index,
                                         const UOp& read, const KernelDraft& consumer,
                                         Simplifier& simplify) {
  auto dense = [](const Affine& affine) {  // row-major over its ranges, nothing left out
    if (affine.constant != 0) return false;
    int64_t stride = 1;
    for (size_t i = affine.terms.size(); i-- > 0;) {
      if (affine.terms[i].coefficient != stride) return false;
      stride *= range_arg(*affine.terms[i].range).size;
    }
    return true;
  };
  auto written = as_affine(store_index), wanted = as_affine(read);
  if (!written || !wanted || !dense(*written) || !dense(*wanted)) return std::nullopt;
  if (written->terms.size() != producer.loops.size()) return std::nullopt;
  int64_t count = 1;
  for (const auto& term : wanted->terms) {
    if (!contains(consumer.loops, term.range)) return std::nullopt;
    count *= range_arg(*term.range).size;
  }
  if (count != size_of(producer.loops)) return std::nullopt;
  NodeMap<UOp> map;
  for (const auto& term : written->terms) {
    UOp part = binary(Op::IDiv, read, index_const(term.coefficient));
    map[term.range] = simplify(binary(Op::Mod, part, index_const(range_arg(*term.range).size)));
  }
  return map;
}

// Tells whether values are stored side by side along different loops.
bool stores_in_two_orders(const KernelDraft& draft) {
  UOp fast;
  for (const auto& out : draft.outputs) {
    auto affine = as_affine(out.index);
    if (!affine || affine->terms.size() != draft.loops.size()) continue;
    for (const auto& term : affine->terms) {
      if (term.coefficient != 1) continue;
      if (fast && !(fast == term.range)) return true;
      fast = term.range;
    }
  }
  return false;
}

}  // namespace

std::optional<FusedKernel> KernelFuser::into_consumer(const KernelDraft& producer,
                                                      const KernelDraft& consumer) {
  if (producer.outputs.size() + consumer.outputs.size() > kFusedOutputs) return std::nullopt;
  Stored stored;
  for (int buffer : consumer.slots) {
    auto out = std::ranges::find(producer.outputs, buffer, &KernelDraft::Output::buffer);
    stored.push_back(out == producer.outputs.end() ? -1 : int(out - producer.outputs.begin()));
  }
  if (std::ranges::count(stored, -1) == std::ssize(stored)) return std::nullopt;
  KernelDraft joined = consumer;
  const std::vector<int> taken = joined.slots_for(producer);

  Key key{{}, stored};
  key.second.insert(key.second.end(), taken.begin(), taken.end());
  for (const KernelDraft* draft : {&producer, &consumer}) {
    auto add = [&](const UOp& x) { key.first.push_back(x.get()); };
    std::ranges::for_each(draft->loops, add);
    add(UOp());  // the end of a list
    for (const auto& out : draft->outputs) std::ranges::for_each(out.expressions(), add);
  }
  auto [known, is_new] = known_.try_emplace(std::move(key));
  if (is_new) {
    for (const KernelDraft* draft : {&producer, &consumer}) {
      alive_.insert(alive_.end(), draft->loops.begin(), draft->loops.end());
      for (const UOp& x : expressions(*draft)) alive_.push_back(x);
    }
    known->second = fused(producer, consumer, stored);
  }
  if (!known->second) return std::nullopt;
  // Equal pairs differ in mesh, place and buffers.
  FusedKernel result = *known->second;
  result.draft.mesh = consumer.mesh;
  result.draft.position = consumer.position;
  result.draft.slots = std::move(joined.slots);
  for (size_t i = 0; i < result.draft.outputs.size(); ++i) {
    const size_t own = consumer.outputs.size();
    result.draft.outputs[i].buffer =
        i < own ? consumer.outputs[i].buffer : producer.outputs[i - own].buffer;
  }
  return result;
}

std::optional<FusedKernel> KernelFuser::fused(const KernelDraft& producer,
                                              const KernelDraft& consumer, const Stored& stored) {
  for (const auto& out : producer.outputs) {
    auto affine = as_affine(out.index);
    if (!affine || affine->terms.size() != producer.loops.size())
      return std::nullopt;  // stores at several depths
  }
  // Every read of the producer's outputs in the consumer must be the same enumeration.
  std::optional<NodeMap<UOp>> map;
  const KernelDraft::Output* matched = nullptr;
  UOp first_read;
  std::vector<UOp> reads;  // loads of what the producer stores
  auto output = [&](const UOp& load) { return stored[size_t(slot_of(*load))]; };
  auto index_of = [&](const KernelDraft::Output& out) {  // in the consumer's loops
    return out.index == matched->index ? first_read : simplify_(substitute(out.index, *map));
  };
  for (const UOp& x : all_nodes(consumer)) {
    if (x.op() != Op::Load || output(x) < 0) continue;
    if (x->src().size() != 2) return std::nullopt;
    const KernelDraft::Output& out = producer.outputs[size_t(output(x))];
    if (!map) {
      map = match_ranges(producer, out.index, x.src(1), consumer, simplify_);
      if (!map) return std::nullopt;
      matched = &out;
      first_read = x.src(1);
    } else if (!(x.src(1) == index_of(out))) {
      return std::nullopt;
    }
    reads.push_back(x);
  }
  if (!map) return std::nullopt;  // it read them once, and does no longer
  KernelDraft merged = consumer;
  rename_slots(all_nodes(producer), merged.slots_for(producer), *map);
  std::vector<UOp> made;
  for (const auto& out : producer.outputs) made.push_back(out.value);
  made = simplify_(substitute(made, *map));
  for (size_t i = 0; i < made.size(); ++i) {
    const KernelDraft::Output& out = producer.outputs[i];
    UOp valid = out.valid ? simplify_(substitute(out.valid, *map)) : UOp();
    merged.outputs.push_back({out.buffer, index_of(out), made[i], valid});
  }
  NodeMap<UOp> replaced;
  for (const UOp& x : reads) replaced[x] = made[size_t(output(x))];
  std::vector<UOp> values;
  for (const auto& out : consumer.outputs) values.push_back(out.value);
  values = simplify_(substitute(values, replaced));
  for (size_t i = 0; i < values.size(); ++i) merged.outputs[i].value = values[i];
  return settled(std::move(merged), false);
}

bool KernelFuser::same_loops(const KernelDraft& one, const KernelDraft& other) {
  auto size = [](const UOp& r) { return range_arg(*r).size; };
  return std::ranges::equal(one.loops, other.loops, {}, size, size);
}

std::optional<FusedKernel> KernelFuser::beside(const KernelDraft& one, const KernelDraft& other) {
  if (one.outputs.size() + other.outputs.size() > kFusedOutputs) return std::nullopt;
  NodeMap<UOp> map;
  for (size_t i = 0; i < one.loops.size(); ++i) map[one.loops[i]] = other.loops[i];
  KernelDraft merged = other;
  rename_slots(all_nodes(one), merged.slots_for(one), map);
  for (const auto& out : one.outputs) {
    merged.outputs.push_back({out.buffer, substitute(out.index, map), substitute(out.value, map),
                              out.valid ? substitute(out.valid, map) : UOp()});
  }
  // The kernel reads once less, but a copy in another order may be wanted long before its other outputs.
  return settled(std::move(merged), true);
}

// `one_order`: all of its stores have to be in one order.
std::optional<FusedKernel> KernelFuser::settled(KernelDraft draft, bool one_order) {
  const NodeOrder all = all_nodes(draft);
  if (all.size() > kFusedNodes || !fits_a_kernel(draft, all)) return std::nullopt;
  const std::vector<UOp> folds = folds_among(all);
  // Maps turn tiles for a second order, which kernels with folds do not.
  one_order |= !folds.empty();
  if (one_order && stores_in_two_orders(draft)) return std::nullopt;
  if (arrange_loops(draft, all, free_ranges_) || reduced_inside_two(folds, free_ranges_))
    return std::nullopt;
  FusedKernel result{std::move(draft), {}};
  std::ranges::copy_if(all, std::back_inserter(result.loads),
                       [](const UOp& x) { return x.op() == Op::Load; });
  return result;
}

}  // namespace tinyshard
