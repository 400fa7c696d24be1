// State that counts as kept although nobody has copied it: other ranks hold the same values, and what
// a rank has is whole as long as its next update comes at once, behind all sums of the step.
//
//   sums of the step   ->  one fails: the storages hold what was kept
//   updates, at once   ->  then they hold the next state, which is nobody's before it is kept in its turn
//
// Runs tell all watches what they write (Executable::run); nn::Elastic asks its own. Threads: runs, and
// who asks, hold the turn of the context; watches come and go in the thread that trains.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/exec/storage.h"

namespace tinyshard {

class KeptInPlace {
 public:
  enum class State : uint8_t {
    Kept,      // the storages hold what they held when keep() was called
    Updating,  // a run writes to them, and waits for no other rank meanwhile
    Updated,   // it has
    Unsure     // a run wrote to them between calls that other ranks take part in
  };

  // `before_end` is called before the memory of an epoch goes.
  explicit KeptInPlace(std::function<void()> before_end);
  ~KeptInPlace();
  KeptInPlace(const KeptInPlace&) = delete;
  KeptInPlace& operator=(const KeptInPlace&) = delete;

  // From now on these are watched, and no others.
  void keep(std::vector<std::shared_ptr<Storage>> storages);
  // Watches the same storages, from what they hold now.
  void rearm() { state_ = State::Kept; }
  State state() const { return state_; }

  // Tells whether there is any: schedules then put updates behind all collectives.
  static bool any();

  // A run of an executable, told to all watches.
  class Run {
   public:
    // `at_once`: updates follow all collectives. A run that `crosses` waits for other ranks.
    Run(std::span<const Storage* const> written, bool crosses, bool at_once);
    bool is_watched() const { return !watches_.empty(); }
    void updates();  // the first one begins
    void ends();     // well

   private:
    std::vector<KeptInPlace*> watches_;  // of storages that it writes
  };
  static void crosses();  // the ranks talk, outside of a run
  static void overwritten(std::span<Storage* const> storages);
  static void epoch_ends();

 private:
  bool watches(std::span<const Storage* const> written) const;

  std::function<void()> before_end_;
  std::vector<std::shared_ptr<Storage>> storages_;  // sorted
  State state_ = State::Unsure;
};

}  // namespace tinyshard
