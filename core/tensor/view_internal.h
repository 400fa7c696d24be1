// Views that are written to. A view is a value of its own, the graph that shows a part of another
// tensor, and knows what it was taken of: a write to it becomes an assignment to that tensor, whole:
//
//   t.T()[0] = x     steps T, [0]     t.assign(where(inside, x moved back to column 0, t))
//
// The kernels of such an assignment touch the part alone. Internal to core/tensor.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/exec/tensor_state.h"
#include "core/tensor/value_internal.h"

namespace tinyshard {

namespace value {

// Values of a whole's shape, and where they count; without that, everywhere.
struct Placed {
  Value value;
  std::optional<Value> inside;
};

}  // namespace value

// A step from a tensor to a view of it.
struct ViewStep {
  // Returns what the view shows of a whole.
  std::function<value::Value(const value::Value& whole)> take;
  // The part, which is of the whole's type and broadcasts to what take() shows, in its place there.
  // Null where take() moves elements and no more: then it follows from that.
  std::function<value::Placed(const value::Value& whole, const value::Value& part)> put;
  // True if put() brings each element of the part to one place, whatever the whole holds.
  bool only_places = false;
};

namespace value {

Tensor view_of(const Tensor& whole, ViewStep step, bool is_copy = false);
// A view by movement alone.
Tensor moved(const Tensor& whole, std::function<Value(const Value&)> take);

// From a tensor that is written to, through what is known of its views, to the one written by name.
struct Way {
  StatePtr whole;
  std::vector<std::shared_ptr<const ViewStep>> steps;
  std::vector<StatePtr> views;  // behind each step; null where nobody has it
};
// To a tensor, which may be no view at all: then it is the whole. A temporary is never a copy.
Way way_to(const Tensor& written, bool is_temporary);
// The same; fails the running call where nobody could ever see what is written to a temporary.
Way way_to_temporary(const Tensor& written);

// Returns what the whole shows at the end of the way now.
Value at_end_of(const Way& way);
// The part in its place in the whole; nothing where the way is one of steps that do more than that.
std::optional<Placed> placed(const Way& way, const Value& part);
// `part` where it counts, and `rest` elsewhere.
Value over(const Placed& part, const Value& rest);
// Writes the part, of the type of what is there, which it broadcasts to. All that is on the way shows
// it.
void write(const Way& way, const Value& part);
void write_whole(const Way& way, const Value& whole);

}  // namespace value
}  // namespace tinyshard
