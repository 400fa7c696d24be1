// Rules of products, convolutions and pooling.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

// Sums of products over pairs of places; integers modulo 2^64 are right in the end.
class Sum {
 public:
  Sum(const Array& a, const Array& b, Type type) : a_(a), b_(b), type_(type), math_(type) {}
  void clear() { x_.clear(), y_.clear(), total_ = 0, known_ = true; }
  void add(size_t i, size_t j) {
    if (is_float(type_)) {
      x_.push_back(real(a_, i)), y_.push_back(real(b_, j));
    } else {
      total_ += uint64_t(a_.at[i].n) * uint64_t(b_.at[j].n);
      known_ = known_ && a_.at[i].known() && b_.at[j].known();
    }
  }
  Element value() const {
    if (is_float(type_)) return element(type_, math_.dot(x_, y_));
    return integer(type_, int64_t(total_), known_);
  }

 private:
  const Array &a_, &b_;
  Type type_;
  Math math_;
  std::vector<Real> x_, y_;
  uint64_t total_ = 0;
  bool known_ = true;
};

// Small integers are summed wide and come back as what they were.
Array matmul(const Array& a, const Array& b) {
  Type type = promoted(a.type, b.type);
  need(type != Type::Bool, "bools");
  need(a.rank() >= 1 && b.rank() >= 1, "a dim");
  Array x = converted(a, type), y = converted(b, type);
  if (a.rank() == 1) x.shape.insert(x.shape.begin(), 1);
  if (b.rank() == 1) y.shape.push_back(1);
  Shape batch = broadcast(Shape(x.shape.begin(), x.shape.end() - 2),
                          Shape(y.shape.begin(), y.shape.end() - 2));
  int64_t m = x.shape[x.shape.size() - 2], k = x.shape.back(), n = y.shape.back();
  need(y.shape[y.shape.size() - 2] == k, "inner sizes");
  auto with = [&](int64_t rows, int64_t columns) {
    Shape s = batch;
    s.insert(s.end(), {rows, columns});
    return s;
  };
  x = expanded(x, with(m, k)), y = expanded(y, with(k, n));
  Array out(type, with(m, n));
  Sum sum(x, y, type);
  for (int64_t p = 0; p < count(batch); ++p) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        sum.clear();
        for (int64_t l = 0; l < k; ++l)
          sum.add(size_t((p * m + i) * k + l), size_t((p * k + l) * n + j));
        out.at[size_t((p * m + i) * n + j)] = sum.value();
      }
    }
  }
  out.shape = batch;
  if (a.rank() > 1) out.shape.push_back(m);
  if (b.rank() > 1) out.shape.push_back(n);
  return out;
}

// Letters only, each operand's distinct; one type.
Array einsum(const Step& step, const Operands& in) {
  size_t comma = step.text.find(','), arrow = step.text.find("->");
  need(comma != std::string::npos && arrow != std::string::npos && in.size() == 2, "formula");
  std::string left = step.text.substr(0, comma),
              right = step.text.substr(comma + 1, arrow - comma - 1),
              result = step.text.substr(arrow + 2);
  const Array &a = *in[0], &b = *in[1];
  need(a.type == b.type && bytes(a.type) >= 2 && (is_float(a.type) || bytes(a.type) >= 4),
       "one type");
  need(int64_t(left.size()) == a.rank() && int64_t(right.size()) == b.rank(), "letters");
  std::map<char, int64_t> sizes;
  auto learn = [&](const std::string& letters, const Array& x) {
    for (size_t i = 0; i < letters.size(); ++i) {
      auto [at, fresh] = sizes.try_emplace(letters[i], x.shape[i]);
      need(at->second == x.shape[i], "sizes");
    }
  };
  learn(left, a), learn(right, b);
  Shape shape, inner;
  std::string summed;
  for (char c : result) shape.push_back(sizes.at(c));
  for (auto [c, size] : sizes) {
    if (result.find(c) == std::string::npos) summed += c, inner.push_back(size);
  }
  Array out(a.type, shape);
  Sum sum(a, b, a.type);
  each_place(shape, [&](const Shape& place, size_t at) {
    sum.clear();
    each_place(inner, [&](const Shape& within, size_t) {
      auto where = [&](const std::string& letters, const Array& x) {
        Shape from;
        for (char c : letters) {
          size_t i = result.find(c);
          from.push_back(i != std::string::npos ? place[i] : within[summed.find(c)]);
        }
        return linear(from, x.shape);
      };
      sum.add(where(left, a), where(right, b));
    });
    out.at[at] = sum.value();
  });
  return out;
}

