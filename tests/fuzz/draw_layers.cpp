// Steps of whole layers: attention, losses, normalisation, decompositions of matrices.
#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

using Names = std::vector<std::string>;

// x through a function that makes it a probability, or what it is.
int probabilities(Draft& d, int x) {
  Step s;
  s.op = "sigmoid", s.in = {x};
  return d.keep(s);
}

bool attention(Draft& d, Step& s) {
  int q = d.with_dims(2, is_float);
  if (q < 0 || d.at(q).rank() > 4) return false;
  Shape shape = d.shape(q), key = shape;
  Type type = d.type(q);
  bool grouped = shape.size() > 2 && d.chance(25);
  size_t heads = shape.size() < 3 ? 0 : shape.size() - 3;
  if (grouped && shape[heads] % 2 == 0) key[heads] /= 2;
  key[shape.size() - 2] = d.pick(1, 9);
  Shape value = key;
  if (d.chance(40)) value.back() = d.pick(1, 9);
  s.op = "attention", s.in = {q, d.like(key, type), d.like(value, type)};
  s.n = {d.chance(35), grouped};
  if (s.in[1] < 0 || s.in[2] < 0) return false;
  if (!s.n[0] && d.chance(40)) {
    Shape mask = {shape[shape.size() - 2], key[key.size() - 2]};
    s.in.push_back(d.like(mask, d.chance(50) && !d.gradient() ? Type::Bool : type));
  }
  return s.in.back() >= 0;
}

bool loss_of_pairs(Draft& d, Step& s, int x) {
  int y = d.like(d.shape(x), d.type(x));
  if (y >= 0) y = probabilities(d, y);
  if (y < 0) return false;
  s.n = {d.pick(0, 2)};
  if (d.chance(50)) {
    s.op = "binary_crossentropy", x = probabilities(d, x);
    s.in = {x, y};
    return x >= 0;
  }
  s.op = "binary_crossentropy_logits", s.in = {x, y};
  if (d.chance(30)) s.in.push_back(d.like({d.shape(x).back()}, d.type(x)));
  return s.in.back() >= 0;
}

// n: reduction, whether a label is ignored, which.
bool loss_of_classes(Draft& d, Step& s, int x) {
  static const Names kLosses = {"cross_entropy", "sparse_categorical_crossentropy", "nll_loss"};
  s.op = d.one_of(kLosses);
  const Shape shape = d.shape(x);
  size_t axis = s.op[0] == 's' ? shape.size() - 1 : shape.size() == 1 ? 0 : 1;
  Shape labels = shape;
  labels.erase(labels.begin() + int64_t(axis));
  bool ignores = d.chance(40);
  s.n = {d.pick(0, 2), ignores, ignores ? d.pick(0, int(shape[axis]) - 1) : -1};
  s.in = {x, draw_indices(d, labels, shape[axis])};
  if (s.in[1] < 0) return false;
  if (s.op == "nll_loss") {
    if (d.chance(40)) s.in.push_back(d.like({shape[axis]}, d.type(x)));
    return s.in.back() >= 0;
  }
  s.d = {d.chance(30) ? 0.125 : 0.0};
  return true;
}

bool loss_of_probabilities(Draft& d, Step& s, int x) {
  int y = d.like(d.shape(x), d.type(x));
  if (y >= 0) y = probabilities(d, y);
  if (y < 0) return false;
  s.op = "cross_entropy_probabilities", s.in = {x, y}, s.n = {d.pick(0, 2)};
  s.d = {d.chance(30) ? 0.125 : 0.0};
  return true;
}

bool batchnorm(Draft& d, Step& s, int x) {
  if (d.at(x).rank() < 2) return false;
  Shape channels = {d.shape(x)[1]};
  s.op = "batchnorm", s.in = {x};
  for (int i = 0; i < 4; ++i) {
    s.in.push_back(d.like(channels, d.type(x)));
    if (s.in.back() < 0) return false;
  }
  return true;
}

}  // namespace

bool draw_layer(Draft& d, Step& s) {
  int kind = d.pick(0, 9);
  if (kind < 4) return attention(d, s);
  int x = d.with_dims(1, is_float);
  if (x < 0) return false;
  if (kind < 6) return loss_of_pairs(d, s, x);
  if (kind < 8) return loss_of_classes(d, s, x);
  return kind == 8 ? loss_of_probabilities(d, s, x) : batchnorm(d, s, x);
}

// Factors of a matrix are no comparison, for several are right: what they must fulfil is.
bool draw_decomposition(Draft& d, Step& s) {
  int x = d.with_dims(2, is_float);
  if (x < 0) return false;
  int64_t m = d.shape(x)[size_t(d.at(x).rank()) - 2], n = d.shape(x).back();
  if (m > 12 || n > 12) return false;
  s.in = {x};
  if (d.chance(30)) {
    s.op = "newton_schulz", s.n = {d.pick(1, 2)}, s.d = {1.5, -0.5};
    return true;
  }
  if (d.gradient()) return false;
  static const Names kOps = {"qr_product",  "qr_orthogonal",  "qr_triangle",
                             "svd_product", "svd_orthogonal", "svd_values"};
  s.op = d.one_of(kOps);
  if (s.op.starts_with("svd")) s.n = {d.chance(50)};
  return true;
}

}  // namespace fuzz
