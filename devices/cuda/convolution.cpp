// The three ops are one graph of cuDNN in three directions, with x, weights
// and y in the order that cuDNN wants, and each op's result in one of the
// three places. Engines whose results change from run to run are left out, and
// for f32 those that narrow their inputs. Equal convolutions share one plan.
#include "devices/cuda/convolution.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/options.h"
#include "devices/cuda/cudnn_state.h"

namespace tinyshard::cuda {
namespace {

constexpr int64_t kMostWorkspace = int64_t{512} << 20;

Dims row_major(DimSpan shape) {
  Dims strides(shape.size());
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides[i] = stride;
  return strides;
}

// Operands come in the order of the graph's sources, the result last.
DnnBuilder build(const UOp& node) {
  DnnBuilder g;
  auto memory = [&](DimSpan shape) { return g.memory(node.dtype(), shape, row_major(shape)); };
  int a = memory(node.src(0).shape()), b = memory(node.src(1).shape()), c = memory(node.shape());
  ConvArg arg = conv_arg(*node);
  DnnWindows windows;
  for (int i = 0; i < 2; ++i) {
    windows.stride.push_back(arg.stride[i]);
    windows.dilation.push_back(arg.dilation[i]);
    windows.pad_low.push_back(arg.pad_low[i]);
    windows.pad_high.push_back(arg.pad_high[i]);
  }
  if (node.op() == Op::Conv) g.convolution(DnnConvolve::Forward, windows, a, b, c);
  if (node.op() == Op::ConvBackwardData) g.convolution(DnnConvolve::Data, windows, c, b, a);
  if (node.op() == Op::ConvBackwardWeight) g.convolution(DnnConvolve::Weight, windows, a, c, b);
  g.without(kDnnNotRepeatable);
  if (node.dtype() == DType::F32) {
    g.without(kDnnNarrowsInputs);
    if (!options().tf32) g.without(kDnnTensorCores);
  }
  g.with_workspace_of(kMostWorkspace);
  return g;
}

std::string key_of(const UOp& node) {
  return fmt::format("{} {} {}", describe(*node), to_string(node.src(0).shape()),
                     to_string(node.src(1).shape()));
}

DnnPlanner planner(const UOp& node) {
  return [&node](const DnnTarget& target) { return plan_convolution(node, target); };
}

class ConvolutionProgram final : public GpuProgram {
 public:
  ConvolutionProgram(Gpu& gpu, const UOp& node)
      : GpuProgram(gpu),
        what_("cuDNN " + key_of(node)),
        handle_(dnn_handle(gpu)),
        plan_(dnn_plan(gpu, key_of(node), planner(node))),
        workspace_(gpu.workspace(size_t(std::max<int64_t>(plan_->workspace_bytes(), 1)))) {}

  void enqueue(void* const* buffers, const int64_t*) override {
    plan_->run(handle_, std::span(buffers, 3), workspace_.get());
  }
  const void* scratch() const override { return workspace_.get(); }
  std::string describe() const override { return what_; }

 private:
  std::string what_;
  DnnHandle handle_;
  std::shared_ptr<const DnnPlanned> plan_;
  std::shared_ptr<void> workspace_;
};

}  // namespace

bool convolution_has_engine(const UOp& node, const DnnTarget& target) {
  return build(node).supported(target);
}

std::unique_ptr<DnnPlanned> plan_convolution(const UOp& node, const DnnTarget& target) {
  return build(node).plan(target);
}

bool convolution_fits(const LibraryCall& call, std::string* why) {
  const UOp& node = call.node;
  auto refuse = [&](const std::string& reason) {
    if (why) *why = reason;
    return false;
  };
  DType dtype = node.dtype();
  if (dtype != DType::F32 && dtype != DType::F16 && dtype != DType::BF16)
    return refuse(fmt::format("cuDNN is not asked for convolutions of {}", name(dtype)));
  if (node.src(0).dtype() != dtype || node.src(1).dtype() != dtype || !call.also.empty())
    return refuse("types differ");
  if (node->numel() == 0 || node.src(0)->numel() == 0 || node.src(1)->numel() == 0)
    return refuse("there is nothing to compute");
  ConvArg arg = conv_arg(*node);
  // The only engine that takes it and repeats its results runs at 5 GB/s.
  const DimSpan weight = node.src(1).shape();
  if (node.op() == Op::ConvBackwardData && std::max(arg.stride[0], arg.stride[1]) > 1 &&
      arg.groups == 1 && weight[2] * weight[3] == 1 && arg.pad_low[0] == 0 && arg.pad_low[1] == 0)
    return refuse("a product whose result is spread out is faster");
  for (int i = 0; i < 2; ++i) {
    if (arg.pad_low[i] < 0 || arg.pad_high[i] < 0) return refuse("a padding is negative");
  }
  return true;
}

bool convolution_supports(const Gpu& gpu, const LibraryCall& call, std::string* why) {
  auto refuse = [&](const std::string& reason) {
    if (why) *why = reason;
    return false;
  };
  if (!Cudnn::get().found()) return refuse("cuDNN is missing: " + Cudnn::get().why_not());
  if (!convolution_fits(call, why)) return false;
  const UOp& node = call.node;
  bool found = dnn_supports(gpu, key_of(node), [&](const DnnTarget& target) {
    return convolution_has_engine(node, target);
  });
  return found || refuse("cuDNN has no engine for " + key_of(node));
}

void prepare_convolution(Gpu& gpu, const LibraryCall& call) {
  dnn_prepare(gpu, key_of(call.node), planner(call.node));
}

std::unique_ptr<Program> make_convolution(Gpu& gpu, const LibraryCall& call) {
  return std::make_unique<ConvolutionProgram>(gpu, call.node);
}

}  // namespace tinyshard::cuda
