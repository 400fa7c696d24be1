// What cuDNN keeps per GPU: its handle, and the plans made so far. A shape that no engine takes is
// remembered too.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "devices/cuda/cudnn_graph.h"
#include "devices/cuda/gpu.h"

namespace tinyshard::cuda {

DnnHandle dnn_handle(const Gpu& gpu);

// The plan under this key, made by `make` at the first call. Throws the DeviceError of `make`.
std::shared_ptr<const DnnPlanned> dnn_plan(
    const Gpu& gpu, const std::string& key,
    const std::function<std::unique_ptr<DnnPlanned>(const DnnTarget&)>& make);

}  // namespace tinyshard::cuda
