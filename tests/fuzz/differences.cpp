// How a kink is told from a slope. The slopes after and before a place, taken with a step h, differ
//
//   by h f'' + O(h^3)     where the function is smooth: half as much with half the step
//   by a jump + O(h)      at a kink: as much with half the step
//
// so twice the difference at h / 2 less that at h is nearly zero, or the jump. A jump may be zero by
// chance of the weights that the loss gives to its elements, so others are tried: a function that
// is smooth has no jump by any weights. Kinks may also meet and cancel: max(x, min(x, y)) is x, while the
// rules of max and min share a slope where x = y. So kinks are looked for in what the loss is made of, too.
#include "tests/fuzz/differences.h"

#include <algorithm>
#include <cmath>
#include <random>

#include <fmt/format.h>

#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

constexpr int kLosses = 4;  // by weights of their own; the program's loss is the first

// The loss by weights of their own, and the sum of what its terms are in size.
struct Loss {
  double value = 0, magnitude = 0;
};
Loss loss_of(const std::vector<Array>& roots, int weights) {
  Loss loss;
  for (size_t k = 0; k < roots.size(); ++k) {
    Array w = loss_weights(roots[k].type, roots[k].shape, int(k) + 1000 * weights);
    for (size_t i = 0; i < w.at.size(); ++i) {
      double term = w.at[i].v * roots[k].at[i].v;
      loss.value += term, loss.magnitude += std::abs(term);
    }
  }
  return loss;
}

class Differences {
 public:
  explicit Differences(const Program& program) : p_(program), base_(interpret(program)) {}

  const Run& base() const { return base_; }

  // The losses by all weights, with one element of a value moved.
  std::vector<Loss> losses(int value, size_t element, double by) const {
    Run run = by == 0 ? base_ : interpret(p_, {value, element, by}, &base_.values);
    std::vector<Loss> out;
    for (int w = 0; w < kLosses; ++w) out.push_back(loss_of(run.roots[0], w));
    return out;
  }

  double slope(int value, size_t element, double h) const {
    auto at = [&](double by) {
      return loss_of(interpret(p_, {value, element, by}, &base_.values).roots[0], 0).value;
    };
    return (at(h) - at(-h)) / (2 * h);
  }

  // Returns whether the slopes of some value below the loss jump at this element.
  bool has_kink_inside(int value, size_t element, double h) const {
    Run runs[3][2];  // by step: after and before
    for (auto& sides : runs) {
      h /= 2;
      sides[0] = interpret(p_, {value, element, h}, &base_.values);
      sides[1] = interpret(p_, {value, element, -h}, &base_.values);
    }
    for (int v = int(p_.leaves.size()); v < p_.values(); ++v) {
      auto at = [&](const Run& run, int w) { return loss_of({run.values[size_t(v)]}, w); };
      for (int w = 0; w < kLosses; ++w) {
        double step = 8 * h, bends[3];
        bool jumps = true;
        const Loss middle = at(base_, w);
        for (int i = 0; i < 3 && jumps; ++i) {
          step /= 2;
          const Loss up = at(runs[i][0], w), down = at(runs[i][1], w);
          bends[i] = (up.value - 2 * middle.value + down.value) / step;
          const double rounding = 1e-14 * (up.magnitude + middle.magnitude) / step;
          const double slope = std::abs(up.value - down.value) / (2 * step);
          if (i > 0) jumps = std::abs(2 * bends[i] - bends[i - 1]) > 1e-3 * slope + rounding;
        }
        if (jumps) return true;
      }
    }
    return false;
  }

  // True if slopes jump by more than `least` at this element: with steps of h / 4 and of h / 8.
  bool has_kink(int value, size_t element, double h, double least) const {
    std::vector<Loss> middle = losses(value, element, 0);
    double bends[3][kLosses], rounding[kLosses] = {};  // slope after less slope before, by step
    for (double(&bend)[kLosses] : bends) {
      h /= 2;
      std::vector<Loss> up = losses(value, element, h), down = losses(value, element, -h);
      for (size_t w = 0; w < kLosses; ++w) {
        bend[w] = (up[w].value - 2 * middle[w].value + down[w].value) / h;
        rounding[w] = 1e-14 * (up[w].magnitude + middle[w].magnitude) / h;
      }
    }
    for (size_t w = 0; w < kLosses; ++w) {
      bool jumps = true;
      for (int step = 1; step < 3; ++step)
        jumps = jumps && std::abs(2 * bends[step][w] - bends[step - 1][w]) > least + rounding[w];
      if (jumps) return true;
    }
    return false;
  }

 private:
  const Program& p_;
  Run base_;
};

