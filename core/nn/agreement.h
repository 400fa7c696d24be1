// The ranks of a job tell each other this beside their tensors, while they load and save.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/runtime/communicator.h"
#include "core/uop/op.h"

namespace tinyshard::nn {

// A few numbers of rank 0 for everyone, or the least of everyone's: through one all-reduce, to
// which rank 0, or each rank, contributes for its first device and the others nothing.
using Message = std::array<int64_t, 3>;
Message exchange(Message mine, ReduceOp op, int64_t nothing);

// The same in two halves, so that ranks do something else meanwhile. What the first half began uses
// this object's memory until wait() has returned or the ranks' group is gone.
class Exchange {
 public:
  Exchange(Message mine, ReduceOp op, int64_t nothing);
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  Message wait();  // CommError where a rank does not come

 private:
  std::vector<Message> terms_;
  RunIdentity identity_;
  Work work_;
};

// True on all ranks if all ranks pass true.
bool agree(bool mine);

// Returns the first text of all ranks that is not empty, or its beginning, with whose it is: "rank 3
// on node03: write part: No space left on device". Empty where all are.
std::string first_reason(std::string_view own);

}  // namespace tinyshard::nn
