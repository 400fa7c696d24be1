// Which of the copies of a rank's state count: the decisions of nn::Elastic, without tensors and
// ranks. elastic.cpp has the protocol around it, and so has the simulator (tests/simulator).
//
// Example: three ranks have committed step 7 and copy the state after step 8. Rank 2 dies. Rank 0
// had heard that all have step 8 and keeps that alone; rank 1 had not, and keeps 7 and 8. Both have
// 8. Had rank 2 died before its own copy, nobody could have heard so: ranks 0 and 1 would each have
// 7, and perhaps 8, and the least of the last ones, 7 or 8, is one that both have.
#pragma once
#include <cstdint>
#include <optional>
#include <utility>

namespace tinyshard::nn {

template <class Snapshot>
class Commits {
 public:
  static constexpr int64_t kNothing = -1;

  // The step of the last copy, kNothing where there is none: of all ranks' answers the least is the
  // newest that all have.
  int64_t last_step() const { return last_ ? last_->first : kNothing; }

  // A copy, of a later step than the last. The one before it counts until all have this one.
  void keep(int64_t step, Snapshot snapshot) {
    before_ = std::exchange(last_, std::pair(step, std::move(snapshot)));
  }
  // In the place of the last copy, which is good for nothing any more.
  void replace_last(int64_t step, Snapshot snapshot) { last_.emplace(step, std::move(snapshot)); }
  // Takes the last copy away: the one before it is the last one, if there is one.
  std::optional<Snapshot> take_last() {
    std::optional<Snapshot> taken;
    if (last_) taken = std::move(last_->second);
    last_ = std::exchange(before_, std::nullopt);
    return taken;
  }
  // All ranks have the copy of this step. Returns the one that counts no more.
  std::optional<Snapshot> all_have(int64_t step) {
    sure_ = step;
    std::optional<Snapshot> before;
    if (before_ && before_->first < step)
      before = std::move(std::exchange(before_, std::nullopt)->second);
    return before;
  }
  void all_have_last() { all_have(last_step()); }
  Snapshot* last() { return last_ ? &last_->second : nullptr; }
  bool has(int64_t step) const {
    return step != kNothing && (last_step() == step || (before_ && before_->first == step));
  }
  // The newest step that all ranks are known to have had: one that has none now came later.
  int64_t sure() const { return sure_; }

  // Goes back to the copy of a step and gives up the others. Null where there is no such copy, or
  // the step is kNothing.
  const Snapshot* return_to(int64_t step) {
    if (step == kNothing) {
      last_.reset();
    } else if (last_step() != step) {
      if (!before_ || before_->first != step) return nullptr;
      last_ = std::move(before_);
    }
    before_.reset();
    sure_ = last_step();
    return last_ ? &last_->second : nullptr;
  }

 private:
  std::optional<std::pair<int64_t, Snapshot>> last_,
      before_;  // before_: until all ranks have last_
  int64_t sure_ = kNothing;
};

}  // namespace tinyshard::nn
