// Convolutions of oneDNN, and the shapes that it is asked with. Internal to onednn*.cpp.
#pragma once
#include <string>

#include "devices/cpu/onednn_primitives.h"

namespace tinyshard::onednn {

Dims dense_strides(const Dims& dims);
Dims src_dims(const ConvSpec& s);
Dims dst_dims(const ConvSpec& s);
Dims weight_dims(const ConvSpec& s);

// A convolution as oneDNN chose to do it: the primitive, its layouts, its scratch.
struct ConvPrimitive {
  dnnl::primitive primitive;
  memory::desc src, weights, dst, bias, scratch;
  std::string implementation;
};

// Lets oneDNN choose layouts, but for `weights` where they are given; where it then has only a
// plain loop, asks for plain layouts, for which it has a matrix product. False if there is only a
// plain loop for these, too. `build` also generates the kernel.
bool create_conv(const ConvSpec& s, bool build, ConvPrimitive& out,
                 const memory::desc* weights = nullptr);

}  // namespace tinyshard::onednn
