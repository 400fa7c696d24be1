// Folds: partial results of each thread, then of its team.
#include "core/codegen/gpu/emit.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

namespace {

ReduceOp reduce_op(const Graph& graph, int fold) {
  return static_cast<ReduceOp>(graph.arg(fold, 0));
}

}  // namespace

// `shared`: the threads of the team share the fold's steps.
void Emitter::emit_group(int group, bool shared) {
  const FoldGroup& g = work_->nest.groups[static_cast<size_t>(group)];
  const auto& levels = work_->folds[static_cast<size_t>(group)];
  auto keep = [&](int fold, Values results) {
    frames_[static_cast<size_t>(place(fold))].values[work_->same[static_cast<size_t>(fold)]] =
        std::move(results);
  };
  if (levels.empty()) {  // nothing to repeat
    for (int fold : g.folds) {
      if (graph_.fold_ranges(fold).empty) {
        keep(fold, {arith_.identity(reduce_op(graph_, fold), graph_[fold].dtype, 1)});
        continue;
      }
      int source = graph_.source(fold, 0);
      Values made = value(source), results;
      for (int i = 0; i < instances(fold); ++i)
        results.push_back(made[static_cast<size_t>(instance_of(fold, i, source))]);
      keep(fold, std::move(results));
    }
    return;
  }
  Values accumulators;
  for (int fold : g.folds) {
    Value* identity = arith_.identity(reduce_op(graph_, fold), graph_[fold].dtype, 1);
    accumulators.append(static_cast<size_t>(instances(fold)), identity);
  }
  bool kept = shared && kept_open_;
  if (kept) {
    for (int inner : levels.front().groups) emit_group(inner, false);
    accumulate(group, 1, accumulators);
  } else {
    fold_level(group, 0, shared, accumulators);
  }
  llvm::SmallVector<Partial, 8> partials;
  for (int fold : g.folds) {
    for (int i = 0; i < instances(fold); ++i) {
      partials.push_back(
          {reduce_op(graph_, fold), graph_[fold].dtype, accumulators[partials.size()]});
    }
  }
  // Where the items' stores are all that follows, one thread does them.
  const bool last = work_->inner.empty() && work_->items.groups.size() == 1;
  if (shared) team_reduce(partials, last);
  size_t next = 0;
  for (int fold : g.folds) {
    Values results;
    for (int i = 0; i < instances(fold); ++i) results.push_back(partials[next++].value);
    keep(fold, std::move(results));
  }
}

void Emitter::fold_level(int group, size_t level, bool shared, Values& accumulators) {
  const auto& levels = work_->folds[static_cast<size_t>(group)];
  in_section(levels[level], shared && level == 0, accumulators, [&] {
    if (level + 1 < levels.size()) {
      fold_level(group, level + 1, shared, accumulators);
    } else {
      accumulate(group, levels.size(), accumulators);
    }
  });
}

// Adds what the last `levels` frames, those of the fold, hold: their instances pairwise, then to
// the accumulator. A thread that repeats a step of any of them adds nothing.
void Emitter::accumulate(int group, size_t levels, Values& accumulators) {
  size_t last = frames_.size() - 1, next = 0;
  for (int fold : work_->nest.groups[static_cast<size_t>(group)].folds) {
    ReduceOp op = reduce_op(graph_, fold);
    DType dtype = graph_[fold].dtype;
    int source = graph_.source(fold, 0);
    Values x = value(source);
    for (int i = 0; i < instances(fold); ++i) {
      Values parts;
      Spot spot = spot_of(fold, i);
      auto collect = [&](auto&& inner, size_t frame, Value* active) -> void {
        const Frame& at = frames_[frame];
        for (int c = 0; c < at.chunks; ++c) {
          spot.chunks[frame] = c;
          Value* here = both(active, at.active[static_cast<size_t>(c)]);
          for (int lane = 0; lane < at.lanes; ++lane) {
            if (at.lanes > 1) spot.lane = lane;
            if (frame < last) {
              inner(inner, frame + 1, here);
              continue;
            }
            Value* part = x[static_cast<size_t>(instance_at(source, spot))];
            if (here) part = b_.CreateSelect(here, part, arith_.identity(op, dtype, 1));
            parts.push_back(part);
          }
        }
      };
      collect(collect, last + 1 - levels, nullptr);
      while (parts.size() > 1) {
        Values halves;
        for (size_t k = 0; k + 1 < parts.size(); k += 2)
          halves.push_back(arith_.combine(op, dtype, parts[k], parts[k + 1]));
        if (parts.size() % 2) halves.push_back(parts.back());
        parts = std::move(halves);
      }
      Value*& accumulator = accumulators[next++];
      bool first = llvm::isa<llvm::Constant>(accumulator);  // nothing but the identity
      accumulator = first ? parts[0] : arith_.combine(op, dtype, accumulator, parts[0]);
    }
  }
}

}  // namespace tinyshard::codegen::gpu
