// Convolutions over one to three spatial dims. x is [n, channels, spatial...].
#pragma once
#include <cstdint>

#include "core/nn/fields.h"

namespace tinyshard::nn {

struct ConvLayerOptions {
  Ints stride = 1;
  Ints padding = 0;   // as in ConvOptions
  bool same = false;  // pads so that the spatial size stays; needs stride 1
  Ints dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// The layer that Conv1d, Conv2d and Conv3d are made of; weight is [out, in / groups, kernel...].
struct Conv {
  Conv(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
       const ConvLayerOptions& options);
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias;
  ConvOptions options;
  TS_FIELDS(weight, bias)
};

struct Conv1d : Conv {
  Conv1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
         const ConvLayerOptions& options = {});
};

// A single number for the kernel means a square one.
struct Conv2d : Conv {
  Conv2d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
         const ConvLayerOptions& options = {});
};

// A single number for the kernel means a cube.
struct Conv3d : Conv {
  Conv3d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
         const ConvLayerOptions& options = {});
};

struct ConvTransposeLayerOptions {
  Ints stride = 1, padding = 0, output_padding = 0, dilation = 1;
  int64_t groups = 1;
  bool bias = true;
};

// The layer that ConvTranspose1d to 3d are made of; weight is [in, out / groups, kernel...].
struct ConvTranspose {
  ConvTranspose(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                const ConvTransposeLayerOptions& options);
  Tensor operator()(const Tensor& x, Caller caller = Caller::current()) const;

  Tensor weight, bias;
  ConvTransposeOptions options;
  TS_FIELDS(weight, bias)
};

struct ConvTranspose1d : ConvTranspose {
  ConvTranspose1d(int64_t in_channels, int64_t out_channels, int64_t kernel_size,
                  const ConvTransposeLayerOptions& options = {});
};

struct ConvTranspose2d : ConvTranspose {
  ConvTranspose2d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                  const ConvTransposeLayerOptions& options = {});
};

struct ConvTranspose3d : ConvTranspose {
  ConvTranspose3d(int64_t in_channels, int64_t out_channels, const Ints& kernel_size,
                  const ConvTransposeLayerOptions& options = {});
};

}  // namespace tinyshard::nn
