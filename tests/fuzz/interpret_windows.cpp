// Rules of convolutions, pooling and changes of an image's size: sums, maxima and means over
// windows.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

// A result of products, to which a bias for each of dim 1 is added: where the products' result has
// 16 bits, it is rounded before.
Element with_bias(Type type, const std::vector<Real>& a, const std::vector<Real>& b,
                  const Operands& in, int64_t channel) {
  Math math(type);
  Element sum = element(type, math.dot(a, b));
  if (in.size() < 3) return sum;
  need(in[2]->type == type && in[2]->rank() == 1, "bias");
  return element(type, math.add({sum.v, sum.err}, real(*in[2], size_t(channel))));
}

void need_images(const Array& x, const Array& w) {
  need(x.rank() >= 3 && w.rank() == x.rank() && x.type == w.type && is_float(x.type), "images");
}

// Elements outside of an image are zero, or not looked at: with a weight that is infinite, or may
// be, either may come.
bool matters_outside(const Array& w, size_t at) {
  return !w.at[at].known() || !std::isfinite(w.at[at].v);
}

// Before each spatial dim, or after it. n: padding from there on, as ConvOptions has it.
int64_t padding_of(const Step& step, size_t first, size_t spatial, size_t dim, bool after) {
  size_t n = step.n.size() - first;
  if (n == 1) return step.n[first];
  need(n == 2 * spatial, "padding");
  return step.n[first + 2 * (spatial - 1 - dim) + after];
}

// n: groups, then stride and dilation of all spatial dims, then padding.
Array conv(const Step& step, const Operands& in) {
  const Array &x = *in[0], &w = *in[1];
  need_images(x, w);
  int64_t groups = step.n.at(0), stride = step.n.at(1), dilation = step.n.at(2);
  need(groups > 0 && x.shape[1] % groups == 0 && w.shape[0] % groups == 0 &&
           w.shape[1] == x.shape[1] / groups,
       "groups");
  size_t spatial = x.shape.size() - 2;
  int64_t c = w.shape[1], outs = w.shape[0];
  Shape shape = {x.shape[0], outs}, low;
  for (size_t i = 0; i < spatial; ++i) {
    low.push_back(padding_of(step, 3, spatial, i, false));
    int64_t reach = dilation * (w.shape[i + 2] - 1) + 1,
            n = x.shape[i + 2] + low[i] + padding_of(step, 3, spatial, i, true);
    need(n >= reach, "kernel");
    shape.push_back((n - reach) / stride + 1);
  }
  Array out(x.type, shape);
  Shape taps(w.shape.begin() + 2, w.shape.end());
  each_place(shape, [&](const Shape& p, size_t at) {
    std::vector<Real> a, b;
    bool vague = false;
    int64_t first = p[1] / (outs / groups) * c;
    for (int64_t ci = 0; ci < c; ++ci) {
      each_place(taps, [&](const Shape& tap, size_t) {
        Shape from = {p[0], first + ci}, of = {p[1], ci};
        bool inside = true;
        for (size_t i = 0; i < spatial; ++i) {
          from.push_back(p[i + 2] * stride + tap[i] * dilation - low[i]), of.push_back(tap[i]);
          inside = inside && from.back() >= 0 && from.back() < x.shape[i + 2];
        }
        size_t weight = linear(of, w.shape);
        vague = vague || (!inside && matters_outside(w, weight));
        if (inside) a.push_back(real(x, linear(from, x.shape))), b.push_back(real(w, weight));
      });
    }
    out.at[at] = vague ? element(x.type, kAnything) : with_bias(x.type, a, b, in, p[1]);
  });
  return out;
}

