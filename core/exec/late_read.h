// Values that are on their way to the host while the devices go on.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/exec/runtime_part.h"
#include "core/exec/tensor_state.h"
#include "core/runtime/pending_copy.h"

namespace tinyshard {

// Elements of a state in row-major order of the global shape, as they were when the read began.
// Threads: any, one at a time.
class LateRead final : public RuntimePart {
 public:
  explicit LateRead(std::unique_ptr<PendingCopy> copy) : copy_(std::move(copy)) { join_runtime(); }
  ~LateRead() override;
  bool arrived() const;                 // without waiting
  std::vector<std::byte> wait() const;  // may be called again
  // Waits, and shows the bytes to `use` without a copy. The runtime cannot end meanwhile.
  void wait_for(const std::function<void(std::span<const std::byte>)>& use) const;

 private:
  void check_usable() const;  // UserError where the runtime ended before
  void runtime_ends() noexcept override { copy_.reset(); }

  std::unique_ptr<PendingCopy> copy_;
};

// Realizes the state, and waits for nothing else.
std::unique_ptr<LateRead> begin_read(TensorState& state);

}  // namespace tinyshard
