// An asynchronous copy of a value to the host, which a program reads when it needs it:
//
//   HostCopy loss = step(x, y).copy_to_host();    // the devices go on at once
//   step(next_x, next_y);                         // queued behind that copy
//   std::cout << loss.item<float>();              // waits for the first step, not for the second
//
// It holds what the tensor was when the copy began, whatever is written to it later: the result of a
// captured step, which each call writes over, can be read while the next call runs.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "core/base/call.h"
#include "core/dtype/dtype.h"
#include "core/tensor/arguments.h"

namespace tinyshard {

class LateRead;

// Copies share the value. Threads: one at a time. UserError for what was not read before
// Runtime::shutdown(), and where it was never given a value; a failure of the device, or of a rank
// that it waits for, comes out of the call that reads.
class HostCopy {
 public:
  HostCopy() = default;

  bool ready(Caller caller = Caller::current()) const;  // whether reading would not wait
  template <Number E>
  E item(Caller caller = Caller::current()) const;  // of a tensor of one element
  template <Number E>
  std::vector<E> to_vector(Caller caller = Caller::current()) const;  // row-major, converted to E
  std::vector<std::byte> data(Caller caller = Caller::current()) const;  // row-major, as they are

 private:
  friend class Tensor;
  HostCopy(std::shared_ptr<const LateRead> read, DType dtype)
      : read_(std::move(read)), dtype_(dtype) {}
  const LateRead& read() const;

  std::shared_ptr<const LateRead> read_;
  DType dtype_ = DType::F32;
};

}  // namespace tinyshard
