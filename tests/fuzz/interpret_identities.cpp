// Rules of identities: a value is the same wherever it is computed, so each is true, whatever the
// order in which sums are added up, unless there is a NaN, which equals nothing.
//
//   x [4, 9], summed over dim 1, then read by a maximum and by what looks for it: one is equal
//   the same, read by two indices that run over all pairs: each is equal to itself at least
//   5 copies of x, summed side by side, some in whole vectors and some in what is left: all equal
#include <cmath>

#include "tests/fuzz/interpreter.h"

namespace fuzz {
namespace {

// True everywhere, or not known.
Array all_true(const Shape& shape, const Operands& in) {
  bool known = true;
  for (const Array* x : in) {
    for (const Element& e : x->at)
      known = known && e.known() && (!is_float(x->type) || std::isfinite(e.v));
  }
  Array out(Type::Bool, shape);
  for (Element& e : out.at) e.n = 1, e.err = known ? 0 : kUnknown;
  return out;
}

// n: the axes.
Array max_is_attained(const Step& step, const Operands& in) {
  Step reduce;
  reduce.op = "max", reduce.n = {0};
  reduce.n.insert(reduce.n.end(), step.n.begin(), step.n.end());
  need(in[0]->type != Type::Bool && count(in[0]->shape) > 0, "elements");
  return all_true(interpret(reduce, in).shape, in);
}

// n: copies, and the axis of all of them that is summed.
Array sums_agree(const Step& step, const Operands& in, bool columns) {
  need(in[0]->rank() >= 1 && count(in[0]->shape) > 0, "elements");
  Shape shape = in[0]->shape;
  shape.insert(columns ? shape.end() : shape.begin(), step.n.at(0));
  int64_t axis = step.n.at(1), own = columns ? int64_t(shape.size()) - 1 : 0;
  need(axis >= 0 && axis < int64_t(shape.size()) && axis != own, "axis");
  shape.erase(shape.begin() + axis);
  return all_true(shape, in);
}

// n: copies of the rows of the first.
Array products_agree(const Step& step, const Operands& in) {
  const Array &x = *in[0], &w = *in[1];
  need(x.rank() == 2 && w.rank() == 2 && x.shape[1] == w.shape[0] && count(x.shape) > 0,
       "matrices");
  need(promoted(x.type, w.type) != Type::Bool, "bools");
  return all_true({step.n.at(0), x.shape[0], w.shape[1]}, in);
}

}  // namespace

void add_identity_rules(std::map<std::string, Rule>& rules) {
  rules["max_is_attained"] = max_is_attained;
  rules["each_has_an_equal"] = [](const Step&, const Operands& in) {
    need(in[0]->rank() >= 1 && count(in[0]->shape) > 0, "elements");
    return all_true(in[0]->shape, in);
  };
  rules["row_sums_agree"] = [](const Step& s, const Operands& in) {
    return sums_agree(s, in, false);
  };
  rules["column_sums_agree"] = [](const Step& s, const Operands& in) {
    return sums_agree(s, in, true);
  };
  rules["row_products_agree"] = products_agree;
}

}  // namespace fuzz
