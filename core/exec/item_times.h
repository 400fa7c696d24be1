// Times of the items of a run as numbers, for observers that know the plan by its record. An item begins
// when the one before it has ended, so that each costs one look at the clock, and the list is as long as
// a run needs before the run begins.
//
// Threads: that of the run.
#pragma once
#include <chrono>
#include <vector>

#include "core/base/observer.h"

namespace tinyshard {

class ItemTimes {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Begins a run, whose items are told if `wanted`.
  void begin(bool wanted, size_t items) {
    on_ = wanted;
    list_.clear();
    if (!on_) return;
    list_.reserve(2 * items);  // an item may be waited for
    skip();
  }
  // Leaves out what was done since the last item.
  void skip() {
    if (on_) mark_ = std::chrono::steady_clock::now();
  }
  // Returns when an item that is next begins.
  Time next() const { return mark_; }
  void end(int item, bool waits, Time begun) {
    if (!on_) return;
    mark_ = std::chrono::steady_clock::now();
    list_.push_back({item, waits, begun, mark_ - begun});
  }
  const std::vector<ItemTime>& list() const { return list_; }

  // While a recording is made, items are not run.
  class Pause {
   public:
    explicit Pause(ItemTimes& of) : of_(of), on_(of.on_) { of_.on_ = false; }
    ~Pause() { of_.on_ = on_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    ItemTimes& of_;
    bool on_;
  };

 private:
  bool on_ = false;
  Time mark_;
  std::vector<ItemTime> list_;
};

}  // namespace tinyshard
