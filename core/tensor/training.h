// The mode in which dropout drops and BatchNorm learns its statistics. Optimizers insist on it.
//
//   TrainingMode on;      // until the end of the scope, on this thread
#pragma once

namespace tinyshard {

class TrainingMode {
 public:
  explicit TrainingMode(bool enabled = true);
  ~TrainingMode();
  TrainingMode(const TrainingMode&) = delete;
  TrainingMode& operator=(const TrainingMode&) = delete;

 private:
  bool previous_, previous_within_trace_;
};

// Tells whether the calling thread is in training mode. A captured step whose function asks is
// traced once for each mode that it is called in.
bool is_training();

}  // namespace tinyshard
