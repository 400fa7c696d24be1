// Descriptors of cuDNN as objects that end themselves, the operations of a graph, and the choice of
// an engine: the first that the library advises and that needs no more workspace than is allowed.
#include "devices/cuda/cudnn_graph.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard::cuda {
namespace {

constexpr int64_t kTensorAlignment = 16;

std::optional<DnnObject> absent_device(const DnnTarget& target) {
  if (target.handle) return std::nullopt;
  DnnObject device(kDnnDevice, "a device");
  device.set(kDnnDeviceJson, kDnnValueChar, target.properties.data(),
             int64_t(target.properties.size()));
  device.finish();
  return device;
}

// Engines and settings for a graph, the most promising first.
std::vector<DnnObject> advice(const DnnObject& graph, DnnMode mode,
                              const std::optional<DnnObject>& device) {
  DnnObject heuristics(kDnnHeuristics, "heuristics");
  heuristics.set(kDnnHeuristicsGraph, graph)
      .set(kDnnHeuristicsMode, kDnnValueHeuristicsMode, &mode);
  if (device) heuristics.set(kDnnHeuristicsDevice, *device);
  if (!heuristics.finish_if_supported()) return {};
  const Cudnn& dnn = Cudnn::get();
  int64_t count = 0;
  dnn.check(dnn.get_attribute(heuristics.handle(), kDnnHeuristicsResults, kDnnValueDescriptor, 0,
                              &count, nullptr),
            "counting engines");
  std::vector<DnnObject> configs;
  std::vector<DnnDescriptor> handles;
  for (int64_t i = 0; i < count; ++i) {
    configs.emplace_back(kDnnEngineConfig, "an engine's settings");
    handles.push_back(configs.back().handle());
  }
  if (count > 0)
    dnn.check(dnn.get_attribute(heuristics.handle(), kDnnHeuristicsResults, kDnnValueDescriptor,
                                count, &count, static_cast<void*>(handles.data())),
              "asking for engines");
  while (int64_t(configs.size()) > count) configs.pop_back();
  return configs;
}

std::vector<DnnNote> notes_of(const DnnObject& config) {
  constexpr int64_t kMost = 32;
  const Cudnn& dnn = Cudnn::get();
  DnnObject engine(kDnnEngine, "an engine");
  DnnDescriptor handle = engine.handle();
  int64_t count = 0;
  dnn.check(dnn.get_attribute(config.handle(), kDnnEngineConfigEngine, kDnnValueDescriptor, 1,
                              &count, static_cast<void*>(&handle)),
            "asking which engine it is");
  std::vector<DnnNote> notes(kMost);
  dnn.check(dnn.get_attribute(handle, kDnnEngineNotes, kDnnValueNote, kMost, &count, notes.data()),
            "asking for an engine's notes");
  notes.resize(size_t(std::min(count, kMost)));
  return notes;
}

}  // namespace

DnnType dnn_type(DType dtype) {
  switch (dtype) {
    case DType::F64:
      return kDnnF64;
    case DType::F16:
      return kDnnF16;
    case DType::BF16:
      return kDnnBf16;
    default:
      return kDnnF32;
  }
}

DnnObject::DnnObject(DnnKind kind, const char* what) : what_(what) {
  Cudnn::get().check(Cudnn::get().create_descriptor(kind, &handle_), what);
}

DnnObject::~DnnObject() {
  if (handle_) Cudnn::get().destroy_descriptor(handle_);
}

DnnObject& DnnObject::set(DnnAttribute attribute, DnnValue type, const void* values,
                          int64_t count) {
  DnnStatus status = Cudnn::get().set_attribute(handle_, attribute, type, count, values);
  if (status != 0)
    Cudnn::get().check(status, fmt::format("attribute {} of {}", int(attribute), what_));
  return *this;
}

void DnnObject::finish() { Cudnn::get().check(Cudnn::get().finalize(handle_), what_); }

bool DnnObject::finish_if_supported() {
  DnnStatus status = Cudnn::get().finalize(handle_);
  if (status / 1000 == kDnnNotSupported / 1000) return false;
  Cudnn::get().check(status, what_);
  return true;
}

int DnnBuilder::tensor(DnnType type, DimSpan dims, DimSpan strides, bool is_virtual,
                       bool by_value) {
  auto id = int64_t(tensors_.size());
  DnnObject& x = tensors_.emplace_back(kDnnTensor, "a tensor");
  x.set(kDnnTensorType, type).set(kDnnTensorDims, dims).set(kDnnTensorStrides, strides);
  x.set(kDnnTensorId, DimSpan(&id, 1)).set(kDnnTensorAlignment, DimSpan(&kTensorAlignment, 1));
  if (is_virtual) x.set(kDnnTensorVirtual, kDnnValueBool, &is_virtual);
  if (by_value) x.set(kDnnTensorByValue, kDnnValueBool, &by_value);
  x.finish();
  return int(id);
}

