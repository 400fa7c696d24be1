// Convolutions and their two adjoints on a GPU by cuDNN: f32 (TF32 inside where TS_TF32 allows it),
// f16 and bf16, which sum in f32.
#pragma once
#include <memory>
#include <string>

#include "devices/cuda/cudnn_graph.h"
#include "devices/cuda/executor.h"

namespace tinyshard::cuda {

// Throw DeviceError where cuDNN fails, as opposed to having no engine.
bool convolution_has_engine(const UOp& node, const DnnTarget& target);
std::unique_ptr<DnnPlanned> plan_convolution(const UOp& node, const DnnTarget& target);

// Returns whether cuDNN takes calls with such types, sizes and paddings.
bool convolution_fits(const LibraryCall& call, std::string* why);
bool convolution_supports(const Gpu& gpu, const LibraryCall& call, std::string* why);
void prepare_convolution(Gpu& gpu, const LibraryCall& call);
std::unique_ptr<Program> make_convolution(Gpu& gpu, const LibraryCall& call);

}  // namespace tinyshard::cuda
