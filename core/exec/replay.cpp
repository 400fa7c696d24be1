// A recording reads the lists of pointers that its launches were given. Changed lists are collected
// until the next run, which asks every recording to read them again; a device passes over lists it
// does not know. If a device cannot do so, or if anything throws between begin and end, all
// recordings are dropped, and the next run makes them anew.
#include "core/exec/replay.h"

#include <algorithm>

namespace tinyshard {

void Replay::changed(void** list) {
  if (recordings_.empty()) return;  // a recording yet to be made reads the lists as they are then
  if (std::ranges::find(changed_, list) == changed_.end()) changed_.push_back(list);
}

bool Replay::update() {
  if (changed_.empty()) return true;
  // Each device knows its own lists and passes over the others.
  bool done = std::ranges::all_of(recordings_, [&](auto& r) { return r->update(changed_); });
  changed_.clear();
  return done;
}

void Replay::record(std::span<Device* const> devices, const std::function<void()>& items) {
  recordings_.clear();
  changed_.clear();
  size_t begun = 0, ended = 0;
  try {
    for (Device* device : devices) {
      device->begin_recording();
      ++begun;
    }
    items();
    for (Device* device : devices) {
      ++ended;
      recordings_.push_back(device->end_recording());
    }
  } catch (...) {
    recordings_.clear();
    for (size_t i = ended; i < begun; ++i) devices[i]->abandon_recording();
    throw;
  }
}

void Replay::run(std::span<Device* const> devices, const std::function<void()>& items) {
  if (recordings_.empty() || !update()) record(devices, items);
  for (auto& recording : recordings_) recording->launch();
}

}  // namespace tinyshard
