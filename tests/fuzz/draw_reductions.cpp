// Steps that make many elements one, or each element a function of those along a dim.
#include "tests/fuzz/draw.h"

namespace fuzz {
namespace {

using Names = std::vector<std::string>;

const Names kReductions = {"sum", "mean", "max",       "min", "prod",
                           "var", "std",  "logsumexp", "any", "all"};
const Names kMoments = {"var_mean_first", "var_mean_second", "std_mean_first", "std_mean_second"};
const Names kNorms = {"softmax", "log_softmax", "softmin", "layernorm"};
const Names kScans = {"cumsum",        "cumprod",       "cummax",      "cummin",
                      "cummax_places", "cummin_places", "logcumsumexp"};
const Names kOrders = {"sort_values", "sort_order", "topk_values", "topk_order",
                       "argmax",      "argmin",     "argsort"};

}  // namespace

bool draw_reduction(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  int64_t dim = d.axis(x);
  bool over_all = d.chance(25);
  if (d.profile().meets_sums && d.a_sum() < 0) {
    // Over what is divided, so that the result is pending.
    for (int v = 0; v < d.values(); ++v) {
      std::vector<int64_t> dims = d.sharded_dims(v);
      if (!dims.empty() && count(d.shape(v)) > 0 && d.chance(70))
        x = v, dim = d.one_of(dims), over_all = d.chance(10);
    }
  }
  s.in = {x};
  s.op = d.one_of(kReductions);
  if (d.chance(40)) s.op = d.chance(50) ? "sum" : d.chance(50) ? "max" : "mean";
  if ((s.op == "any" || s.op == "all") && d.gradient()) s.op = "sum";
  s.n = {d.chance(40)};
  if (d.chance(6)) s.op = d.one_of(kMoments), s.n.push_back(d.pick(0, 1));
  if (d.chance(6)) {
    s.op = d.chance(60) ? "sum_as" : "prod_as";
    Type to = d.gradient() ? d.type(x) : d.chance(70) ? d.main_type() : Type::F32;
    s.text = std::string(name(to));
  }
  if (!over_all) {
    s.n.push_back(dim);
    int64_t other = d.axis(x);
    if (other != dim && d.chance(30)) s.n.push_back(other);
  }
  return true;
}

bool draw_identity(Draft& d, Step& s) {
  static const Names kIdentities = {"max_is_attained", "each_has_an_equal", "each_has_an_equal",
                                    "row_sums_agree",  "column_sums_agree", "row_products_agree"};
  // Draws sums most of all: their bits depend on how they are made.
  int x = d.chance(80) ? d.a_rounded_sum() : d.with_dims(1, is_float);
  if (d.gradient() || x < 0 || d.at(x).rank() == 0 || count(d.shape(x)) == 0) return false;
  const Shape shape = d.shape(x);
  int64_t dim = d.axis(x), copies = d.one_of(kTails);
  s.op = d.one_of(kIdentities), s.in = {x};
  if (s.op == "max_is_attained") {
    s.n = {dim};
    return d.type(x) != Type::Bool;
  }
  if (s.op == "each_has_an_equal") return shape[0] * count(shape) <= 20000;
  if (copies * count(shape) > 20000) copies = 5;
  if (s.op == "row_products_agree") {
    if (shape.size() != 2 || d.type(x) == Type::Bool) return false;
    s.in.push_back(d.like({shape[1], d.one_of(kTails)}, d.type(x)));
    s.n = {copies};
    return s.in[1] >= 0;
  }
  s.n = {copies, s.op[0] == 'r' ? dim + 1 : dim};
  return true;
}

bool draw_norm(Draft& d, Step& s) {
  int x = d.with_dims(1, is_float);
  if (x < 0) return false;
  s.op = d.one_of(kNorms), s.in = {x}, s.n = {d.axis(x)};
  if (d.chance(10)) s.op = "normalize", s.d = {double(d.pick(1, 3))};
  if (d.chance(10)) {
    s.op = "layernorm_dims", s.d = {1e-3};
    s.n = {d.at(x).rank() - 1};
    if (d.at(x).rank() > 1 && d.chance(70)) s.n.insert(s.n.begin(), d.at(x).rank() - 2);
  }
  if (d.chance(10)) {
    s.op = d.chance(50) ? "softmax_as" : "log_softmax_as", s.d.clear(), s.n = {d.axis(x)};
    s.text = std::string(name(d.gradient() ? d.type(x) : d.chance(50) ? Type::F32 : Type::F64));
  }
  return true;
}

bool draw_scan(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0) return false;
  s.op = d.one_of(kScans), s.in = {x}, s.n = {d.axis(x)};
  if (d.chance(40)) s.op = "cumsum";
  return d.type(x) != Type::Bool && d.shape(x)[size_t(s.n[0])] <= 600;
}

bool draw_ordering(Draft& d, Step& s) {
  int x = d.with_dims(1);
  if (x < 0 || d.type(x) == Type::Bool) return false;
  int64_t dim = d.axis(x), n = d.shape(x)[size_t(dim)];
  if (n > 130) return false;
  s.op = d.one_of(kOrders), s.in = {x};
  if (s.op == "argmax" || s.op == "argmin") {
    bool all = d.chance(20) && count(d.shape(x)) < 130;
    s.n = {all, d.chance(40), dim};
  } else {
    s.n = {dim, d.chance(50), s.op.starts_with("topk") ? d.pick(1, int(n)) : n};
  }
  return true;
}

}  // namespace fuzz
