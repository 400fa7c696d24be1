// Programs step by step, and what the rules of all ops share.
#include "tests/fuzz/interpreter.h"

#include <cmath>

#include "tests/fuzz/real.h"

namespace fuzz {

const std::map<std::string, Rule>& rules() {
  static const std::map<std::string, Rule> table = [] {
    std::map<std::string, Rule> t;
    add_elementwise_rules(t);
    add_movement_rules(t);
    add_reduction_rules(t);
    add_product_rules(t);
    add_indexing_rules(t);
    add_window_rules(t);
    add_layer_rules(t);
    add_linalg_rules(t);
    add_identity_rules(t);
    add_view_rules(t);
    add_float8_rules(t);
    return t;
  }();
  return table;
}

Array interpret(const Step& step, const Operands& operands) {
  auto rule = rules().find(step.op);
  if (rule == rules().end()) throw Invalid("no op is called " + step.op);
  return rule->second(step, operands);
}

int64_t resolved(int64_t axis, int64_t rank) {
  need(axis >= -rank && axis < rank, "axis");
  return axis < 0 ? axis + rank : axis;
}

void each_place(const Shape& shape, const std::function<void(const Shape&, size_t)>& f) {
  Shape place(shape.size(), 0);
  size_t n = size_t(count(shape));
  for (size_t at = 0; at < n; ++at) {
    f(place, at);
    for (size_t i = shape.size(); i-- > 0;) {
      if (++place[i] < shape[i]) break;
      place[i] = 0;
    }
  }
}

size_t linear(const Shape& place, const Shape& shape) {
  size_t at = 0;
  for (size_t i = 0; i < shape.size(); ++i) at = at * size_t(shape[i]) + size_t(place[i]);
  return at;
}

Shape broadcast(const Shape& a, const Shape& b) {
  size_t rank = std::max(a.size(), b.size());
  Shape out(rank);
  for (size_t i = 0; i < rank; ++i) {
    int64_t m = i + a.size() < rank ? 1 : a[i + a.size() - rank];
    int64_t n = i + b.size() < rank ? 1 : b[i + b.size() - rank];
    need(m == n || m == 1 || n == 1, "shapes");
    out[i] = m == 1 ? n : m;
  }
  return out;
}

Array expanded(const Array& x, const Shape& shape) {
  if (x.shape == shape) return x;
  need(x.shape.size() <= shape.size() && broadcast(x.shape, shape) == shape, "expand");
  Array out(x.type, shape);
  size_t extra = shape.size() - x.shape.size();
  each_place(shape, [&](const Shape& place, size_t at) {
    size_t from = 0;
    for (size_t i = 0; i < x.shape.size(); ++i) {
      from = from * size_t(x.shape[i]) + size_t(x.shape[i] == 1 ? 0 : place[i + extra]);
    }
    out.at[at] = x.at[from];
  });
  return out;
}

Array converted(const Array& x, Type type) {
  if (x.type == type) return x;
  Array out(type, x.shape);
  for (size_t i = 0; i < x.at.size(); ++i) {
    const Element& e = x.at[i];
    Element& to = out.at[i];
    if (!e.known()) {
      to.err = kUnknown;
    } else if (is_float(x.type) && is_float(type)) {
      to = element(type, {e.v, e.err});
    } else if (is_float(type)) {
      to = element(type, {as_double(x.type, e.n), 0});
    } else if (is_float(x.type)) {
      double low = std::trunc(e.v - e.err), high = std::trunc(e.v + e.err);
      if (type == Type::Bool) {
        bool zero = e.v - e.err <= 0 && e.v + e.err >= 0;
        to = integer(type, !(e.v == 0), e.err == 0 || !zero);
      } else {
        // Beyond the type, and of NaN, anything may come.
        double bits = double(8 * bytes(type)), top = std::ldexp(1, int(bits) - is_signed(type));
        bool inside = low == high && low < top && low >= (is_signed(type) ? -top : 0);
        to = integer(type, inside ? (low < 9e18 ? int64_t(low) : int64_t(uint64_t(low))) : 0,
                     inside);
      }
    } else {
      to = integer(type, e.n);
    }
  }
  return out;
}

Run interpret(const Program& p, const Nudge& nudge, const std::vector<Array>* held) {
  Run run;
  std::vector<Array> states(p.leaves.size());
  std::vector<Array> fed(p.leaves.size());
  std::vector<bool> is_fed(p.leaves.size(), false);
  for (int call = 0; call < p.calls; ++call) {
    std::vector<Array> values;
    std::vector<int> at;  // which of them a number means: statements mean their target's
    for (size_t i = 0; i < p.leaves.size(); ++i) {
      const Leaf& leaf = p.leaves[i];
      bool kept = leaf.role == Role::State && call > 0;
      values.push_back(kept ? states[i] : is_fed[i] ? fed[i] : elements(leaf, call));
      at.push_back(int(i));
    }
    auto nudged = [&](int value) {
      if (nudge.value == value) values[size_t(value)].at[nudge.element].v += nudge.by;
    };
    for (size_t i = 0; i < p.leaves.size(); ++i) nudged(int(i));
    for (const Step& step : p.steps) {
      int me = int(values.size());
      Operands operands;
      for (int in : step.in) {
        need(in >= 0 && in < me, "operand");
        operands.push_back(&values[size_t(at[size_t(in)])]);
      }
      if (is_statement(step)) {
        int target = at[size_t(step.in.at(0))];
        if (writes(step)) {
          Array value = interpret(step, operands);
          values[size_t(target)] = std::move(value);
        }
        values.emplace_back();
        at.push_back(target);
      } else {
        Array value = step.op == "detach" && held ? (*held)[size_t(me)] : interpret(step, operands);
        values.push_back(std::move(value));
        at.push_back(me);
      }
      nudged(me);
    }
    std::vector<Array> roots;
    for (int root : p.roots) roots.push_back(values[size_t(at[size_t(root)])]);
    for (size_t i = 0; i < p.leaves.size(); ++i) states[i] = values[i];
    for (const Feedback& f : p.feedback) {
      fed[size_t(f.leaf)] = roots.at(size_t(f.root));
      is_fed[size_t(f.leaf)] = true;
      const Leaf& leaf = p.leaves[size_t(f.leaf)];
      need(leaf.role == Role::Argument, "feedback to an argument");
      need(fed[size_t(f.leaf)].type == leaf.type && fed[size_t(f.leaf)].shape == leaf.shape,
           "feedback");
    }
    run.roots.push_back(std::move(roots));
    if (call + 1 == p.calls) {
      for (size_t i = 0; i < values.size(); ++i) {
        run.values.push_back(values[size_t(at[i])]);
      }
    }
  }
  return run;
}

}  // namespace fuzz