int DnnBuilder::memory(DType dtype, DimSpan dims, DimSpan strides) {
  int id = tensor(dnn_type(dtype), dims, strides, false, false);
  in_memory_.push_back(id);
  return id;
}

int DnnBuilder::constant(float value) {
  const Dims ones(4, 1);
  int id = tensor(kDnnF32, ones, ones, false, true);
  constant_ids_.push_back(id);
  constants_.push_back(value);
  return id;
}

int DnnBuilder::inside(DnnType type, DimSpan dims, DimSpan strides) {
  Dims row_major(dims.size());
  int64_t stride = 1;
  for (size_t i = dims.size(); i-- > 0; stride *= dims[i]) row_major[i] = stride;
  return tensor(type, dims, strides.empty() ? DimSpan(row_major) : strides, true, false);
}

void DnnBuilder::matmul(int a, int b, int out) {
  DnnObject& detail = details_.emplace_back(kDnnMatmul, "a product");
  detail.set(kDnnMatmulCompute, kDnnF32).finish();
  DnnObject& op = operations_.emplace_back(kDnnMatmulOp, "a product");
  op.set(kDnnMatmulOpA, tensors_[a])
      .set(kDnnMatmulOpB, tensors_[b])
      .set(kDnnMatmulOpC, tensors_[out]);
  op.set(kDnnMatmulOpDescriptor, detail).finish();
}

void DnnBuilder::pointwise(int mode, std::initializer_list<int> sources, int out, DnnType compute,
                           std::optional<int64_t> axis) {
  DnnObject& detail = details_.emplace_back(kDnnPointwise, "arithmetic");
  detail.set(kDnnPointwiseMode, kDnnValuePointwise, &mode).set(kDnnPointwiseCompute, compute);
  if (axis) detail.set(kDnnPointwiseAxis, DimSpan(&*axis, 1));
  detail.finish();
  DnnObject& op = operations_.emplace_back(kDnnPointwiseOp, "arithmetic");
  op.set(kDnnPointwiseOpDescriptor, detail).set(kDnnPointwiseOpY, tensors_[out]);
  constexpr DnnAttribute kPlaces[] = {kDnnPointwiseOpX, kDnnPointwiseOpB, kDnnPointwiseOpT};
  for (size_t i = 0; i < sources.size(); ++i) op.set(kPlaces[i], tensors_[sources.begin()[i]]);
  op.finish();
}

void DnnBuilder::binary(DnnBinary mode, int x, int y, int out) {
  pointwise(int(mode), {x, y}, out, mode == DnnBinary::GreaterEqual ? kDnnBool : kDnnF32);
}
void DnnBuilder::select(int condition, int x, int y, int out) {
  pointwise(kDnnSelect, {x, y, condition}, out, kDnnF32);
}
void DnnBuilder::index(int like, int64_t axis, int out) {
  pointwise(int(DnnUnary::Index), {like}, out, kDnnI32, axis);
}

void DnnBuilder::reduce(DnnReduce mode, int x, int out) {
  DnnObject& detail = details_.emplace_back(kDnnReduction, "a reduction");
  detail.set(kDnnReductionOperator, kDnnValueReduction, &mode).set(kDnnReductionCompute, kDnnF32);
  detail.finish();
  DnnObject& op = operations_.emplace_back(kDnnReductionOp, "a reduction");
  op.set(kDnnReductionOpX, tensors_[x]).set(kDnnReductionOpY, tensors_[out]);
  op.set(kDnnReductionOpDescriptor, detail).finish();
}

void DnnBuilder::reshape(int x, int out) {
  DnnObject& op = operations_.emplace_back(kDnnReshapeOp, "a reshape");
  op.set(kDnnReshapeOpX, tensors_[x]).set(kDnnReshapeOpY, tensors_[out]).finish();
}

void DnnBuilder::convolution(DnnConvolve which, const DnnWindows& windows, int x, int w, int y) {
  constexpr int kCorrelation = 1;
  const auto rank = int64_t(windows.stride.size());
  DnnObject& detail = details_.emplace_back(kDnnConvolution, "a convolution");
  detail.set(kDnnConvolutionCompute, kDnnF32);
  detail.set(kDnnConvolutionMode, kDnnValueConvolutionMode, &kCorrelation);
  detail.set(kDnnConvolutionRank, DimSpan(&rank, 1));
  detail.set(kDnnConvolutionStride, windows.stride);
  detail.set(kDnnConvolutionDilation, windows.dilation);
  detail.set(kDnnConvolutionPadLow, windows.pad_low);
  detail.set(kDnnConvolutionPadHigh, windows.pad_high);
  detail.finish();
  auto [kind, first] =
      which == DnnConvolve::Forward ? std::pair(kDnnConvForwardOp, kDnnConvForwardOpFirst)
      : which == DnnConvolve::Data  ? std::pair(kDnnConvDataOp, kDnnConvDataOpFirst)
                                    : std::pair(kDnnConvWeightOp, kDnnConvWeightOpFirst);
  DnnObject& op = operations_.emplace_back(kind, "a convolution");
  auto attribute = [base = int(first)](int place) { return DnnAttribute(base + place); };
  const float one = 1, zero = 0;
  op.set(attribute(0), kDnnValueFloat, &one).set(attribute(1), kDnnValueFloat, &zero);
  op.set(attribute(2), detail);
  op.set(attribute(3), tensors_[w]).set(attribute(4), tensors_[x]).set(attribute(5), tensors_[y]);
  op.finish();
}

