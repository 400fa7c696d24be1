// The state of cuDNN on each GPU: its handle, and the plans made so far.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "devices/cuda/cudnn_graph.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

DnnHandle dnn_handle(const Gpu& gpu);

// Returns the answer of `has_engine`, which is asked once for each key.
bool dnn_supports(const Gpu& gpu, const std::string& key,
                  const std::function<bool(const DnnTarget&)>& has_engine);

using DnnPlanner = std::function<std::unique_ptr<DnnPlanned>(const DnnTarget&)>;

// The plan under this key, made at the first call. It runs on the handle above.
std::shared_ptr<const DnnPlanned> dnn_plan(Gpu& gpu, const std::string& key,
                                           const DnnPlanner& make);
// Makes the plan, unless that has begun. Threads that make different plans do so side by side.
void dnn_prepare(Gpu& gpu, const std::string& key, const DnnPlanner& make);

}  // namespace tinyshard::cuda
