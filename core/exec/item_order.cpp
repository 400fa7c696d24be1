// Which items must come after which (core/schedule/hazards.h, asked with the memory that they got),
// and, to find what that misses, runs in any order that it allows.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "core/base/options.h"
#include "core/exec/executable.h"
#include "core/schedule/hazards.h"

namespace tinyshard {

std::vector<int> Executable::behind_leading() const {
  std::vector<int> which(steps_.size() - leading_);
  std::iota(which.begin(), which.end(), int(leading_));
  return which;
}

std::vector<std::vector<int>> Executable::orders(std::span<const int> which) const {
  if (options().serial || in_chain_) return {};
  std::vector<int> place(steps_.size(), -1);  // of a step among these
  for (size_t i = 0; i < which.size(); ++i) place[size_t(which[i])] = int(i);
  auto step_at = [&](size_t i) -> const Step& { return steps_[size_t(which[i])]; };
  auto device = [](const Launch& launch) { return launch.device; };
  constexpr uint64_t kArena = 0, kInputs = 1;  // other memories are known by an address
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<Access>> accesses;
  for (size_t i = 0; i < which.size(); ++i) {
    const Step& step = step_at(i);
    const Item& item = *step.item;
    if (!std::ranges::equal(step.launches, step_at(0).launches, {}, device, device)) return {};
    std::vector<Access>& touched = accesses.emplace_back();
    auto add = [&](int b, bool written) {
      auto [base, offset] = base_of(b);
      const Storage* storage = owned_[base].get();
      // The caller may give one storage for several inputs; for what else it gives, see in_chain_.
      if (storage && storage->is_placeholder()) {
        touched.push_back({kInputs, 0, kAll, written});
        return;
      }
      int64_t begin = offset + (storage ? 0 : schedule_.buffers[base].arena_offset);
      touched.push_back({storage ? reinterpret_cast<uintptr_t>(storage) : kArena, begin,
                         begin + schedule_.buffers[b].bytes(), written});
    };
    for (int b : item.reads) add(b, false);
    for (int b : item.writes) add(b, true);
    for (const Launch& launch : step.launches) {
      const void* scratch = launch.program ? launch.program->scratch() : nullptr;
      if (scratch) touched.push_back({reinterpret_cast<uintptr_t>(scratch), 0, 1, true});
    }
  }
  std::vector<std::vector<int>> after = hazards(accesses);
  // The results of a collective are there once a step has waited for it. So a later step that needs
  // them comes after that step, and not after the start of the collective.
  std::vector<int> awaited_by(which.size(), -1);
  for (int i = 0; i < int(which.size()); ++i) {
    for (int& earlier : after[size_t(i)]) {
      if (step_at(size_t(earlier)).item->kind == Item::Kind::Collective && awaited_by[earlier] >= 0)
        earlier = awaited_by[earlier];
    }
    for (int w : step_at(size_t(i)).item->waits) {
      const int awaited = place[size_t(w)];
      if (awaited >= 0 && awaited_by[awaited] < 0) awaited_by[awaited] = i;
    }
  }
  return after;
}

void Executable::run_shuffled() {
  std::span<Step> steps = std::span(steps_).subspan(leading_);
  std::vector<std::vector<int>> before = orders(behind_leading());
  if (before.empty()) return run_items(steps);
  std::vector<std::vector<int>> after(steps.size());
  std::vector<size_t> missing(steps.size());
  int collective = -1;
  for (int i = 0; i < int(steps.size()); ++i) {
    for (int w : steps[i].item->waits) {
      if (w >= int(leading_)) before[i].push_back(w - int(leading_));
    }
    if (steps[i].item->kind == Item::Kind::Collective) {
      // All ranks start them in the same order.
      if (collective >= 0) before[i].push_back(collective);
      collective = i;
    }
    for (int b : before[i]) after[b].push_back(i);
    missing[i] = before[i].size();
  }
  std::seed_seq seed{int64_t(options().shuffle), counters().runs};  // each run has its own order
  std::mt19937 random(seed);
  std::vector<int> ready;
  for (int i = 0; i < int(steps.size()); ++i) {
    if (missing[i] == 0) ready.push_back(i);
  }
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    int next = ready.back();
    ready.pop_back();
    run_item(steps[next]);
    for (int a : after[next]) {
      if (--missing[a] == 0) ready.push_back(a);
    }
  }
  wait_for_collectives(steps);
}

}  // namespace tinyshard
