// Rules of products of matrices and by formulas.
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
      x_.push_back(factor(a_, i)), y_.push_back(factor(b_, j));
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
  // Processors that multiply bf16 take what is below its normal numbers for zero.
  Real factor(const Array& of, size_t at) const {
    Real x = real(of, at);
    if (type_ == Type::BF16 && std::abs(x.v) < 0x1p-126) x.e = std::max(x.e, std::abs(x.v));
    return x;
  }

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

// Letters only, each operand's distinct; one type. However the operands are put together, each term
// is rounded once for each of them and once for each addition.
Array einsum(const Step& step, const Operands& in) {
  size_t arrow = step.text.find("->");
  need(arrow != std::string::npos, "formula");
  std::string result = step.text.substr(arrow + 2);
  std::vector<std::string> letters(1);
  for (char c : step.text.substr(0, arrow)) {
    if (c == ',')
      letters.emplace_back();
    else
      letters.back() += c;
  }
  Type type = in[0]->type;
  need(letters.size() == in.size() && (is_float(type) || bytes(type) >= 4), "operands");
  std::map<char, int64_t> sizes;
  for (size_t k = 0; k < in.size(); ++k) {
    need(in[k]->type == type && int64_t(letters[k].size()) == in[k]->rank(), "one type");
    for (size_t i = 0; i < letters[k].size(); ++i) {
      auto [at, fresh] = sizes.try_emplace(letters[k][i], in[k]->shape[i]);
      need(at->second == in[k]->shape[i], "sizes");
    }
  }
  Shape shape, inner;
  std::string summed;
  for (char c : result) shape.push_back(sizes.at(c));
  for (auto [c, size] : sizes) {
    if (result.find(c) == std::string::npos) summed += c, inner.push_back(size);
  }
  Array out(type, shape);
  Math math(type);
  each_place(shape, [&](const Shape& place, size_t at) {
    std::vector<Real> terms;
    uint64_t total = 0;
    bool known = true;
    each_place(inner, [&](const Shape& within, size_t) {
      Real term{1, 0};
      uint64_t product = 1;
      for (size_t k = 0; k < in.size(); ++k) {
        Shape from;
        for (char c : letters[k]) {
          size_t i = result.find(c);
          from.push_back(i != std::string::npos ? place[i] : within[summed.find(c)]);
        }
        size_t element = linear(from, in[k]->shape);
        if (is_float(type)) term = math.mul(term, real(*in[k], element));
        product *= uint64_t(in[k]->at[element].n), known = known && in[k]->at[element].known();
      }
      terms.push_back(term), total += product;
    });
    bool alone = inner.empty() && in.size() == 1;
    // An operand may be summed before it meets the others: of infinities anything may come.
    bool infinite = is_float(type) && !alone &&
                    std::ranges::any_of(terms, [](Real x) { return !std::isfinite(x.v); });
    if (infinite) {
      out.at[at] = element(type, kAnything);
      return;
    }
    out.at[at] = !is_float(type) ? integer(type, int64_t(total), known)
                 : alone         ? element(type, terms[0])
                                 : element(type, math.sum(terms));
  });
  return out;
}

}  // namespace

void add_product_rules(std::map<std::string, Rule>& rules) {
  rules["matmul"] = [](const Step&, const Operands& in) { return matmul(*in[0], *in[1]); };
  rules["dot"] = rules["matmul"];
  rules["matmul_as"] = [](const Step& step, const Operands& in) {
    Type type = type_named(step.text);
    return matmul(converted(*in[0], type), converted(*in[1], type));
  };
  rules["linear"] = [](const Step&, const Operands& in) {
    need(in[0]->rank() >= 1 && in[1]->rank() == 2, "linear");
    const Array &x = *in[0], &w = *in[1];
    const Array* bias = in.size() > 2 ? in[2] : nullptr;
    need(x.type == w.type && is_float(x.type) && x.shape.back() == w.shape[0], "type");
    need(!bias || (bias->type == x.type && bias->shape == Shape{w.shape[1]}), "bias");
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
      // The bias is added before the one rounding of the result.
      Real sum = math.dot(a, b);
      out.at[i] = element(x.type, bias ? math.add(sum, real(*bias, i % n)) : sum);
    }
    return out;
  };
  rules["einsum"] = einsum;
}

}  // namespace fuzz
