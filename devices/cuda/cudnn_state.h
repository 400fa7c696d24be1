// What cuDNN keeps per GPU: its handle, and the plans made so far.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "devices/cuda/cudnn_graph.h"
#include "devices/cuda/gpu.h"

namespace tinyshard::cuda {

DnnHandle dnn_handle(const Gpu& gpu);

// What `has_engine` says, asked once for each key.
bool dnn_supports(const Gpu& gpu, const std::string& key,
                  const std::function<bool(const DnnTarget&)>& has_engine);

// The plan under this key, made at the first call.
std::shared_ptr<const DnnPlanned> dnn_plan(
    Gpu& gpu, const std::string& key,
    const std::function<std::unique_ptr<DnnPlanned>(const DnnTarget&)>& make);

}  // namespace tinyshard::cuda
