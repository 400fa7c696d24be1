// Judging the results of a program.
#include "tests/fuzz/compare.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include <fmt/format.h>

#include "core/exec/make_executable.h"
#include "tests/fuzz/differences.h"
#include "tests/fuzz/real.h"

namespace fuzz {
namespace {

// Results whose last bits depend on the order of a sum or a product.
const std::set<std::string> kSums = {"sum",
                                     "sum_as",
                                     "mean",
                                     "prod",
                                     "prod_as",
                                     "var",
                                     "std",
                                     "var_mean_first",
                                     "var_mean_second",
                                     "std_mean_first",
                                     "std_mean_second",
                                     "logsumexp",
                                     "softmax",
                                     "softmax_as",
                                     "softmin",
                                     "log_softmax",
                                     "log_softmax_as",
                                     "normalize",
                                     "layernorm",
                                     "layernorm_dims",
                                     "cumsum",
                                     "cumprod",
                                     "logcumsumexp",
                                     "matmul",
                                     "matmul_as",
                                     "dot",
                                     "linear",
                                     "einsum",
                                     "conv2d",
                                     "conv_transpose2d",
                                     "avg_pool2d",
                                     "scatter_reduce",
                                     "scatter_reduce_assign",
                                     "attention",
                                     "bitcast",  // of a NaN, which may be any
                                     "binary_crossentropy",
                                     "binary_crossentropy_logits",
                                     "cross_entropy",
                                     "cross_entropy_probabilities",
                                     "sparse_categorical_crossentropy",
                                     "nll_loss",
                                     "newton_schulz",
                                     "qr_product",
                                     "qr_orthogonal",
                                     "svd_product",
                                     "svd_orthogonal",
                                     "svd_values"};

// Results that are known when the program is built.
const std::set<std::string> kMade = {"full_like", "zeros_like", "ones_like",
                                     "arange",    "linspace",   "eye"};

// Bools that a comparison or a test gives; a comparison with a number that lies outside of an integer
// type is known beforehand.
const std::set<std::string> kTests = {
    "eq",         "ne",         "lt",         "le",         "gt",          "ge",
    "isnan",      "operator==", "operator!=", "operator<",  "operator<=",  "operator>",
    "operator>=", "isinf",      "isfinite",   "isinf_side", "logical_not", "isclose"};

// Returns whether a result may be known when the program is built though only some operands are: if
// it is looked up in equal elements, chosen between constants or by one, and-ed with zeros.
bool consists_of(const Step& step, const std::vector<bool>& known) {
  static const std::set<std::string> kLookups = {"gather", "take", "take_pairs", "embedding"};
  static const std::set<std::string> kMasks = {"operator&",  "operator|", "bitwise_and",
                                               "bitwise_or", "operator*", "mul"};
  const bool any = std::ranges::find(known, true) != known.end();
  if (kLookups.contains(step.op)) return known[0];
  if (step.op == "where") return (known[1] && known[2]) || (known[0] && (known[1] || known[2]));
  if (step.op == "masked_fill") return any;
  if (kTests.contains(step.op)) return any || step.in.size() == 1;
  return kMasks.contains(step.op) && any;
}

// The value that a step shows in another form: what is compared with it is compared with itself.
int shown(const Program& p, int v) {
  static const std::set<std::string> kForms = {
      "reshape", "view",      "flatten", "contiguous",  "detach", "clone",
      "expand",  "unsqueeze", "squeeze", "squeeze_all", "cast",   "contiguous_backward"};
  while (!p.is_leaf(v) && kForms.contains(p.step(v).op)) v = p.step(v).in[0];
  return v;
}

std::vector<bool> exact_values(const Program& p) {
  std::vector<bool> exact(size_t(p.values()), true), folded(size_t(p.values()), false);
  for (size_t i = 0; i < p.leaves.size(); ++i)
    folded[i] = p.leaves[i].role == Role::Variable ||
                (p.leaves[i].role == Role::Constant &&
                 (p.leaves[i].style == Style::Same || p.leaves[i].style == Style::Range));
  // Twice, for what comes back as an argument or a state.
  for (int round = 0; round < 3; ++round) {
    std::vector<int> at;
    for (int v = 0; v < p.values(); ++v) at.push_back(v);
    for (int v = int(p.leaves.size()); v < p.values(); ++v) {
      const Step& step = p.step(v);
      bool all = true;
      std::vector<bool> known;
      for (int in : step.in) {
        all = all && exact[size_t(at[size_t(in)])];
        known.push_back(folded[size_t(at[size_t(in)])]);
      }
      const bool constant =
          std::ranges::find(known, false) == known.end() || consists_of(step, known);
      // Values that are computed when the program is built come from the host's functions.
      // So may a value that is computed of a value and itself: x - x is 0, x >= x is true.
      const bool of_itself = step.in.size() == 2 &&
                             at[size_t(shown(p, step.in[0]))] == at[size_t(shown(p, step.in[1]))];
      const bool made = kMade.contains(step.op) || of_itself;
      folded[size_t(v)] = made || (constant && !is_statement(step));
      if (constant && !made && !kTests.contains(step.op)) all = false;
      if (is_statement(step)) {
        at[size_t(v)] = at[size_t(step.in[0])];
        if (!all) exact[size_t(at[size_t(v)])] = false;
      } else {
        exact[size_t(v)] = exact[size_t(v)] && all && !kSums.contains(step.op);
      }
    }
    for (const Feedback& f : p.feedback) {
      if (!exact[size_t(p.roots[size_t(f.root)])]) exact[size_t(f.leaf)] = false;
    }
    for (int v = int(p.leaves.size()); v < p.values(); ++v)
      exact[size_t(v)] = exact[size_t(v)] && exact[size_t(at[size_t(v)])];
  }
  return exact;
}

std::string place_text(size_t at, const Shape& shape) {
  std::string out;
  for (size_t i = shape.size(); i-- > 0;) {
    out = fmt::format("{}{}{}", at % size_t(shape[i]), out.empty() ? "" : ", ", out);
    at /= size_t(shape[i]);
  }
  return "[" + out + "]";
}

std::string text_of(Type type, const Element& e) {
  if (is_float(type)) return fmt::format("{}", e.v);
  return type == Type::U64 ? fmt::format("{}", uint64_t(e.n)) : fmt::format("{}", e.n);
}

// Differences that say nothing: which NaN, which zero.
bool same(Type type, const Element& a, const Element& b) {
  if (!is_float(type)) return a.n == b.n;
  return a.v == b.v || (std::isnan(a.v) && std::isnan(b.v));
}

bool agrees(Type type, const Element& actual, const Element& expected) {
  if (!expected.known()) return true;
  if (same(type, actual, expected)) return true;
  if (!is_float(type)) return false;
  return std::isfinite(actual.v) && std::isfinite(expected.v) &&
         std::abs(actual.v - expected.v) <= 2 * expected.err;
}

struct Names {
  std::string what;
  int call;
};

// Nothing where all elements agree.
std::optional<Finding> compared(const Result& got, const Array& expected, const Names& names) {
  Finding f;
  if (got.type != name(expected.type) || got.shape != expected.shape) {
    f.kind = "type";
    f.text = fmt::format("{} of call {} is {}[{}], expected {}[{}]", names.what, names.call,
                         got.type, fmt::join(got.shape, ", "), name(expected.type),
                         fmt::join(expected.shape, ", "));
    return f;
  }
  Array actual = from_bytes(expected.type, expected.shape, got.data);
  for (size_t i = 0; i < actual.at.size(); ++i) {
    if (agrees(expected.type, actual.at[i], expected.at[i])) continue;
    f.kind = "value";
    f.text =
        fmt::format("{} of call {} at {} is {}, expected {} (within {:.3g})", names.what,
                    names.call, place_text(i, expected.shape), text_of(expected.type, actual.at[i]),
                    text_of(expected.type, expected.at[i]), expected.at[i].err);
    return f;
  }
  return std::nullopt;
}

// A maximum or minimum of -0 and 0, which are equal, gives either: where the order in which a plan
// compares them is not that of another one, so may be the sign. So does a sort of values along a
// divided dim, whose equal elements come in any order.
bool gives_either_zero(const Program& p, bool placed) {
  return std::ranges::any_of(p.steps, [&](const Step& s) {
    return s.op.find("max") != std::string::npos || s.op.find("min") != std::string::npos ||
           s.op.starts_with("scatter_reduce") ||
           (placed && (s.op == "sort_values" || s.op == "topk_values"));
  });
}

std::optional<Finding> compared_bits(const Result& got, const Result& other, bool signed_zeros,
                                     const Names& names) {
  if (got.type != other.type || got.shape != other.shape || got.data == other.data)
    return std::nullopt;
  Type type = type_named(got.type);
  Array a = from_bytes(type, got.shape, got.data), b = from_bytes(type, other.shape, other.data);
  for (size_t i = 0; i < a.at.size(); ++i) {
    const bool other_zero = signed_zeros && is_float(type) && a.at[i].v == 0 &&
                            std::signbit(a.at[i].v) != std::signbit(b.at[i].v);
    if (same(type, a.at[i], b.at[i]) && !other_zero) continue;
    Finding f;
    f.kind = "bits";
    f.text = fmt::format("{} of call {} at {} is {}, and {} as lazy values of one run", names.what,
                         names.call, place_text(i, got.shape), text_of(type, a.at[i]),
                         text_of(type, b.at[i]));
    return f;
  }
  return std::nullopt;
}

// Indices lie within the dim they belong to, however close the values were.
std::optional<Finding> inside_bounds(const Program& p, const Run& run, const Result& got, int root,
                                     const Names& names) {
  if (p.is_leaf(root)) return std::nullopt;
  const Step& step = p.step(root);
  bool order = step.op.ends_with("_order") || step.op == "argsort";
  if (!order && !step.op.starts_with("arg")) return std::nullopt;
  const Shape& shape = run.values[size_t(step.in[0])].shape;
  auto size = [&](int64_t dim) {
    return shape.empty() ? 1 : shape.at(size_t(dim));
  };  // scalars: one
  int64_t n = order ? size(step.n[0]) : step.n[0] ? count(shape) : size(step.n[2]);
  Array actual = from_bytes(Type::I32, got.shape, got.data);
  for (size_t i = 0; i < actual.at.size(); ++i) {
    if (actual.at[i].n >= 0 && actual.at[i].n < n) continue;
    Finding f;
    f.kind = "value";
    f.text = fmt::format("{} of call {} at {} is {}, an index into a dim of {}", names.what,
                         names.call, place_text(i, got.shape), actual.at[i].n, n);
    return f;
  }
  return std::nullopt;
}

// Returns whether a run has the kernels of the first one of its kind, so that sums are added up in
// the same order: however many threads there are, in whatever order kernels run and whether for the
// first time or again.
//
// A captured step is another plan
//
//   that reads a constant from outside: it finds it stored, and kernels that know a number, or what
//   is placed where it is wanted, add up otherwise;
//   that writes: a captured one computes what it writes with the roots of each call, a lazy one
//   waits to the last call, or for ever where nothing reads it;
//   two arguments of which are one former result: it knows them as two;
//   that realizes: lazily what is realized is computed by itself;
//   that has a Variable: lazily it is a number, which kernels may know until it changes;
//   an argument of which is a former result on a mesh: lazily, bringing it to its place is a part of
//   the plan, in which a sum may be made before.
bool captures_another_plan(const Program& p, bool placed) {
  const bool stores = std::ranges::any_of(p.leaves, [&](const Leaf& leaf) {
    const bool known = leaf.style == Style::Same || leaf.style == Style::Range;
    const bool lazy = leaf.role == Role::Constant || leaf.role == Role::Parameter;
    return (known && leaf.role != Role::Argument) || (placed && lazy) ||
           leaf.role == Role::Variable;
  });
  const bool realizes =
      std::ranges::any_of(p.steps, [](const Step& s) { return s.op == "realize"; });
  const bool written = std::ranges::any_of(p.steps, writes);
  std::set<int> fed;
  const bool twice = !std::ranges::all_of(
      p.feedback, [&](const Feedback& f) { return fed.insert(p.roots[size_t(f.root)]).second; });
  const bool moves = placed && !p.feedback.empty();
  return stores || realizes || written || (p.calls > 1 && (twice || moves));
}

bool convolves(const Program& p) {
  return std::ranges::any_of(p.steps, [](const Step& s) { return s.op.starts_with("conv"); });
}

bool repeats_plan(const Program& p, const Check& check) {
  if (check.way == Way::Captured && captures_another_plan(p, check.placed)) return false;
  // By its threads a library cuts the sums of a convolution, of its result and of its gradients.
  const bool other_threads = std::ranges::any_of(
      check.environment, [](const auto& entry) { return entry.first == "TS_THREADS"; });
  if (other_threads && convolves(p)) return false;
  static const std::set<std::string> kSame = {"TS_THREADS", "TS_SHUFFLE", "SPEC", "TS_CACHE"};
  return (check.way == Way::Lazy || check.way == Way::Captured) &&
         std::ranges::all_of(check.environment,
                             [](const auto& entry) { return kSame.contains(entry.first); });
}

std::optional<Finding> failure(const Reply& reply) {
  Finding f;
  f.text = reply.text;
  switch (reply.kind) {
    case Reply::Kind::Done:
      return std::nullopt;
    case Reply::Kind::Error:
      f.kind = reply.text.substr(0, reply.text.find(':'));
      return f;
    case Reply::Kind::Crash:
      f.kind = "crash";
      return f;
    default:
      f.kind = "hang";
      return f;
  }
}

}  // namespace

std::vector<bool> exact_roots(const Program& p) {
  std::vector<bool> values = exact_values(p), out;
  for (int root : p.roots) out.push_back(values[size_t(root)]);
  return out;
}

std::string Check::to_string() const {
  std::string out = fmt::format("{}: {}{}", mode, kWays[size_t(way)], placed ? ", on a mesh" : "");
  for (const auto& [key, value] : environment) out += fmt::format(" {}={}", key, value);
  return out;
}

std::string Finding::signature() const {
  std::string head = text.substr(0, text.find('\n'));
  if (kind != "UserError" && kind != "InternalError" && kind != "exception") head.clear();
  std::string letters;
  for (char c : head) letters += std::isdigit(static_cast<unsigned char>(c)) ? '#' : c;
  return fmt::format("{} {} {}", check.mode, kind, letters.substr(0, 90));
}

std::vector<Check> checks_for(const Program& p, const std::string& mode, uint64_t seed) {
  std::vector<Check> out;
  std::mt19937_64 random(seed);
  auto chance = [&](int percent) { return int(random() % 100) < percent; };
  bool gradient = !p.targets.empty(), captures = std::ranges::none_of(p.steps, reads_values);
  if (!p.mesh.empty()) {
    out.push_back({"placements", Way::Lazy, true, {}});
    if (p.calls > 1 && captures) out.push_back({"placements", Way::Captured, true, {}});
    if (captures && chance(25)) out.push_back({"placements", Way::Troubled, true, {}});
  }
  // Programs without a mesh are run in all other ways; those on one rather give way to the next.
  if (p.mesh.empty() || chance(25) || !mode.empty()) {
    out.push_back({gradient ? "gradients" : "values", Way::Lazy, false, {}});
    if (gradient) out.push_back({"gradients", Way::Disturbed, false, {}});
    if (!gradient) out.push_back({"steps", Way::Steps, false, {}});
    if (chance(30)) out.push_back({"steps", Way::Barriers, false, {}});
    if (chance(20)) out.push_back({"steps", Way::Apart, false, {}});
    if (captures && (p.calls > 1 || chance(25)))
      out.push_back({"captured", Way::Captured, false, {}});
    if (captures && (p.calls > 1 || gradient ? chance(60) : chance(15)))
      out.push_back({"captured", Way::Troubled, false, {}});
  }
  static const std::vector<Environment> kSwitches = [] {
    std::vector<Environment> list = {
        {{"TS_LIBRARIES", "0"}}, {{"TS_THREADS", "1"}},        {{"TS_THREADS", "2"}},
        {{"TS_THREADS", "5"}},   {{"TS_SHUFFLE", "7"}},        {{"SPEC", "2"}},
        {{"TS_CACHE", "0"}},     {{"TS_BUCKET_BYTES", "64"}},  {{"BEAM", "8"}},
        {{"TS_CHECK", "costs"}}, {{"TS_COMPOSITES", "spell"}}, {{"TS_COMPOSITES", "keep"}},
    };
    for (const tinyshard::StepName& step : tinyshard::known_steps()) {
      if (!step.required) list.push_back({{"TS_DISABLE_PASSES", std::string(step.name)}});
    }
    return list;
  }();
  if (chance(35) || mode == "switches") {
    Check c{"switches", Way::Lazy, !p.mesh.empty() && chance(50), {}};
    c.environment = kSwitches[random() % kSwitches.size()];
    if (captures && chance(30)) c.way = Way::Captured;
    out.push_back(c);
  }
  std::erase_if(out, [&](const Check& c) { return !mode.empty() && c.mode != mode; });
  return out;
}

const Run& Judge::expected(bool placed) {
  RoundedParts parts(placed);
  std::optional<Run>& run = expected_[placed];
  if (!run) run = interpret(program_);
  return *run;
}

const Reply& Judge::lazy(bool placed) {
  std::optional<Reply>& reply = lazy_[placed];
  if (!reply) reply = workers_.run(program_, Way::Lazy, placed, {});
  return *reply;
}

std::optional<Finding> Judge::operator()(const Check& check) {
  const Program& p = program_;
  for (int target : p.targets) {
    // Where nothing is placed, shard() is no value of its own.
    if (!p.is_leaf(target) && is_placement(p.step(target))) throw Invalid("target");
  }
  const Run& run = expected(check.placed);
  RoundedParts parts(check.placed);
  auto found = [&](std::optional<Finding> f, int root) {
    if (f) f->check = check, f->root = root;
    return f;
  };
  const bool first = check.way == Way::Lazy && check.environment.empty();
  Reply reply =
      first ? lazy(check.placed) : workers_.run(p, check.way, check.placed, check.environment);
  if (auto f = failure(reply)) return found(f, -1);
  if (reply.results.size() != size_t(p.calls)) throw Invalid("calls");
  // These must have the bits of the first run: all results of another run of the same plan, and of
  // another plan, as any but that of all on one device is, those that are not summed.
  const bool same_plan = !first && repeats_plan(p, check) && lazy(check.placed).done();
  const std::vector<bool> exact = exact_roots(p);
  const bool any_exact = std::ranges::find(exact, true) != exact.end();
  const bool signed_zeros = !gives_either_zero(p, check.placed);
  const bool other_plan =
      any_exact && (check.placed || (!first && !same_plan)) && lazy(false).done();
  for (int call = 0; call < p.calls; ++call) {
    const std::vector<Result>& got = reply.results[size_t(call)];
    for (size_t k = 0; k < p.roots.size(); ++k) {
      Names names{fmt::format("root {} (v{})", k, p.roots[k]), call};
      if (auto f = compared(got.at(k), run.roots[size_t(call)][k], names)) return found(f, int(k));
      if (auto f = inside_bounds(p, run, got[k], p.roots[k], names)) return found(f, int(k));
      if (other_plan && exact[k]) {
        const Result& other = lazy(false).results[size_t(call)].at(k);
        if (auto f = compared_bits(got[k], other, signed_zeros, names)) return found(f, int(k));
      }
    }
    // Gradients and states have the same bits, too.
    for (size_t k = 0; same_plan && k < got.size(); ++k) {
      bool root = k < p.roots.size();
      Names names{root ? fmt::format("root {} (v{})", k, p.roots[k])
                       : fmt::format("what follows the roots at {}", k - p.roots.size()),
                  call};
      const Result& other = lazy(check.placed).results[size_t(call)].at(k);
      if (auto f = compared_bits(got[k], other, true, names)) return found(f, root ? int(k) : -1);
    }
  }
  if (!p.targets.empty()) {
    auto wrong = wrong_gradient(p, reply.results[0]);
    if (!wrong) return std::nullopt;
    Finding f;
    f.kind = wrong->kind, f.text = wrong->text;
    return found(f, -1);
  }
  size_t next = p.roots.size();
  for (size_t i = 0; i < p.leaves.size(); ++i) {
    if (p.leaves[i].role != Role::State) continue;
    Names names{fmt::format("state v{}", i), p.calls - 1};
    if (auto f = compared(reply.results.back().at(next++), run.values[i], names))
      return found(f, -1);
  }
  return std::nullopt;
}

}  // namespace fuzz