// n: groups, then stride, dilation and padding of both spatial dims.
Array conv(const Step& step, const Operands& in) {
  const Array &x = *in[0], &w = *in[1];
  need(x.rank() == 4 && w.rank() == 4 && x.type == w.type && is_float(x.type), "images");
  int64_t groups = step.n.at(0), stride = step.n.at(1), dilation = step.n.at(2),
          padding = step.n.at(3);
  int64_t c = x.shape[1] / groups, outs = w.shape[0];
  need(groups > 0 && x.shape[1] % groups == 0 && outs % groups == 0 && w.shape[1] == c, "groups");
  auto size = [&](size_t d) {
    int64_t reach = dilation * (w.shape[d] - 1) + 1, n = x.shape[d] + 2 * padding;
    need(n >= reach, "kernel");
    return (n - reach) / stride + 1;
  };
  Array out(x.type, {x.shape[0], outs, size(2), size(3)});
  Sum sum(x, w, x.type);
  each_place(out.shape, [&](const Shape& p, size_t at) {
    sum.clear();
    bool outside = false;
    int64_t first = p[1] / (outs / groups) * c;
    for (int64_t ci = 0; ci < c; ++ci) {
      for (int64_t i = 0; i < w.shape[2]; ++i) {
        for (int64_t j = 0; j < w.shape[3]; ++j) {
          int64_t row = p[2] * stride + i * dilation - padding,
                  column = p[3] * stride + j * dilation - padding;
          if (row < 0 || row >= x.shape[2] || column < 0 || column >= x.shape[3]) continue;
          sum.add(linear({p[0], first + ci, row, column}, x.shape),
                  linear({p[1], ci, i, j}, w.shape));
        }
      }
    }
    out.at[at] = outside ? element(x.type, kAnything) : sum.value();
  });
  return out;
}

// n: kernel, stride and padding of each of the last two dims.
Array pool(const Step& step, const Operands& in) {
  const Array& x = *in[0];
  need(x.rank() >= 2, "two dims");
  int64_t kernel[2] = {step.n.at(0), step.n.at(1)}, stride = step.n.at(2), padding = step.n.at(3);
  bool average = step.op == "avg_pool2d";
  Type type = average ? float_type(x.type) : x.type;
  Shape shape = x.shape;
  for (size_t i = 0; i < 2; ++i) {
    int64_t& n = shape[shape.size() - 2 + i];
    need(n + 2 * padding >= kernel[i] && padding < kernel[i] && stride > 0, "window");
    n = (n + 2 * padding - kernel[i]) / stride + 1;
  }
  Array out(type, shape);
  Math math(type);
  each_place(shape, [&](const Shape& place, size_t at) {
    std::vector<Real> terms;
    Element best;
    bool first = true, known = true;
    for (int64_t i = 0; i < kernel[0]; ++i) {
      for (int64_t j = 0; j < kernel[1]; ++j) {
        Shape from = place;
        int64_t& row = from[from.size() - 2];
        int64_t& column = from.back();
        row = row * stride + i - padding, column = column * stride + j - padding;
        if (row < 0 || column < 0 || row >= x.shape[from.size() - 2] || column >= x.shape.back())
          continue;
        size_t k = linear(from, x.shape);
        terms.push_back(real(x, k));
        bool more =
            is_unsigned(x.type) ? uint64_t(x.at[k].n) > uint64_t(best.n) : x.at[k].n > best.n;
        if (first || more) best = x.at[k];
        first = false, known = known && x.at[k].known();
      }
    }
    need(!terms.empty(), "window of padding");
    if (average) {
      out.at[at] = element(type, math.div(math.sum(terms), {double(kernel[0] * kernel[1]), 0}));
    } else if (!is_float(type)) {
      out.at[at] = integer(type, best.n, known);
    } else {
      Real top = terms[0];
      for (size_t k = 1; k < terms.size(); ++k) {
        top = !std::isnan(top.v) && std::isnan(terms[k].v) ? terms[k] : math.maximum(top, terms[k]);
      }
      out.at[at] = element(type, top);
    }
  });
  return out;
}

}  // namespace

void add_product_rules(std::map<std::string, Rule>& rules) {
  rules["matmul"] = [](const Step&, const Operands& in) { return matmul(*in[0], *in[1]); };
  rules["dot"] = rules["matmul"];
  rules["linear"] = [](const Step&, const Operands& in) {
    need(in[0]->rank() >= 1 && in[1]->rank() == 2 && in[2]->rank() == 1, "linear");
    need(in[0]->type == in[1]->type && in[0]->type == in[2]->type && is_float(in[0]->type), "type");
    // The bias is added before the one rounding of the result.
    const Array &x = *in[0], &w = *in[1], &bias = *in[2];
    need(x.shape.back() == w.shape[0] && w.shape[1] == bias.shape[0], "sizes");
    size_t k = size_t(w.shape[0]), n = size_t(w.shape[1]);
    Shape shape = x.shape;
    shape.back() = w.shape[1];
    Array out(x.type, shape);
    Math math(x.type);
    for (size_t i = 0; i < out.at.size(); ++i) {
      std::vector<Real> a, b;
      for (size_t l = 0; l < k; ++l) {
        a.push_back(real(x, i / n * k + l)), b.push_back(real(w, l * n + i % n));
      }
      out.at[i] = element(x.type, math.add(math.dot(a, b), real(bias, i % n)));
    }
    return out;
  };
  rules["einsum"] = einsum;
  rules["conv2d"] = conv;
  for (const char* op : {"max_pool2d", "avg_pool2d"}) rules[op] = pool;
}

}  // namespace fuzz
