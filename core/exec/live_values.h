// The table of all tensors' states that are alive, in the order in which they were given their values:
// who overwrites a storage finds in it those who still need its old value. The context owns it.
//
// Threads: any. A state's value is given by the thread that uses the tensor, and others may look at
// it at any time; so it is exchanged, and looked at by others, under the table's lock, and whoever
// asks gets it beside the state. Values that a trace under way has given are seen by no other thread.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "core/exec/tensor_state.h"

namespace tinyshard {

struct LiveValue {
  StatePtr state;
  UOp value;  // when it was looked at
};

class LiveValues {
 public:
  void add(TensorState& state);
  void remove(TensorState& state);
  void set(TensorState& state, UOp value);
  // Gives the state the value of another tensor, or one that it held once. Its name changes, too.
  void replace(TensorState& state, UOp value, int64_t name);

  // Grows with every value that a state is given.
  uint64_t newest() const { return newest_.load(std::memory_order_relaxed); }

  // The states given their values after `since` for which `wanted` holds, in the order in which
  // their values were created: the same on every rank. Without what traces under way have made.
  // `wanted` is called under the lock.
  template <class Wanted>
  std::vector<LiveValue> find(uint64_t since, const Wanted& wanted) {
    return collect(since, [&](const TensorState& s) { return !s.trace_ && wanted(s); });
  }
  // The same of those that this thread gave their values.
  template <class Wanted>
  std::vector<LiveValue> find_own(const Wanted& wanted) {
    return collect(0, [&, here = this_thread()](const TensorState& s) {
      return !s.trace_ && s.thread_ == here && wanted(s);
    });
  }
  // The same, given after `since`, also by a trace of this thread.
  template <class Wanted>
  std::vector<LiveValue> find_own_within(const Capture* trace, uint64_t since,
                                         const Wanted& wanted) {
    return collect(since, [&, here = this_thread()](const TensorState& s) {
      return s.trace_ == trace && s.thread_ == here && wanted(s);
    });
  }
  // Finds from within a trace what find() finds, and the trace's own values.
  template <class Wanted>
  std::vector<LiveValue> find_within(const Capture* trace, const Wanted& wanted) {
    return collect(
        0, [&](const TensorState& s) { return (!s.trace_ || s.trace_ == trace) && wanted(s); });
  }
  // Returns the values that the trace, begun when newest() was `since`, has given.
  std::vector<LiveValue> made_by(const Capture& trace, uint64_t since) {
    return collect(since, [&](const TensorState& s) { return s.trace_ == &trace; });
  }
  // The trace is over: its values are ordinary ones.
  void end_trace(const Capture& trace, uint64_t since) noexcept;

  // Runs body() under the lock that every exchange of a value takes.
  template <class Body>
  auto locked(const Body& body) {
    std::lock_guard lock(mutex_);
    return body();
  }

 private:
  static uint32_t this_thread();
  void link(TensorState& state);
  void unlink(TensorState& state);

  template <class Wanted>
  std::vector<LiveValue> collect(uint64_t since, const Wanted& wanted) {
    std::vector<LiveValue> found;
    {
      std::lock_guard lock(mutex_);
      for (TensorState* s = last_; s && s->given_ > since; s = s->older_) {
        if (!wanted(*s)) continue;
        if (StatePtr state = s->weak_from_this().lock())
          found.push_back({std::move(state), s->value_});
      }
    }
    std::ranges::sort(found, {}, [](const LiveValue& v) { return v.value->id; });
    return found;
  }

  std::mutex mutex_;
  TensorState *first_ = nullptr, *last_ = nullptr;
  std::atomic<uint64_t> newest_{0};
};

}  // namespace tinyshard
