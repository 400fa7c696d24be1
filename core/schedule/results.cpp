// A projection x.matmul(w) of queries, keys and values has the gradient w' = cat(dq, dk, dv), and
// one attention call makes dq, dk and dv. Instead of three buffers and a kernel that copies them
// side by side, the call writes straight into one:
//
//   AttentionBackward -> dq, dk, dv; kernel: whole = cat(dq, dk, dv)
//   AttentionBackward -> whole[:, 0:768], whole[:, 768:1536], whole[:, 1536:2304]
//
// Likewise, what a collective brings for a storage arrives there: no kernel copies it. A product that
// is added to a storage and a scatter into one find the old value there, and rows that no index names
// are not touched.
#include "core/schedule/results.h"

#include <algorithm>
#include <utility>

#include "core/rewrite/pattern.h"
#include "core/schedule/parts.h"
#include "core/schedule/schedule_state.h"
#include "core/uop/product_region.h"

namespace tinyshard {
namespace {

// Tells whether the product or the scatter starts from what the storage holds, and may overwrite it.
bool updates(const UOp& x, const UOp& storage) {
  return starts_from_third(x) && under_views(x.src(2)) == storage &&
         !(under_views(x.src(0)) == storage) && !(under_views(x.src(1)) == storage);
}

// Where a value has nothing but results of one library call, which nobody else reads, and the
// library can write them where they lie in it: a projection's gradient has those of the queries,
// keys and values.
void write_parts(ScheduleState& state, const UOp& whole) {
  const NodeMap<int>& uses = state.uses;
  auto parts = parts_of(
      whole, [&](const UOp& x) { return state.fusion->materialized(x) || uses.at(x) != 1; });
  if (!parts) return;
  const UOp& first = parts->front().value;
  if (!is_library_op(first.op())) return;
  LibraryCall call = row_major_call(first);
  call.also = siblings(state, first);
  for (const Part& part : *parts) {
    bool of_call = part.value == first || std::ranges::count(call.also, part.value) == 1;
    if (!of_call || uses.at(part.value) != 1) return;
  }
  call.results = results_of(call, [&](const UOp& x) -> const StridedView* {
    auto part = std::ranges::find(*parts, x, &Part::value);
    return part != parts->end() ? &part->view : state.places.find(x);
  });
  if (!call.results.empty() &&
      !(is_strided_call(first.op()) && state.options.library_supports(call)))
    return;
  const int buffer = state.buffer_of(whole);
  for (const Part& part : *parts) {
    state.buffer[part.value] = buffer;
    state.places[part.value] = part.view;
  }
  state.made_along[whole] = true;
}

}  // namespace

bool starts_from_third(const UOp& x) {
  if (const ProductRegion* region = region_of(x)) return region->in_place;
  return x.op() == Op::ScatterAdd && x->sources == 3 && x.src(2).dtype() == x.dtype();
}

bool is_strided_call(Op op) {
  return op == Op::Dot || op == Op::Attention || op == Op::AttentionBackward;
}

std::vector<StridedView> results_of(const LibraryCall& call, const PlaceOf& place_of) {
  std::vector<StridedView> results;
  bool contiguous = true;
  auto add = [&](const UOp& x) {
    const StridedView* place = place_of(x);
    results.push_back(place ? *place : row_major(x.shape()));
    contiguous = contiguous && is_row_major(results.back());
  };
  add(call.node);
  for (const UOp& x : call.also) add(x);
  return contiguous ? std::vector<StridedView>() : results;
}

std::vector<UOp> siblings(const ScheduleState& state, const UOp& x) {
  std::vector<UOp> found;
  for (const UOp& other : state.calls_of.at(x.src(0))) {
    if (other.op() == x.op() && !(other == x) && std::ranges::equal(other->src(), x->src()))
      found.push_back(other);
  }
  return found;
}

void name_storages(ScheduleState& state) {
  const NodeMap<int>& uses = state.uses;
  for (const UOp& x : state.order) {
    if (x.op() != Op::Assign) continue;
    UOp result = x.src(1);
    while (result.op() == Op::Reshape && uses.at(result) == 1) result = result.src(0);
    bool arrives = result.op() == Op::Collective || updates(result, x.src(0));
    if (!arrives || uses.at(result) != 1) continue;
    state.buffer[result] = state.buffer_of(x);
    state.schedule.buffers[size_t(state.buffer_of(x))].origin = origin_id(result);
    state.made_along[x] = true;
  }
}

void place_results(ScheduleState& state) {
  for (const UOp& x : state.order) {
    if (state.fusion->materialized(x) && !state.buffer.contains(x)) write_parts(state, x);
  }
}

}  // namespace tinyshard