std::vector<DnnObject> DnnBuilder::engines(const DnnObject& graph, DnnMode mode,
                                           const std::optional<DnnObject>& device) const {
  std::vector<DnnObject> all = advice(graph, mode, device), kept;
  if (unwanted_.empty()) return all;
  for (DnnObject& config : all) {
    std::vector<DnnNote> notes = notes_of(config);
    bool fits = std::ranges::none_of(
        unwanted_, [&](DnnNote note) { return std::ranges::find(notes, note) != notes.end(); });
    if (fits) kept.push_back(std::move(config));
  }
  return kept;
}

DnnObject DnnBuilder::graph(const DnnTarget& target) const {
  DnnObject graph(kDnnGraph, "a graph");
  if (target.handle) graph.set_pointers(kDnnGraphHandle, kDnnValueHandle, &target.handle);
  std::vector<DnnDescriptor> ops;
  for (const DnnObject& op : operations_) ops.push_back(op.handle());
  graph.set_pointers(kDnnGraphOps, kDnnValueDescriptor, ops.data(), int64_t(ops.size())).finish();
  return graph;
}

bool DnnBuilder::supported(const DnnTarget& target) const {
  std::optional<DnnObject> device = absent_device(target);
  DnnObject whole = graph(target);
  return !engines(whole, kDnnModeA, device).empty() ||
         !engines(whole, kDnnModeFallback, device).empty();
}

std::unique_ptr<DnnPlanned> DnnBuilder::plan(const DnnTarget& target) {
  std::optional<DnnObject> device = absent_device(target);
  DnnObject whole = graph(target);

  for (DnnMode mode : {kDnnModeA, kDnnModeFallback}) {
    for (DnnObject& config : engines(whole, mode, device)) {
      DnnObject made(kDnnPlan, "a plan");
      made.set(kDnnPlanEngineConfig, config);
      if (target.handle) made.set_pointers(kDnnPlanHandle, kDnnValueHandle, &target.handle);
      if (device) made.set(kDnnPlanDevice, *device);
      if (!made.finish_if_supported()) continue;
      std::unique_ptr<DnnPlanned> planned(new DnnPlanned(std::move(made)));
      int64_t count = 0;
      const Cudnn& dnn = Cudnn::get();
      dnn.check(dnn.get_attribute(planned->plan_.handle(), kDnnPlanWorkspace, kDnnValueInt64, 1,
                                  &count, &planned->workspace_bytes_),
                "the workspace of a plan");
      if (planned->workspace_bytes_ > most_workspace_) continue;
      for (auto* list : {&tensors_, &details_, &operations_}) {
        for (DnnObject& x : *list) planned->parts_.push_back(std::move(x));
      }
      planned->parts_.push_back(std::move(whole));
      planned->parts_.push_back(std::move(config));
      planned->ids_ = in_memory_;
      planned->ids_.insert(planned->ids_.end(), constant_ids_.begin(), constant_ids_.end());
      planned->constants_ = constants_;
      return planned;
    }
  }
  throw DeviceError("cuDNN has no engine for the graph: " + Cudnn::get().last_error());
}

void DnnPlanned::run(DnnHandle handle, std::span<void* const> addresses, void* workspace) const {
  check_internal(addresses.size() + constants_.size() == ids_.size(),
                 "a plan needs the address of each of its tensors");
  std::vector<const void*> pointers(addresses.begin(), addresses.end());
  for (const float& constant : constants_) pointers.push_back(&constant);
  DnnObject arguments(kDnnArguments, "arguments");
  arguments.set(kDnnArgumentsIds, ids_);
  arguments.set_pointers(kDnnArgumentsPointers, kDnnValuePointer, pointers.data(),
                         int64_t(pointers.size()));
  arguments.set_pointers(kDnnArgumentsWorkspace, kDnnValuePointer, &workspace);
  arguments.finish();
  Cudnn::get().check(Cudnn::get().execute(handle, plan_.handle(), arguments.handle()), "running");
}

}  // namespace tinyshard::cuda
