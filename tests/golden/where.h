// Where the inputs of a case lie: on one device as they are, or placed on a mesh in one of the ways
// that golden_runner offers.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "core/tensor/tensor.h"

namespace tinyshard::golden {

class Where {
 public:
  Where() = default;  // on the default device
  // Devices of `kind`; `axes` are the mesh's sizes, such as {4} or {2, 2}. `placement` is one of
  //   replicate    the whole on each device
  //   shard:auto   along dims that the devices divide, the longest first
  //   shard:K      along dim K, on further mesh axes along the dims after it
  //   uneven       along dims that the devices do not divide, if there are any
  //   partial      each device holds one term of a pending reduction
  // UserError where there is no such placement.
  Where(const std::string& kind, const std::vector<int64_t>& axes, const std::string& placement);

  Tensor put(const Tensor& x) const;        // where and how
  Tensor replicate(const Tensor& x) const;  // there, whole on each device
  std::string to_string() const;

 private:
  enum class How { Replicate, Auto, Dim, Uneven, Partial };
  std::vector<AxisPlacement> dims_of(const Tensor& x) const;
  Tensor partial(const Tensor& x) const;

  std::optional<Mesh> mesh_;
  How how_ = How::Replicate;
  int64_t dim_ = 0;
};

}  // namespace tinyshard::golden
