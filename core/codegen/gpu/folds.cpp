// Folds: partial results of each thread, then of its team.
#include <algorithm>

#include "core/codegen/gpu/gpu_emit.h"
#include "core/codegen/summation.h"
#include "core/uop/args.h"

namespace tinyshard::codegen::gpu {

using llvm::Value;

namespace {

ReduceOp reduce_op(const Graph& graph, int fold) { return fold_arg(graph.node(fold)).op; }

}  // namespace

// `shared`: the threads of the team share the folds' steps. What the threads have of all groups is
// combined at once: loads of one group are under way while another one adds up, and the team meets
// once for all of them.
void Emitter::emit_groups(std::span<const int> groups, bool shared) {
  std::vector<int> folds;
  llvm::SmallVector<Partial, 8> partials;
  for (int group : groups) {
    const auto& levels = work_->folds[static_cast<size_t>(group)];
    if (levels.empty()) {
      emit_single(group);
      continue;
    }
    const std::vector<int>& own = work_->nest.groups[static_cast<size_t>(group)].folds;
    Values accumulators = identities(group);
    if (shared && kept_open_) {
      for (int inner : levels.front().groups) emit_groups({&inner, 1}, false);
      accumulate(group, 1, accumulators);
    } else {
      fold_level(group, 0, shared, accumulators);
    }
    folds.insert(folds.end(), own.begin(), own.end());
    size_t next = 0;
    for (int fold : own) {
      for (int i = 0; i < instances(fold); ++i)
        partials.push_back({reduce_op(graph_, fold), graph_[fold].dtype, accumulators[next++]});
    }
  }
  // Where the items' stores are all that follows, one thread does them.
  const bool last = work_->inner.empty() && work_->items.groups.size() == groups.size();
  if (shared) team_reduce(partials, last);
  size_t next = 0;
  for (int fold : folds) {
    Values results;
    for (int i = 0; i < instances(fold); ++i)
      results.push_back(arith_.rounded(partials[next++].value, graph_[fold].dtype));
    keep(fold, std::move(results));
  }
}

// Folds with nothing to repeat.
void Emitter::emit_single(int group) {
  for (int fold : work_->nest.groups[static_cast<size_t>(group)].folds) {
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
}

void Emitter::keep(int fold, Values results) {
  frames_[static_cast<size_t>(place(fold))].values[work_->same[static_cast<size_t>(fold)]] =
      std::move(results);
}

size_t Emitter::independent(std::span<const int> groups) const {
  constexpr size_t kMost = 8;  // for the registers of what is under way
  std::vector<char> computed(static_cast<size_t>(graph_.size()));
  size_t count = 0;
  for (; count < std::min(kMost, groups.size()); ++count) {
    const std::vector<int>& own = work_->nest.groups[static_cast<size_t>(groups[count])].folds;
    std::vector<char> seen(static_cast<size_t>(graph_.size()));
    std::vector<int> stack = own;
    while (!stack.empty()) {
      auto node = static_cast<size_t>(stack.back());
      stack.pop_back();
      if (computed[node]) return count;
      if (seen[node]) continue;
      seen[node] = 1;
      for (int source : graph_.sources(static_cast<int>(node))) stack.push_back(source);
    }
    for (int fold : own) computed[static_cast<size_t>(fold)] = 1;
  }
  return count;
}

Emitter::Values Emitter::identities(int group) {
  Values all;
  for (int fold : work_->nest.groups[static_cast<size_t>(group)].folds) {
    Value* identity = arith_.identity(reduce_op(graph_, fold), graph_[fold].dtype, 1);
    all.append(static_cast<size_t>(instances(fold)), identity);
  }
  return all;
}

// Chunks and lanes of a round are added in pairs, and take no turns.
int64_t Emitter::terms_of_round(int group, size_t level) const {
  const auto& levels = work_->folds[static_cast<size_t>(group)];
  if (level + 1 >= levels.size()) return 1;
  return terms_in_turn(levels[level + 1].space.rounds(1), terms_of_round(group, level + 1));
}

void Emitter::fold_level(int group, size_t level, bool shared, Values& accumulators) {
  const auto& levels = work_->folds[static_cast<size_t>(group)];
  const int64_t rounds = levels[level].space.rounds(threads_of(level, shared));
  const bool careful = std::ranges::any_of(
      work_->nest.groups[static_cast<size_t>(group)].folds,
      [&](int fold) { return loses_digits(reduce_op(graph_, fold), graph_[fold].dtype); });
  const int64_t terms = terms_of_round(group, level);
  int64_t block = int64_t(std::bit_floor(uint64_t(steps_of_block(terms))));
  if (careful && rounds > block) {
    constexpr int64_t kMost = 2048;  // terms in turn, where there would be many more blocks
    while (block < rounds / block && block * terms < kMost) block *= 2;
    fold_level_in_blocks(group, level, shared, block, accumulators);
    return;
  }
  in_section(levels[level], shared && level == 0, accumulators, [&](Value*) {
    if (level + 1 < levels.size()) {
      fold_level(group, level + 1, shared, accumulators);
    } else {
      accumulate(group, levels.size(), accumulators);
    }
  });
}

void Emitter::fold_level_in_blocks(int group, size_t level, bool shared, int64_t block,
                                   Values& accumulators) {
  const auto& levels = work_->folds[static_cast<size_t>(group)];
  const Values nothing = identities(group);
  const size_t count = nothing.size();
  Values both =
      accumulators;  // what was there becomes the totals, which the sums of a block follow
  both.append(nothing);
  auto add = [&](const Values& totals, const Values& sums) {
    Values added;
    for (int fold : work_->nest.groups[static_cast<size_t>(group)].folds) {
      for (int i = 0; i < instances(fold); ++i) {
        const size_t n = added.size();
        added.push_back(
            arith_.combine(reduce_op(graph_, fold), graph_[fold].dtype, totals[n], sums[n]));
      }
    }
    return added;
  };
  auto half = [&](size_t first) {
    return Values(both.begin() + first, both.begin() + first + count);
  };
  in_section(levels[level], shared && level == 0, both, [&](Value* round) {
    Values totals = half(0), sums = half(count);
    if (level + 1 < levels.size()) {
      fold_level(group, level + 1, shared, sums);
    } else {
      accumulate(group, levels.size(), sums);
    }
    auto* mask = llvm::ConstantInt::get(round->getType(), uint64_t(block - 1));
    Value* ends = b_.CreateICmpEQ(b_.CreateAnd(round, mask), mask);
    const Values added = add(totals, sums);
    for (size_t i = 0; i < count; ++i) {
      both[i] = b_.CreateSelect(ends, added[i], totals[i]);
      both[count + i] = b_.CreateSelect(ends, nothing[i], sums[i]);
    }
  });
  accumulators = add(half(0), half(count));
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
      llvm::IRBuilder<>::FastMathFlagGuard flags(b_);
      if (graph_[fold].contracts) b_.setFastMathFlags(contraction());
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