// n: groups, stride, dilation, padding, output_padding. Each element is spread by the kernel.
Array conv_transpose(const Step& step, const Operands& in) {
  const Array &x = *in[0], &w = *in[1];
  need_images(x, w);
  int64_t groups = step.n.at(0), stride = step.n.at(1), dilation = step.n.at(2),
          padding = step.n.at(3), extra = step.n.at(4);
  need(groups > 0 && w.shape[0] == x.shape[1] && x.shape[1] % groups == 0, "groups");
  need(extra < std::max(stride, dilation), "output padding");
  size_t spatial = x.shape.size() - 2;
  int64_t per_group = w.shape[1], c = x.shape[1] / groups;
  Shape shape = {x.shape[0], per_group * groups};
  for (size_t i = 0; i < spatial; ++i) {
    int64_t n = (x.shape[i + 2] - 1) * stride + dilation * (w.shape[i + 2] - 1) + 1 + extra;
    need(n - 2 * padding > 0, "kernel");
    shape.push_back(n - 2 * padding);
  }
  Array out(x.type, shape);
  Shape taps(w.shape.begin() + 2, w.shape.end());
  each_place(shape, [&](const Shape& p, size_t at) {
    std::vector<Real> a, b;
    bool vague = false;
    int64_t first = p[1] / per_group * c;
    for (int64_t ci = first; ci < first + c; ++ci) {
      each_place(taps, [&](const Shape& tap, size_t) {
        Shape from = {p[0], ci}, of = {ci, p[1] % per_group};
        bool inside = true;
        for (size_t i = 0; i < spatial; ++i) {
          int64_t place = p[i + 2] + padding - tap[i] * dilation;
          inside = inside && place >= 0 && place % stride == 0 && place / stride < x.shape[i + 2];
          from.push_back(place / stride), of.push_back(tap[i]);
        }
        size_t weight = linear(of, w.shape);
        vague = vague || (!inside && matters_outside(w, weight));
        if (inside) a.push_back(real(x, linear(from, x.shape))), b.push_back(real(w, weight));
      });
    }
    out.at[at] = vague ? element(x.type, kAnything) : with_bias(x.type, a, b, in, p[1]);
  });
  return out;
}

// n: stride, dilation, padding, whether the last window may hang over, whether padding counts in a
// mean, then the kernel over the last dims.
struct Pool {
  size_t first;  // of the pooled dims
  int64_t stride, dilation, padding;
  bool counts_padding;
  Shape kernel, shape;

  Pool(const Step& step, const Array& x)
      : stride(step.n.at(0)),
        dilation(step.n.at(1)),
        padding(step.n.at(2)),
        counts_padding(step.n.at(4)),
        kernel(step.n.begin() + 5, step.n.end()),
        shape(x.shape) {
    need(!kernel.empty() && int64_t(kernel.size()) <= x.rank() && stride > 0, "kernel");
    first = x.shape.size() - kernel.size();
    for (size_t i = 0; i < kernel.size(); ++i) {
      int64_t n = x.shape[first + i], reach = dilation * (kernel[i] - 1) + 1,
              rest = n + 2 * padding - reach;
      need(kernel[i] > 0 && rest >= 0, "window");
      int64_t windows = rest / stride + 1;
      // A window that hangs over begins in the image or the padding before it.
      if (step.n.at(3) && rest % stride != 0 && windows * stride < n + padding) ++windows;
      shape[first + i] = windows;
    }
  }
};

// Its elements of x, and how many places it has within x and its padding.
struct Window {
  std::vector<size_t> elements;
  int64_t places = 0;

  Window(const Pool& pool, const Array& x, const Shape& place) {
    each_place(pool.kernel, [&](const Shape& tap, size_t) {
      Shape from = place;
      bool inside = true, padded = true;
      for (size_t i = 0; i < tap.size(); ++i) {
        int64_t& at = from[pool.first + i];
        int64_t n = x.shape[pool.first + i];
        at = at * pool.stride + tap[i] * pool.dilation - pool.padding;
        inside = inside && at >= 0 && at < n;
        padded = padded && at < n + pool.padding;
      }
      places += padded;
      if (inside) elements.push_back(linear(from, x.shape));
    });
  }
};

Array average(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  Pool pool(step, x);
  Array out(float_type(x.type), pool.shape);
  Math math(out.type);
  each_place(pool.shape, [&](const Shape& place, size_t at) {
    Window window(pool, x, place);
    std::vector<Real> terms;
    for (size_t i : window.elements) terms.push_back(real(x, i));
    double n = double(pool.counts_padding ? window.places : int64_t(terms.size()));
    need(n > 0, "window of nothing");
    out.at[at] = element(out.type, math.div(math.sum(terms), {n, 0}));
  });
  return out;
}

// The largest of each window, or its place among the elements of the pooled dims.
Array maximum(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  bool places = step.op == "max_pool_places";
  Pool pool(step, x);
  for (size_t i = 5; i < step.n.size() && step.op == "max_pool2d"; ++i)
    need(step.n[2] <= (step.n[1] * (step.n[i] - 1) + 1) / 2, "padding");
  Array out(places ? Type::I32 : x.type, pool.shape);
  size_t image = 1;
  for (size_t d = pool.first; d < x.shape.size(); ++d) image *= size_t(x.shape[d]);
  each_place(pool.shape, [&](const Shape& place, size_t at) {
    Window window(pool, x, place);
    need(!window.elements.empty(), "window of padding");
    Array line(x.type, {int64_t(window.elements.size())});
    for (size_t k = 0; k < line.at.size(); ++k) line.at[k] = x.at[window.elements[k]];
    Step of_line;
    of_line.op = places ? "argmax" : "max", of_line.n = {0, 0, 0};
    if (!places) of_line.n = {0};
    Element best = interpret(of_line, {&line}).at[0];
    if (places && best.known()) best.n = int64_t(window.elements[size_t(best.n)] % image);
    out.at[at] = best;
  });
  return out;
}