// Where a root has no slope, neither has what comes after it; and slopes by a tiny divisor, of which two
// may cancel, are so large that nothing is left of others beside them.
void need_slopes(const Program& p, const Run& base) {
  for (int v = int(p.leaves.size()); v < p.values(); ++v) {
    const std::string& op = p.step(v).op;
    if (op == "newton_schulz" || op == "normalize") {
      for (const Element& e : base.values[size_t(p.step(v).in[0])].at)
        need(std::abs(e.v) >= 1e-6, "a norm of zero");
    }
    if (op == "div" || op == "operator/" || op == "div_assign" || op == "reciprocal") {
      for (const Element& e : base.values[size_t(p.step(v).in.back())].at)
        need(std::abs(e.v) >= 1e-6, "a tiny divisor");
    }
    if (op != "std" && op != "std_mean_first" && op != "sqrt" && op != "rsqrt") continue;
    for (const Element& e : base.values[size_t(v)].at)
      need(std::abs(e.v) >= 1e-6 && std::isfinite(e.v), "a root of zero");
  }
}

// The rest of 1 - p, where p is nearly 1, may have no digits, and neither has a slope by its logarithm:
//
//   p = 1 - 3e-14 (1 +- 2e-3)     -log(1 - p) = 31.1 +- 2e-3, its slope 3.3e13 (1 +- 2e-3)
void need_digits(const Program& p, const Run& rounded) {
  for (int v = int(p.leaves.size()); v < p.values(); ++v) {
    const std::string& op = p.step(v).op;
    const bool probability = op == "binary_crossentropy";
    if (!probability && op != "log" && op != "log2" && op != "log10") continue;
    const Array& x = rounded.values[size_t(p.step(v).in[0])];
    const double digits = x.type == Type::F64 ? 1e-6 : 1e-3;
    for (const Element& e : x.at) {
      const double least = probability ? std::min(std::abs(e.v), std::abs(1 - e.v)) : std::abs(e.v);
      need(e.err <= digits * least, "a logarithm of what rounding left");
    }
  }
}

// x and x rounded, compared, are a choice that computing without rounding does not make.
void need_same_choices(const Program& p, const Run& rounded, const Run& exact) {
  for (int v = int(p.leaves.size()); v < p.values(); ++v) {
    const Array &with = rounded.values[size_t(v)], &without = exact.values[size_t(v)];
    if (with.type != Type::Bool) continue;
    for (size_t i = 0; i < with.at.size(); ++i)
      need(with.at[i].n == without.at[i].n, "a choice made by rounding");
  }
}

std::string place_text(size_t at, const Shape& shape) {
  std::string out;
  for (size_t i = shape.size(); i-- > 0;) {
    out = fmt::format("{}{}{}", at % size_t(shape[i]), out.empty() ? "" : ", ", out);
    at /= size_t(shape[i]);
  }
  return "[" + out + "]";
}

}  // namespace

std::optional<WrongGradient> wrong_gradient(const Program& p, const std::vector<Result>& results) {
  const Run rounded = interpret(p);
  Unrounded unrounded;
  Differences differences(p);
  const Run& base = differences.base();
  need_slopes(p, base);
  need_digits(p, rounded);
  need_same_choices(p, rounded, base);
  double magnitude = std::abs(loss_of(base.roots[0], 0).value);
  std::vector<Array> gradients;
  double scale = 1e-3;
  for (size_t t = 0; t < p.targets.size(); ++t) {
    const Array& target = base.values[size_t(p.targets[t])];
    const Result& got = results.at(p.roots.size() + t);
    if (got.type != name(target.type) || got.shape != target.shape)
      return WrongGradient{"type", fmt::format("the gradient of v{} is {}[{}]", p.targets[t],
                                               got.type, fmt::join(got.shape, ", "))};
    gradients.push_back(from_bytes(target.type, got.shape, got.data));
    for (const Element& e : gradients.back().at)
      scale = std::max(scale, std::isfinite(e.v) ? std::abs(e.v) : 0);
  }
  std::mt19937_64 random(p.targets.size() * 131 + p.steps.size());
  for (size_t t = 0; t < gradients.size(); ++t) {
    const Array& g = gradients[t];
    bool wide = g.type == Type::F64;
    for (int k = 0; k < 5; ++k) {
      size_t i = std::uniform_int_distribution<size_t>(0, g.at.size() - 1)(random);
      // Steps of three sizes that do not agree show a kink near by, or a function that bends much.
      double h = wide ? 1e-4 : 2e-3;
      auto slope = [&](double step) { return differences.slope(p.targets[t], i, step); };
      double finest = slope(h / 8), fine = slope(h / 2), coarse = slope(h);
      double spread = std::max(std::abs(coarse - fine), std::abs(fine - finest));
      double large = 1e-2 * std::max(std::abs(fine), 0.01 * scale);
      if (!std::isfinite(spread) || spread > large) continue;
      double expected = (4 * fine - coarse) / 3;
      double allowed = 4 * spread + (wide ? 1e-5 : 1e-2) * scale + 1e-9 * magnitude;
      double actual = g.at[i].v;
      if (std::isfinite(actual) && std::abs(actual - expected) <= allowed) continue;
      if (differences.has_kink(p.targets[t], i, h, (wide ? 1e-6 : 1e-4) * scale)) continue;
      if (differences.has_kink_inside(p.targets[t], i, h)) continue;
      return WrongGradient{
          "gradient",
          fmt::format("the gradient of v{} at {} is {}, differences say {} (within {:.3g})",
                      p.targets[t], place_text(i, g.shape), actual, expected, allowed)};
    }
  }
  return std::nullopt;
}

}  // namespace fuzz
