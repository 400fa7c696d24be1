// Scopes: what surrounds a call, is no argument of it, and changes what its ops mean. A trace that
// looks at one is good for that value alone, so each look is noted (Capture::scopes), unless the trace
// itself has set it:
//
//   x.dropout(0.5)                        looks: the trace depends on the mode of its caller
//   { TrainingMode on; x.dropout(0.5); }  does not
#pragma once
#include <optional>

#include "core/dtype/dtype.h"

namespace tinyshard::scopes {

// The mode of one thread.
struct Training {
  bool on = false;
  bool within_trace = false;  // set by the trace under way
};
bool training();
// Returns what was there, for restore_training().
Training set_training(bool on);
void restore_training(Training before);

// The type of floats that nobody chose, of the whole process. Not set within a trace.
DType default_float();
void set_default_float(DType dtype);

// The scopes that a trace looked at, with the values that they had outside of it.
struct Seen {
  std::optional<bool> training;
  std::optional<DType> default_float;
  bool hold() const;  // for the calling thread, now
};

}  // namespace tinyshard::scopes