// n: the kernel, then the sizes of the result's last two dims.
Array unpool(const Step& step, const Operands& in) {
  const Array &x = *in[0], &places = *in[1];
  need(x.rank() >= 2 && x.shape == places.shape && is_int(places.type), "places");
  Shape shape = x.shape;
  size_t rank = shape.size(), image = size_t(x.shape[rank - 2] * x.shape[rank - 1]);
  shape[rank - 2] = step.n.at(1), shape[rank - 1] = step.n.at(2);
  Array out(x.type, shape);
  size_t size = size_t(step.n[1] * step.n[2]);
  for (size_t i = 0; i < x.at.size(); ++i) {
    need(places.at[i].known(), "known places");
    int64_t at = places.at[i].n;
    if (at >= 0 && size_t(at) < size) out.at[i / image * size + size_t(at)] = x.at[i];
  }
  return out;
}

// Resizes one dim. Linear: between the two nearest, where the ends of both lie together or
// (aligned) the middles of their last elements.
Array resized(const Array& x, size_t dim, int64_t to, int64_t mode, bool aligned) {
  int64_t from = x.shape[dim];
  Shape shape = x.shape;
  shape[dim] = to;
  Array out(x.type, shape);
  Math math(x.type);
  each_place(shape, [&](Shape place, size_t at) {
    int64_t o = place[dim];
    auto element_at = [&](int64_t i) -> size_t {
      place[dim] = i;
      return linear(place, x.shape);
    };
    if (mode != 0) {
      int64_t i = mode == 1 ? o * from / to : (2 * o + 1) * from / (2 * to);
      out.at[at] = x.at[element_at(i)];
      return;
    }
    // Wider than the library's numbers: the weight is what is left of a large number.
    using Wide = long double;
    Wide step = to > 1 ? Wide(from - 1) / Wide(to - 1) : 0;
    Wide where = aligned ? Wide(o) * step : (Wide(o) + 0.5L) * Wide(from) / Wide(to) - 0.5L;
    where = std::clamp(where, Wide(0), Wide(from - 1));
    auto low = int64_t(where);
    Real a = real(x, element_at(low)), b = real(x, element_at(std::min(low + 1, from - 1)));
    Real weight = math.make(double(where - Wide(low)), 1e-14, 1);
    Real value = math.add(a, math.mul(math.sub(b, a), weight));
    out.at[at].v = value.v, out.at[at].err = value.e;
  });
  return out;
}

// n: mode (linear, nearest, nearest exact), align_corners, then the sizes of the last dims.
Array interpolate(const Step& step, const Operands& in) {
  Array x = *in[0];
  int64_t mode = step.n.at(0), dims = int64_t(step.n.size()) - 2;
  need(dims > 0 && dims <= x.rank(), "sizes");
  // Values between are rounded once, at the end.
  if (mode == 0) x = converted(x, is_half(x.type) ? Type::F32 : float_type(x.type));
  for (int64_t i = 0; i < dims; ++i) {
    size_t dim = size_t(x.rank() - dims + i);
    int64_t to = step.n[size_t(2 + i)];
    need(to > 0 && x.shape[dim] > 0, "size");
    if (to != x.shape[dim]) x = resized(x, dim, to, mode, step.n[1]);
  }
  if (mode == 0 && in[0]->type == Type::U8) {
    Step round;
    round.op = "round";
    x = interpret(round, {&x});
  }
  return converted(x, in[0]->type);
}

}  // namespace

void add_window_rules(std::map<std::string, Rule>& rules) {
  rules["conv2d"] = conv;
  rules["conv_transpose2d"] = conv_transpose;
  rules["avg_pool2d"] = average;
  for (const char* op : {"max_pool2d", "max_pool_values", "max_pool_places"}) rules[op] = maximum;
  rules["max_unpool2d"] = unpool;
  rules["interpolate"] = interpolate;
}

}  // namespace fuzz
