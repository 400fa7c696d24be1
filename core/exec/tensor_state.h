// The state that all copies of one Tensor handle share. Tensor is a thin layer of methods over it;
// state.h says what the engine does with it.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/uop/uop.h"

namespace tinyshard {

class Capture;
class TensorState;
struct GatherOnUse;
struct ViewStep;

// The tensor that a view is of. Who writes to the view writes there; what it read stays as it was.
// It keeps nothing alive. See core/tensor/view_internal.h.
struct ViewOf {
  std::weak_ptr<TensorState> whole;
  std::shared_ptr<const ViewOf> whole_view;  // what that is a view of in turn; null: of nothing
  std::shared_ptr<const ViewStep> step;
  bool is_copy = false;  // of elements that index tensors choose: written to while it has no name
};

// A value, computed or not. `value` is a Buffer node once it is realized; before, the graph that
// computes it, below a name. An Assign(target, v) node means: v, to be written over target's
// storage. A Buffer below names and Detach is the value of another state, too: this one needs no
// memory of its own until that storage is written over.
class TensorState : public std::enable_shared_from_this<TensorState> {
  UOp value_;
  std::shared_ptr<TensorState> gradient_;
  // Kept by LiveValues, under its lock.
  TensorState *older_ = nullptr, *newer_ = nullptr;  // in the order of newest_value()
  uint64_t given_ = 0;
  const Capture* trace_ = nullptr;  // under way, that gave it its value
  uint32_t thread_ = 0;             // that gave it its value
  friend class Capture;
  friend class LiveValues;

 public:
  explicit TensorState(UOp value);
  ~TensorState();
  TensorState(const TensorState&) = delete;
  TensorState& operator=(const TensorState&) = delete;

  const UOp& value = value_;
  void set(UOp value);  // computed, or put where it will be: what the state is known by stays
  int64_t name;  // of what graphs built before it was computed know it by; 0: of the value alone
  // A trace notes whose it asks for or gives, and gets what stands for those from before.
  std::shared_ptr<TensorState> gradient();
  void set_gradient(std::shared_ptr<TensorState> gradient);
  // Outside of traces, as it is: what a step compares and takes at each call.
  const std::shared_ptr<TensorState>& gradient_now() const { return gradient_; }
  // Its path in a model, "h.0.attn.weight", once one was asked for; for messages and plans.
  std::string label;
  void set_label(const std::string& path);
  std::shared_ptr<const ViewOf> view_of;  // null: its value is its own
  // A parameter that lies in parts is put together so where it is read. See nn::fully_shard.
  std::shared_ptr<const GatherOnUse> gather_on_use;
  void set_gather_on_use(std::shared_ptr<const GatherOnUse> how);
  // True for a parameter whose parts products do not move. See nn::tensor_parallel.
  bool stays = false;
  void set_stays();
  std::atomic<bool> is_param = false;  // backward() fills its gradient
  std::atomic<bool> frozen = false;    // is_param_(false) said that it is no parameter, or no more
  // Says of an optimizer's state whose it is: the parameter by identity, name and number.
  struct KeptFor {
    std::weak_ptr<const TensorState> parameter;
    std::string name;
    size_t number;
  };
  std::optional<KeptFor> kept_for;
  std::atomic<bool> traced = false;  // made in a captured step, not returned: it has no value
  std::atomic<bool> left = false;    // a gradient that captured steps leave and write over
};
using StatePtr = std::shared_ptr<TensorState>;
StatePtr make_state(UOp value);
// The state takes another value, as another tensor would.
void replace_value(TensorState& state, UOp value);

}  // namespace tinyshard
