// Rules of attention, losses and normalisation with given statistics.
#include <algorithm>
#include <cmath>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

// x and a step of one op.
Array run(const char* op, const Operands& in, std::vector<int64_t> n = {}, std::string text = {}) {
  Step step;
  step.op = op, step.n = std::move(n), step.text = std::move(text);
  return interpret(step, in);
}

// The same in at least f32, with nothing rounded.
Array widened(const Array& x) { return converted(x, is_half(x.type) ? Type::F32 : x.type); }

// n: whether causal, whether heads of key and value serve several of the query. In: query, key,
// value, perhaps a mask.
Array attention(const Step& step, const Operands& in) {
  Type type = in[0]->type;
  need(is_float(type) && in[1]->type == type && in[2]->type == type, "one type");
  Array q = widened(*in[0]), k = widened(*in[1]), v = widened(*in[2]);
  need(q.rank() >= 2 && q.rank() == k.rank() && q.rank() == v.rank(), "ranks");
  if (step.n.at(1)) {
    need(q.rank() >= 3, "heads");
    size_t head = size_t(q.rank()) - 3;
    for (Array* x : {&k, &v}) {
      need(x->shape[head] > 0 && q.shape[head] % x->shape[head] == 0, "heads");
      *x = run("repeat_interleave", {x}, {q.shape[head] / x->shape[head], int64_t(head)});
    }
  }
  need(q.shape.back() == k.shape.back() &&
           k.shape[k.shape.size() - 2] == v.shape[v.shape.size() - 2],
       "sizes");
  Math math(q.type);
  Array turned = run("transpose", {&k}, {-2, -1}), scores = run("matmul", {&q, &turned});
  double scale = 1 / std::sqrt(double(q.shape.back()));
  for (Element& e : scores.at) {
    Real scaled = math.mul({e.v, e.err}, math.make(scale, 0));
    e.v = scaled.v, e.err = scaled.e;
  }
  const Element kNever{-INFINITY, 0, 0};
  if (step.n.at(0)) {
    each_place(scores.shape, [&](const Shape& place, size_t at) {
      if (place.back() > place[place.size() - 2]) scores.at[at] = kNever;
    });
  } else if (in.size() > 3) {
    need(broadcast(in[3]->shape, scores.shape) == scores.shape, "mask");
    if (in[3]->type == Type::Bool) {
      Array never(scores.type, {});
      never.at[0] = kNever;
      scores = run("where", {in[3], &scores, &never});
    } else {
      Array mask = converted(*in[3], scores.type);
      scores = run("add", {&scores, &mask});
    }
  }
  Array weights = run("softmax", {&scores}, {-1});
  // They may have the type of the result before they meet the values.
  double half = type == Type::F16 ? std::ldexp(1, -11) : std::ldexp(1, -8);
  for (Element& e : weights.at) {
    if (is_half(type) && e.known()) e.err += half * std::abs(e.v) + (type == Type::F16 ? 1e-7 : 0);
  }
  return converted(run("matmul", {&weights, &v}), type);
}

// n[0]: mean, sum or each for itself. Means are over what counts.
Array reduced(const Step& step, Type type, const Shape& shape, const std::vector<Real>& losses,
              const std::vector<Real>& counts) {
  Math math(type);
  int64_t how = step.n.at(0);
  Array out(type, how == 2 ? shape : Shape{});
  if (how == 2) {
    for (size_t i = 0; i < losses.size(); ++i) out.at[i] = element(type, losses[i]);
    return out;
  }
  Real total = math.sum(losses);
  out.at[0] = element(type, how == 1 ? total : math.div(total, math.sum(counts)));
  return out;
}
std::vector<Real> ones(size_t n) { return std::vector<Real>(n, Real{1, 0}); }

Real softplus(const Math& math, Real x) {
  auto f = [](double v) { return std::max(v, 0.0) + std::log1p(std::exp(-std::abs(v))); };
  return math.apply(f, x, 16, 4 * std::max(1.0, std::abs(x.v)));
}

// p log q; nothing where nothing is expected and nothing comes.
Real expected_log(const Math& math, Real p, Real q) {
  if (p.v == 0 && q.v == 0 && p.e == 0 && q.e == 0) return {0, 0};
  return math.mul(p, math.log(q));
}

Array binary_loss(const Step& step, const Operands& in) {
  const Array &x = *in[0], &y = *in[1];
  need(is_float(x.type) && x.type == y.type && x.shape == y.shape, "pairs");
  Math math(x.type);
  std::vector<Real> losses;
  bool logits = step.op.ends_with("logits");
  Array weight;
  if (in.size() > 2) {
    need(in[2]->type == x.type, "one type");
    weight = expanded(*in[2], x.shape);
  }
  for (size_t i = 0; i < x.at.size(); ++i) {
    Real p = real(x, i), t = real(y, i), rest = math.sub({1, 0}, t);
    if (logits) {
      Real positive = math.mul(t, softplus(math, math.sub({0, 0}, p)));
      if (in.size() > 2) positive = math.mul(positive, real(weight, i));
      losses.push_back(math.add(positive, math.mul(rest, softplus(math, p))));
    } else {
      Real sum = math.add(expected_log(math, t, p), expected_log(math, rest, math.sub({1, 0}, p)));
      losses.push_back(math.sub({0, 0}, sum));
    }
  }
  return reduced(step, x.type, x.shape, losses, ones(losses.size()));
}

