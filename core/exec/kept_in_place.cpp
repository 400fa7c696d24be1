// A watch is a small automaton. A run that writes to its storages moves it from Kept over Updating to
// Updated, where the updates follow all that other ranks take part in. All else leads to Unsure: a call
// that may fail lies between two updates, so that the storages may hold the one and not the other.
#include "core/exec/kept_in_place.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace tinyshard {
namespace {

// All watches of the process: runs of any thread meet them.
struct Watches {
  std::mutex mutex;
  std::vector<KeptInPlace*> all;
};
Watches& watches_of_process() {
  static Watches watches;
  return watches;
}

std::vector<KeptInPlace*> all_watches() {
  Watches& watches = watches_of_process();
  const std::lock_guard lock(watches.mutex);
  return watches.all;
}

}  // namespace

KeptInPlace::KeptInPlace(std::function<void()> before_end) : before_end_(std::move(before_end)) {
  Watches& watches = watches_of_process();
  const std::lock_guard lock(watches.mutex);
  watches.all.push_back(this);
}

KeptInPlace::~KeptInPlace() {
  Watches& watches = watches_of_process();
  const std::lock_guard lock(watches.mutex);
  std::erase(watches.all, this);
}

bool KeptInPlace::any() {
  Watches& watches = watches_of_process();
  const std::lock_guard lock(watches.mutex);
  return !watches.all.empty();
}

void KeptInPlace::keep(std::vector<std::shared_ptr<Storage>> storages) {
  storages_ = std::move(storages);
  std::ranges::sort(storages_);
  state_ = State::Kept;
}

bool KeptInPlace::watches(std::span<const Storage* const> written) const {
  return std::ranges::any_of(written, [&](const Storage* s) {
    return std::ranges::binary_search(storages_, s, {}, &std::shared_ptr<Storage>::get);
  });
}

KeptInPlace::Run::Run(std::span<const Storage* const> written, bool crosses, bool at_once) {
  for (KeptInPlace* watch : all_watches()) {
    const bool writes = watch->watches(written);
    if (crosses && (watch->state_ != State::Kept || (writes && !at_once)))
      watch->state_ = State::Unsure;
    if (writes) watches_.push_back(watch);
  }
}

void KeptInPlace::Run::updates() {
  for (KeptInPlace* watch : watches_) {
    if (watch->state_ != State::Unsure) watch->state_ = State::Updating;
  }
}

// A run that fails before stays in Updating, which is no state to go on from.
void KeptInPlace::Run::ends() {
  for (KeptInPlace* watch : watches_) {
    if (watch->state_ == State::Updating) watch->state_ = State::Updated;
  }
}

void KeptInPlace::crosses() {
  for (KeptInPlace* watch : all_watches()) {
    if (watch->state_ != State::Kept) watch->state_ = State::Unsure;
  }
}

void KeptInPlace::overwritten(std::span<Storage* const> storages) {
  const std::vector<const Storage*> written(storages.begin(), storages.end());
  for (KeptInPlace* watch : all_watches()) {
    if (watch->watches(written)) watch->state_ = State::Unsure;
  }
}

void KeptInPlace::epoch_ends() {
  for (KeptInPlace* watch : all_watches()) watch->before_end_();
}

}  // namespace tinyshard
