// The two models that examples/mnist.cpp trains on images of digits, [batch, 1, 28, 28].
#pragma once
#include <tinyshard/tinyshard.h>

namespace mnist {

using namespace tinyshard;

struct Mlp {
  nn::Linear l1{784, 1024}, l2{1024, 1024}, l3{1024, 10};
  TS_FIELDS(l1, l2, l3)

  Tensor operator()(const Tensor& images) const {
    Tensor h = l1(images.flatten(1)).relu();
    return l3(l2(h).relu());
  }
};

struct Convnet {
  nn::Conv2d c1{1, 32, 5}, c2{32, 32, 5}, c3{32, 64, 3}, c4{64, 64, 3};
  nn::BatchNorm norm1{32}, norm2{64};
  nn::Linear out{576, 10};
  TS_FIELDS(c1, c2, c3, c4, norm1, norm2, out)

  Tensor operator()(const Tensor& images) const {
    Tensor h = norm1(c2(c1(images).relu()).relu()).max_pool2d();
    h = norm2(c4(c3(h).relu()).relu()).max_pool2d();
    return out(h.flatten(1));
  }
};

}  // namespace mnist