// Places of x with a dim less, and the elements along that dim for each.
struct Classes {
  Shape shape;
  std::vector<std::vector<size_t>> lines;

  Classes(const Array& x, size_t axis) : shape(x.shape) {
    shape.erase(shape.begin() + int64_t(axis));
    lines.resize(size_t(count(shape)));
    each_place(x.shape, [&](Shape place, size_t at) {
      place.erase(place.begin() + int64_t(axis));
      lines[linear(place, shape)].push_back(at);
    });
  }
};

// Losses by labels: n has whether one is ignored and which; d the smoothing.
Array class_loss(const Step& step, const Operands& in) {
  const Array &x = *in[0], &y = *in[1];
  need(is_float(x.type) && x.rank() > 0, "floats");
  bool nll = step.op == "nll_loss", probabilities = step.op == "cross_entropy_probabilities";
  size_t axis = step.op[0] == 's' ? x.shape.size() - 1 : x.rank() == 1 ? 0 : 1;
  Classes classes(x, axis);
  need(probabilities ? y.shape == x.shape && y.type == x.type
                     : y.shape == classes.shape && is_int(y.type),
       "labels");
  Array wide = widened(x);
  Array logs = nll ? wide : run("log_softmax", {&wide}, {int64_t(axis)});
  Math math(x.type);
  std::vector<Real> losses, counts;
  bool ignores = !probabilities && step.n.at(1);
  double smoothing = nll ? 0 : step.d.at(0);
  for (size_t i = 0; i < classes.lines.size(); ++i) {
    const auto& line = classes.lines[i];
    Real loss{0, 0}, weight{1, 0};
    if (probabilities) {
      std::vector<Real> a, b;
      for (size_t at : line) a.push_back(real(logs, at)), b.push_back(real(y, at));
      loss = math.dot(a, b);
    } else {
      int64_t label = y.at[i].n;
      bool inside = label >= 0 && label < int64_t(line.size());
      if (!y.at[i].known())
        loss = kAnything;
      else if (inside)
        loss = real(logs, line[size_t(label)]);
      else  // a label that is no class
        loss = {std::nan(""), 0};
      if (in.size() > 2) {
        need(in[2]->type == x.type && in[2]->shape == Shape{int64_t(line.size())}, "weight");
        weight = inside ? real(*in[2], size_t(label)) : Real{0, 0};
      }
    }
    loss = math.mul(loss, {-1, 0});  // of 0 it is -0
    if (smoothing > 0) {
      std::vector<Real> all;
      for (size_t at : line) all.push_back(real(logs, at));
      Real everywhere = math.div(math.sum(all), {-double(line.size()), 0});
      loss = math.add(math.mul(loss, {1 - smoothing, 0}), math.mul(everywhere, {smoothing, 0}));
    }
    if (nll && in.size() > 2) loss = math.mul(loss, weight);
    if (ignores && y.at[i].n == step.n.at(2)) loss = weight = {0, 0};
    losses.push_back(loss), counts.push_back(weight);
  }
  return reduced(step, x.type, classes.shape, losses, counts);
}

// In: x, weight, bias, mean, 1 / deviation; all but x one number for each of dim 1.
Array batchnorm(const Step&, const Operands& in) {
  const Array& x = *in[0];
  need(in.size() == 5 && is_float(x.type) && x.rank() >= 2, "images");
  for (size_t i = 1; i < 5; ++i)
    need(in[i]->type == x.type && in[i]->shape == Shape{x.shape[1]}, "channels");
  Array out(x.type, x.shape);
  Math math(x.type);
  each_place(x.shape, [&](const Shape& place, size_t at) {
    size_t c = size_t(place[1]);
    Real centred = math.sub(real(x, at), real(*in[3], c));
    Real scaled = math.mul(math.mul(centred, real(*in[4], c)), real(*in[1], c));
    out.at[at] = element(x.type, math.add(scaled, real(*in[2], c)));
  });
  return out;
}

}  // namespace

void add_layer_rules(std::map<std::string, Rule>& rules) {
  rules["attention"] = attention;
  for (const char* op : {"binary_crossentropy", "binary_crossentropy_logits"})
    rules[op] = binary_loss;
  for (const char* op : {"cross_entropy", "cross_entropy_probabilities",
                         "sparse_categorical_crossentropy", "nll_loss"})
    rules[op] = class_loss;
  rules["batchnorm"] = batchnorm;
}

}  // namespace fuzz
