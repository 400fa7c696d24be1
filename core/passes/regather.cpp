// A first walk over the graph finds the readers of gathered parameters and the turn of each reading
// (Turns::turn_of); a second one rebuilds the graph, in which a reader sees the gather of its turn:
//
//   %1 = all_gather h0      %5 = dot x %1 (forward)      %9 = dot g %1 (backward)
//   %1 = all_gather h0, turn 1        %5 = dot x %1
//   %8 = all_gather h0, turn 5        %9 = dot g %8
//
// A view between the gather and its reader, such as the transpose in the backward pass, is made again
// over the gather of that turn.
#include "core/passes/regather.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/uop/node_map.h"
#include "multi/collective.h"

namespace tinyshard {
namespace {

int64_t bytes(const UOp& x) { return x->numel() * int64_t(itemsize(x.dtype())); }

struct Turn {
  int64_t block = 0;
  std::set<const Node*> gathered;
  int64_t bytes = 0;
};

class Turns {
 public:
  explicit Turns(const Graph& graph) : roots_(graph.roots()), order_(graph.order()) {
    for (const UOp& x : order_) {
      if (is_movement(x.op())) continue;  // views are read where somebody reads what they show
      for (const UOp& s : x->src()) read(x, s);
    }
    for (const UOp& root : roots_) read(root, root);
  }

  std::vector<UOp> rebuilt() {
    if (turns_.empty()) return {roots_.begin(), roots_.end()};
    NodeMap<UOp> made(order_.size());
    std::vector<UOp> src;
    for (const UOp& x : order_) {
      const std::vector<Reading>* readings = readings_.find(x);
      src.clear();
      for (const UOp& s : x->src()) src.push_back(seen_by(readings, s, made));
      made[x] = x.with_src(src);
    }
    std::vector<UOp> result;
    for (const UOp& root : roots_) result.push_back(seen_by(readings_.find(root), root, made));
    return result;
  }

 private:
  struct Reading {
    const Node* gather;
    size_t turn;
  };

  void read(const UOp& reader, const UOp& view) {
    const UOp gather = under_views(view);
    const GatherTime time = gather_time(gather);
    if (!time.turn) return;
    auto kept = kept_.find(gather.get());
    const size_t turn = kept == kept_.end() ? turn_of(time.turn) : kept->second;
    if (turns_[turn].gathered.insert(gather.get()).second) turns_[turn].bytes += bytes(gather);
    if (time.keep) kept_.emplace(gather.get(), turn);
    readings_[reader].push_back({gather.get(), turn});
  }

  // The turn that the block has now: its latest one, unless much was gathered since.
  size_t turn_of(int64_t block) {
    int64_t since = 0;
    for (size_t t = turns_.size(); t-- > 0; since += turns_[t].bytes) {
      if (turns_[t].block != block) continue;
      if (4 * since < turns_[t].bytes || since == 0) return t;
      break;
    }
    turns_.push_back({block, {}, 0});
    return turns_.size() - 1;
  }

  UOp seen_by(const std::vector<Reading>* readings, const UOp& view, const NodeMap<UOp>& made) {
    if (!readings) return made.at(view);
    const UOp gather = under_views(view);
    auto found = std::ranges::find(*readings, gather.get(), &Reading::gather);
    return found == readings->end() ? made.at(view) : seen_in(found->turn, view, made);
  }

  // The view of what a gather brings, gathered in that turn.
  UOp seen_in(size_t turn, const UOp& view, const NodeMap<UOp>& made) {
    const OriginScope origin(origin_id(view));
    if (is_movement(view.op())) {
      UOp source = seen_in(turn, view.src(0), made);
      return view.with_src(std::span(&source, 1));
    }
    UOp source = made.at(view.src(0));
    // A value computed to be sent, a parameter in a narrower type, is computed for each turn.
    if (source.op() == Op::Contiguous)
      source = UOp::make(Op::Contiguous, source.dtype(), {source.src(0)}, Dims{int64_t(turn) + 1});
    return in_turn(view, source, int64_t(turn) + 1);
  }

  std::span<const UOp> roots_, order_;
  std::vector<Turn> turns_;
  NodeMap<std::vector<Reading>> readings_;
  std::map<const Node*, size_t> kept_;  // the turn of a gather that is kept
};

}  // namespace

std::vector<UOp> gather_in_turns(const Graph& graph) { return Turns(graph).rebuilt(); }

}  // namespace tinyshard
