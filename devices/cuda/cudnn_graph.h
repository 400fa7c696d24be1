// A graph of cuDNN operations, and the plan by which an engine of cuDNN runs all of it at once.
// Tensors are numbers; operations are added in any order that defines a tensor before its use.
#pragma once
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype/dtype.h"
#include "core/uop/uop.h"
#include "devices/cuda/cudnn.h"

namespace tinyshard::cuda {

// A descriptor of cuDNN. All calls throw DeviceError.
class DnnObject {
 public:
  DnnObject(DnnKind kind, const char* what);
  DnnObject(DnnObject&& other) noexcept
      : what_(other.what_), handle_(std::exchange(other.handle_, nullptr)) {}
  ~DnnObject();

  DnnObject& set(DnnAttribute attribute, DnnValue type, const void* values, int64_t count = 1);
  DnnObject& set(DnnAttribute attribute, DnnType value) {
    return set(attribute, kDnnValueType, &value);
  }
  DnnObject& set(DnnAttribute attribute, const DnnObject& value) {
    return set_pointers(attribute, kDnnValueDescriptor, &value.handle_);
  }
  // Handles, descriptors and addresses: what is in the list is a pointer itself.
  template <class T>
  DnnObject& set_pointers(DnnAttribute attribute, DnnValue type, T* const* values,
                          int64_t count = 1) {
    return set(attribute, type, static_cast<const void*>(values), count);
  }
  DnnObject& set(DnnAttribute attribute, DimSpan values) {
    return set(attribute, kDnnValueInt64, values.data(), int64_t(values.size()));
  }
  void finish();
  bool finish_if_supported();  // false, and `Cudnn::last_error` says why, where cuDNN cannot
  DnnDescriptor handle() const { return handle_; }

 private:
  const char* what_;
  DnnDescriptor handle_ = nullptr;
};

// For whom a plan is made: the GPU of a handle, or one that is not here, by its properties (JSON,
// as cuDNN writes them); plans for the latter cannot run.
struct DnnTarget {
  DnnHandle handle = nullptr;
  std::string properties;
};

class DnnPlanned {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Queues it on the handle's stream: an address for each tensor in memory, in their order.
  void run(DnnHandle handle, std::span<void* const> addresses, void* workspace) const;

 private:
  friend class DnnBuilder;
  explicit DnnPlanned(DnnObject plan) : plan_(std::move(plan)) {}
  std::vector<DnnObject> parts_;  // what the plan was made of
  DnnObject plan_;
  std::vector<int64_t> ids_;  // of tensors in memory, then of constants
  std::vector<float> constants_;
  int64_t workspace_bytes_ = 0;
};

// Which of the three products of a convolution is computed; each from the other two.
enum class DnnConvolve { Forward, Data, Weight };

struct DnnWindows {
  Dims stride, dilation, pad_low, pad_high;
};

class DnnBuilder {
 public:
  // In memory. Strides in elements; addresses are multiples of 16 bytes.
  int memory(DType dtype, DimSpan dims, DimSpan strides);
  int constant(float value);
  // Never in memory. Row-major, unless strides are given.
  int inside(DnnType type, DimSpan dims) { return inside(type, dims, {}); }
  int inside(DnnType type, DimSpan dims, DimSpan strides);

  void matmul(int a, int b, int out);
  void unary(DnnUnary mode, int x, int out) { pointwise(int(mode), {x}, out, kDnnF32); }
  void binary(DnnBinary mode, int x, int y, int out);
  void select(int condition, int x, int y, int out);
  void index(int like, int64_t axis, int out);  // the position along an axis
  void reduce(DnnReduce mode, int x, int out);
  void reshape(int x, int out);
  void convolution(DnnConvolve which, const DnnWindows& windows, int x, int w, int y);

  // Leaves out engines that say this of themselves.
  void without(DnnNote note) { unwanted_.push_back(note); }
  void with_workspace_of(int64_t bytes) { most_workspace_ = bytes; }

  // Returns whether cuDNN has an engine for it. Far cheaper than a plan, which compiles kernels.
  bool supported(const DnnTarget& target) const;
  // The best plan of those that cuDNN advises. Throws DeviceError when it has none.
  std::unique_ptr<DnnPlanned> plan(const DnnTarget& target);

 private:
  DnnObject graph(const DnnTarget& target) const;
  std::vector<DnnObject> engines(const DnnObject& graph, DnnMode mode,
                                 const std::optional<DnnObject>& device) const;
  int tensor(DnnType type, DimSpan dims, DimSpan strides, bool is_virtual, bool by_value);
  void pointwise(int mode, std::initializer_list<int> sources, int out, DnnType compute,
                 std::optional<int64_t> axis = {});

  std::vector<DnnObject> tensors_, details_, operations_;
  std::vector<int64_t> in_memory_, constant_ids_;
  std::vector<float> constants_;
  std::vector<DnnNote> unwanted_;
  int64_t most_workspace_ = INT64_MAX;
};

DnnType dnn_type(DType dtype);

}  // namespace tinyshard::cuda
