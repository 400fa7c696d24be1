// Steps of products: matrices, formulas, convolutions, windows.
#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

using Names = std::vector<std::string>;

bool matrix_product(Draft& d, Step& s, int x, bool with_itself) {
  const Shape shape = d.shape(x);
  if (with_itself && shape.size() == 2) {
    Step turn;
    turn.op = "transpose", turn.in = {x}, turn.n = {0, 1};
    s.op = "matmul", s.in = {x, d.keep(turn)};
    return s.in[1] >= 0;
  }
  Shape other = {shape.back(), d.pick(1, 9)};
  if (d.profile().sizes == Sizes::Tails && d.chance(50)) other[1] = d.one_of(kTails);
  if (shape.size() > 2 && d.chance(30))
    other = shape, std::swap(other.back(), other[other.size() - 2]);
  s.op = d.chance(80) ? "matmul" : "dot", s.in = {x, d.like(other, d.type(x))};
  if (is_half(d.type(x)) && d.chance(20)) s.op = "matmul_as", s.text = "f32";
  return s.in[1] >= 0;
}

bool linear(Draft& d, Step& s, int x) {
  Type type = d.type(x);
  int64_t out = d.pick(1, 9);
  s.op = "linear", s.in = {x, d.like({d.shape(x).back(), out}, type)};
  if (d.chance(75)) s.in.push_back(d.like({out}, type));
  return s.in.back() >= 0 && s.in[1] >= 0;
}

// Formulas by the rank of the first operand; the others' letters have the sizes of the first or new
// ones.
bool formula(Draft& d, Step& s, int x) {
  static const Names kOne[] = {
      {"i->i", "i->"}, {"ij->ji", "ij->i", "ij->"}, {"ijk->kij", "ijk->ik"}, {"ijkl->iklj"}};
  static const Names kMore[] = {{"i,i->", "i,j->ij", "i,i->i"},
                                {"ij,jk->ik", "ij,jk->ki", "ij,jk->i", "ij,jk->j", "ij,jk->k",
                                 "ij,jk->ijk", "ij,ij->", "ij,ij->ij", "ij,jk,kl->il", "ij,j,i->"},
                                {"bij,bjk->bik", "bij,jk->bki", "bij,bij->b", "bij,bkj->ikb"},
                                {"abij,abjk->abik", "abij,abij->ij"}};
  const Shape shape = d.shape(x);
  size_t rank = shape.size();
  if (rank > 4) return false;
  s.op = "einsum", s.text = d.one_of(d.chance(20) ? kOne[rank - 1] : kMore[rank - 1]);
  s.in = {x};
  std::map<char, int64_t> sizes;
  for (size_t i = 0; i < rank; ++i) sizes[s.text[i]] = shape[i];
  std::string rest = s.text.substr(rank, s.text.find("->") - rank);
  while (!rest.empty()) {
    size_t end = std::min(rest.find(',', 1), rest.size());
    Shape other;
    for (char c : rest.substr(1, end - 1))
      other.push_back(sizes.try_emplace(c, d.pick(1, 5)).first->second);
    s.in.push_back(d.like(other, d.type(x)));
    if (s.in.back() < 0) return false;
    rest = rest.substr(end);
  }
  return true;
}

// n: groups, stride, dilation, padding: one number, or before and after for each dim from the last.
bool convolution(Draft& d, Step& s, int x) {
  const Shape shape = d.shape(x);
  int64_t groups = shape[1] % 2 == 0 && d.chance(30) ? 2 : 1;
  bool transposed = d.chance(35);
  Shape kernel = {groups * d.pick(1, 3), shape[1] / groups};
  if (transposed) kernel = {shape[1], d.pick(1, 3)};
  for (size_t i = 2; i < shape.size(); ++i) kernel.push_back(d.pick(1, 3));
  s.in = {x, d.like(kernel, d.type(x))};
  if (s.in[1] < 0) return false;
  if (d.chance(40)) {
    s.in.push_back(d.like({transposed ? kernel[1] * groups : kernel[0]}, d.type(x)));
    if (s.in[2] < 0) return false;
  }
  s.n = {groups, d.pick(1, 2), d.pick(1, 2)};
  if (transposed) {
    s.op = "conv_transpose2d";
    s.n.insert(s.n.end(), {d.pick(0, 1), d.pick(0, 1)});
  } else {
    s.op = "conv2d";
    bool each = d.chance(20);
    for (size_t i = 0; i < (each ? 2 * (shape.size() - 2) : 1); ++i) s.n.push_back(d.pick(0, 2));
  }
  return true;
}

}  // namespace

bool draw_product(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0 || d.type(x) == Type::Bool) return false;
  size_t rank = d.shape(x).size();
  bool image = rank >= 3 && rank <= 5 && is_float(d.type(x));
  int kind = d.pick(0, 9);
  if (image && kind >= 7) return convolution(d, s, x);
  if (kind >= 7) return formula(d, s, x);
  if (kind == 6 && is_float(d.type(x))) return linear(d, s, x);
  return matrix_product(d, s, x, kind == 4);
}

// n: stride, dilation, padding, whether the last window may hang over, whether the padding counts,
// then the kernel.
bool draw_pooling(Draft& d, Step& s) {
  int x = d.with_dims(2);
  if (x < 0 || d.type(x) == Type::Bool) return false;
  if (d.gradient() && !is_float(d.type(x))) return false;
  const Shape shape = d.shape(x);
  if (d.chance(25)) {
    int dims = d.pick(1, int(std::min<size_t>(shape.size(), 2)));
    int mode = d.pick(0, 2);
    s.op = "interpolate", s.in = {x}, s.n = {mode, mode == 0 && d.chance(40)};
    for (int i = 0; i < dims; ++i) s.n.push_back(d.pick(1, 9));
    return true;
  }
  s.in = {x}, s.n = {d.pick(1, 3), 1, 0, 0, 1, d.pick(1, 3), d.pick(1, 3)};
  if (d.chance(30)) s.n[2] = 1;
  if (d.chance(20)) s.n[1] = 2;
  if (d.chance(20)) s.n[3] = 1;
  if (d.chance(20)) s.n[4] = 0;
  if (d.chance(10)) s.n.pop_back();
  if (d.chance(10) && shape.size() > 2) s.n.push_back(d.pick(1, 3));
  static const Names kPools = {"max_pool2d", "max_pool2d",      "avg_pool2d",
                               "avg_pool2d", "max_pool_values", "max_pool_places"};
  s.op = d.one_of(kPools);
  if (d.chance(10) && s.n.size() == 7) {
    // Pooled values come back where they were.
    s.op = "max_pool_places", s.n = {2, 1, 0, 0, 1, 2, 2};
    Step values = s;
    values.op = "max_pool_values";
    int at = d.keep(s), v = at < 0 ? -1 : d.keep(values);
    if (v < 0) return false;
    s.op = "max_unpool2d", s.in = {v, at};
    s.n = {2, shape[shape.size() - 2], shape.back()};
  }
  return true;
}

}  // namespace fuzz
