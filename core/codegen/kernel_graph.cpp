// Numbers a kernel's nodes, sources before users, and merges ranges that are walked as one.
//
// Each index is a form: a constant and terms of a coefficient times a node. Two ranges are merged
// where each access steps over them alike, that is, where the outer one's coefficient is the inner
// one's times the inner one's size:
//
//   y[i, j] = x[i, j] + 1, i < 4, j < 6    index 6 i + j in both   one range k < 24, index k
//   y[i, j] = x[j, i] + 1                  4 j + i in x            i and j stay apart
//
// A merge need not be exact: in a form in which the ranges do not step alike, i becomes k / 6 and j
// becomes k % 6. A store or fold must use both ranges or neither, or it would be done several times.
#include "core/codegen/kernel_graph.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/uop/args.h"

namespace tinyshard::codegen {
namespace {

[[noreturn]] void malformed(const char* what, const Node& node) {
  throw InternalError(std::string("malformed kernel: ") + what + ": " + describe(node));
}

}  // namespace

Graph::Graph(const KernelSource& kernel) : params_(kernel.params), numbers_(256) {
  const UOp& sink = kernel.sink;
  check_internal(sink && sink.op() == Op::Sink, "a kernel is a Sink over stores");
  for (const UOp& loop : kernel.loops) {
    check_internal(loop.op() == Op::Range, "loops of a kernel are Ranges");
    int number = nodes_[visit(loop)].range;
    if (number >= 0) loops_.push_back(number);
  }
  RangeSet empty = 0;
  for (const UOp& store : sink->src()) {
    if (store.op() != Op::Store) malformed("a Sink takes stores", *store);
    stores_.push_back(visit(store));
  }
  for (size_t i = 0; i < kernel.scalars.constants.size(); ++i) {
    nodes_[numbers_.at(kernel.scalars.constants[i])].scalar =
        kernel.scalars.first + static_cast<int>(i);
  }
  RangeSet listed = 0;
  for (int r : loops_) listed |= bit(r);
  for (int r = 0; r < ranges(); ++r) {
    if (ranges_[r].size == 0) empty |= bit(r);
    if (!ranges_[r].fold && !(listed & bit(r)))
      malformed("a loop that `loops` does not list", *nodes_[ranges_[r].node].uop);
  }
  RangeSet used = 0;
  for (int store : stores_) {
    RangeSet varies = nodes_[store].varies;
    for (int r = 0; r < ranges(); ++r) {
      if (varies & bit(r) && ranges_[r].fold)
        malformed("a Fold range outside of its Fold", *nodes_[store].uop);
    }
    if (!(varies & empty)) used |= varies;
  }
  mark_contractions();
  std::erase_if(stores_, [&](int store) { return (nodes_[store].varies & empty) != 0; });
  std::erase_if(loops_, [&](int r) { return !(used & bit(r)); });
}

void Graph::mark_contractions() {
  std::vector<char> read_as_value(nodes_.size());
  for (int node = 0; node < size(); ++node) {
    const Node& uop = *nodes_[node].uop;
    bool contracts = uop.op == Op::Fold && fold_arg(uop).adds_products;
    if (!contracts) {
      for (int s : sources(node)) read_as_value[s] = 1;
    } else if (nodes_[source(node, 0)].op == Op::Mul) {
      nodes_[node].contracts = nodes_[source(node, 0)].contracts = true;
    }
  }
  for (int node = 0; node < size(); ++node) {
    if (read_as_value[node] && nodes_[node].op == Op::Mul) nodes_[node].contracts = false;
  }
}

int Graph::visit(const UOp& root) {
  // Iterative: chains of elementwise ops can be thousands of nodes long.
  std::vector<std::pair<UOp, size_t>> stack{{root, 0}};
  while (!stack.empty()) {
    auto& [x, next] = stack.back();
    if (numbers_.contains(x)) {
      stack.pop_back();
    } else if (next < x->src().size()) {
      UOp source = x.src(next++);
      if (!numbers_.contains(source)) stack.emplace_back(std::move(source), 0);
    } else {
      UOp done = x;
      stack.pop_back();
      add(done);
    }
  }
  return numbers_.at(root);
}

int Graph::add(const UOp& x) {
  int number = size();
  KernelNode node;
  node.uop = x.get();
  node.op = x.op();
  node.dtype = x.dtype();
  node.low = x->low;
  node.high = x->high;
  node.source_begin = static_cast<int>(source_pool_.size());
  node.source_count = static_cast<int>(x->src().size());
  for (const UOp& source : x->src()) {
    int s = numbers_.at(source);
    source_pool_.push_back(s);
    node.varies |= nodes_[s].varies;
    node.has_load |= nodes_[s].has_load;
  }
  switch (x.op()) {
    case Op::Range: {
      const RangeArg range = range_arg(*x);
      if (range.size == 1) break;
      if (ranges() == 64) malformed("more than 64 ranges", *x);
      node.range = ranges();
      node.varies = bit(node.range);
      ranges_.push_back({number, range.size, range.kind == RangeKind::Fold});
      break;
    }
    case Op::Fold: {
      FoldRanges& own = fold_ranges_[number];
      for (size_t i = 1; i < x->src().size(); ++i) {
        const KernelNode& range = nodes_[numbers_.at(x.src(i))];
        if (range.op != Op::Range) malformed("a Fold over something that is no Range", *x);
        if (range.range < 0) continue;
        if (!ranges_[range.range].fold) malformed("a Fold over a loop range", *x);
        node.varies &= ~bit(range.range);
        own.ranges.push_back(range.range);
        own.empty |= ranges_[range.range].size == 0;
      }
      break;
    }
    case Op::Param: {
      const int64_t slot = param_slot(*x);
      if (slot < 0 || slot >= params()) malformed("a Param without ParamInfo", *x);
      if (params_[slot].dtype != x.dtype())
        malformed("a Param of another type than its ParamInfo", *x);
      break;
    }
    case Op::Load:
      node.has_load = true;
      [[fallthrough]];
    case Op::Store:
      if (x->src().size() < 2 || x.src(0).op() != Op::Param)
        malformed("a Load or Store of something that is no Param", *x);
      if (x.src(1).dtype() != DType::Index) malformed("an index that is no Index", *x);
      break;
    case Op::Const:
    case Op::DeviceCoordinate:
    case Op::Sink:
      break;
    default:
      if (!is_elementwise(x.op())) malformed("an op that kernels do not have", *x);
      if (x.op() == Op::IDiv && is_float(x.dtype())) malformed("an integer division of floats", *x);
  }
  numbers_[x] = number;
  nodes_.push_back(node);
  if (node.dtype == DType::Index) make_form(number);
  return number;
}

void Graph::make_form(int number) {
  KernelNode& node = nodes_[number];
  Form form;
  auto sum = [&](const Form& a, const Form& b, int64_t scale) {
    form.constant = a.constant + scale * b.constant;
    size_t i = 0, j = 0;
    while (i < a.terms.size() || j < b.terms.size()) {
      Form::Term term;
      if (j == b.terms.size() || (i < a.terms.size() && a.terms[i].node < b.terms[j].node)) {
        term = a.terms[i++];
      } else if (i == a.terms.size() || b.terms[j].node < a.terms[i].node) {
        term = {b.terms[j].node, scale * b.terms[j].coefficient};
        ++j;
      } else {
        term = {a.terms[i].node, a.terms[i].coefficient + scale * b.terms[j].coefficient};
        ++i, ++j;
      }
      if (term.coefficient != 0) form.terms.push_back(term);
    }
  };
  bool affine = true;
  switch (node.op) {
    case Op::Const:
      form.constant = const_bits(*node.uop);
      break;
    case Op::Range:
      if (node.range >= 0) form.terms.push_back({number, 1});
      break;
    case Op::Neg:
      sum({}, this->form(source(number, 0)), -1);
      break;
    case Op::Add:
      sum(this->form(source(number, 0)), this->form(source(number, 1)), 1);
      break;
    case Op::Sub:
      sum(this->form(source(number, 0)), this->form(source(number, 1)), -1);
      break;
    case Op::Mul: {
      const Form &a = this->form(source(number, 0)), &b = this->form(source(number, 1));
      if (b.terms.empty()) {
        sum({}, a, b.constant);
      } else if (a.terms.empty()) {
        sum({}, b, a.constant);
      } else {
        affine = false;
      }
      break;
    }
    default:
      affine = false;
  }
  if (!affine) form.terms.push_back({number, 1});
  node.form = static_cast<int>(forms_.size());
  forms_.push_back(std::move(form));
}

bool Graph::aliased(int slot) const {
  if (params_[slot].alias >= 0) return true;
  return std::ranges::any_of(params_, [&](const ParamInfo& p) { return p.alias == slot; });
}

int64_t Graph::alignment(int node, int range, int64_t lanes, int divisions) const {
  const Form& f = form(node);
  int64_t step = std::abs(f.constant);
  for (auto [term, coefficient] : f.terms) {
    const KernelNode& t = nodes_[term];
    int64_t own = 1;
    if (t.range == range && range >= 0) {
      own = ranges_[range].size <= lanes ? 0 : lanes;  // a range of one block starts at 0
    } else if (divisions > 0 && (t.op == Op::IDiv || t.op == Op::Mod) &&
               form(source(term, 1)).terms.empty()) {
      int64_t inner = alignment(source(term, 0), range, lanes, divisions - 1),
              by = form(source(term, 1)).constant;
      if (t.op == Op::Mod) {
        own = inner == 0 ? 0 : std::gcd(inner, by);
      } else if (by != 0 && inner % by == 0) {
        own = std::abs(inner / by);
      }
    }
    step = std::gcd(step, coefficient * own);
  }
  return step;
}

std::optional<Graph::Pattern> Graph::lane_pattern(int node, int range, int64_t block, int64_t lanes,
                                                  int divisions) const {
  Pattern pattern(static_cast<size_t>(lanes), 0);
  for (auto [term, coefficient] : form(node).terms) {
    const KernelNode& t = nodes_[term];
    if (!(t.varies & bit(range))) continue;
    if (t.range == range) {
      for (int64_t i = 0; i < lanes; ++i) pattern[static_cast<size_t>(i)] += coefficient * i;
      continue;
    }
    if ((t.op != Op::IDiv && t.op != Op::Mod) || divisions == 0) return std::nullopt;
    const Form& by = form(source(term, 1));
    int64_t divisor = by.constant;
    int dividend = source(term, 0);
    std::optional<Pattern> inner = lane_pattern(dividend, range, block, lanes, divisions - 1);
    if (!inner || !by.terms.empty() || divisor <= 0) return std::nullopt;
    // Lane 0 of the dividend is a multiple of `step`, which divides the divisor. Either no lane
    // leaves the step, or the divisor itself divides lane 0.
    int64_t step = std::gcd(alignment(dividend, range, block), divisor);
    bool inside =
        std::ranges::all_of(*inner, [&](int64_t offset) { return offset >= 0 && offset < step; });
    if (!inside && step != divisor) return std::nullopt;
    for (size_t i = 0; i < pattern.size(); ++i) {
      int64_t offset = (*inner)[i], quotient = offset / divisor - (offset % divisor < 0);
      pattern[i] += coefficient * (t.op == Op::IDiv ? quotient : offset - quotient * divisor);
    }
  }
  return pattern;
}

std::optional<int64_t> Graph::lane_stride(int node, int range, int64_t block) const {
  if (!(nodes_[node].varies & bit(range))) return 0;
  const Form& f = form(node);
  bool simple = std::ranges::all_of(f.terms, [&](const Form::Term& term) {
    return nodes_[term.node].range == range || !(nodes_[term.node].varies & bit(range));
  });
  if (simple) {
    for (const Form::Term& term : f.terms) {
      if (nodes_[term.node].range == range) return term.coefficient;
    }
  }
  std::optional<Pattern> pattern = lane_pattern(node, range, block, block);
  if (!pattern) return std::nullopt;
  int64_t stride = pattern->size() > 1 ? (*pattern)[1] : 0;
  for (size_t i = 0; i < pattern->size(); ++i) {
    if ((*pattern)[i] != stride * static_cast<int64_t>(i)) return std::nullopt;
  }
  return stride;
}

// --- merging ranges ------------------------------------------------------------------------------

int64_t Graph::coefficient(const Form& form, int node) const {
  for (auto [term, coefficient] : form.terms) {
    if (term == node) return coefficient;
  }
  return 0;
}

std::vector<std::pair<int, int>> Graph::mergeable() const {
  std::vector<std::pair<int, int>> pairs;
  // Sets of stores or folds that each range occurs in, as a hash.
  std::vector<uint64_t> users(ranges_.size(), 0);
  for (size_t i = 0; i < stores_.size(); ++i) {
    for (int r : loops_) {
      if (nodes_[stores_[i]].varies & bit(r)) users[r] += mix(i + 1);
    }
  }
  for (const auto& [fold, own] : fold_ranges_) {
    if (own.empty) continue;
    for (int r : own.ranges) users[r] += mix(static_cast<uint64_t>(fold) + 1);
  }
  // A fold stays outside of the loops that it does not vary with, and these apart from those around
  // it. Merged, each lane would compute it again: value after value where another kernel of the same
  // fold adds them side by side, which is another order of the sum; and after stores that may have
  // replaced what the fold reads.
  for (int node = 0; node < size(); ++node) {
    if (nodes_[node].op != Op::Fold) continue;
    for (int r : loops_) {
      if (nodes_[node].varies & bit(r)) users[r] += mix(~static_cast<uint64_t>(node));
    }
  }
  for (int access = 0; access < size(); ++access) {
    if (nodes_[access].op != Op::Load && nodes_[access].op != Op::Store) continue;
    const Form& index = form(source(access, 1));
    for (auto [inner_node, inner_coefficient] : index.terms) {
      int inner = nodes_[inner_node].range;
      for (auto [outer_node, outer_coefficient] : index.terms) {
        int outer = nodes_[outer_node].range;
        if (inner < 0 || outer < 0 || inner == outer || ranges_[inner].fold != ranges_[outer].fold)
          continue;
        if (outer_coefficient != inner_coefficient * ranges_[inner].size ||
            users[inner] != users[outer] || !users[inner])
          continue;
        if (std::ranges::find(pairs, std::pair{outer, inner}) == pairs.end())
          pairs.emplace_back(outer, inner);
      }
    }
  }
  return pairs;
}

bool Graph::merges_exactly(int outer, int inner) const {
  RangeSet both = bit(outer) | bit(inner);
  for (int node = 0; node < size(); ++node) {
    const KernelNode& n = nodes_[node];
    if (n.op == Op::Fold && (n.varies & both) != 0 && (n.varies & both) != both) return false;
    // Sums of indices are no users of their own: what they are part of is looked at.
    if (n.form >= 0 && (form(node).terms.size() != 1 || form(node).terms[0].node != node)) continue;
    if (n.range >= 0) continue;
    for (int s : sources(node)) {
      if (nodes_[s].form < 0) continue;
      int64_t a = coefficient(form(s), ranges_[outer].node);
      int64_t b = coefficient(form(s), ranges_[inner].node);
      if (a != b * ranges_[inner].size) return false;
    }
  }
  return true;
}

int Graph::add_index(Op op, int range, std::initializer_list<int> sources, Form form) {
  KernelNode node;
  node.op = op;
  node.dtype = DType::Index;
  node.range = range;
  node.source_begin = static_cast<int>(source_pool_.size());
  node.source_count = static_cast<int>(sources.size());
  source_pool_.insert(source_pool_.end(), sources);
  for (int s : sources) node.varies |= nodes_[s].varies;
  if (range >= 0) node.varies = bit(range);
  int number = size();
  if (op != Op::Const) form.terms.push_back({number, 1});
  node.form = static_cast<int>(forms_.size());
  forms_.push_back(std::move(form));
  nodes_.push_back(node);
  return number;
}

void Graph::merge(int outer, int inner) {
  int64_t size_inner = ranges_[inner].size, size_outer = ranges_[outer].size;
  int old_outer = ranges_[outer].node, old_inner = ranges_[inner].node;
  size_t old_forms = forms_.size();
  int merged = add_index(Op::Range, outer, {}, {});
  int divisor = add_index(Op::Const, -1, {}, Form{size_inner, {}});
  int quotient = add_index(Op::IDiv, -1, {merged, divisor}, {});
  int rest = add_index(Op::Mod, -1, {merged, divisor}, {});
  nodes_[merged].high = size_outer * size_inner - 1;
  nodes_[divisor].low = nodes_[divisor].high = size_inner;
  nodes_[quotient].high = size_outer - 1;
  nodes_[rest].high = size_inner - 1;
  for (size_t f = 0; f < old_forms; ++f) {
    Form& form = forms_[f];
    int64_t a = coefficient(form, old_outer), b = coefficient(form, old_inner);
    if (a == 0 && b == 0) continue;
    std::erase_if(form.terms,
                  [&](const Form::Term& t) { return t.node == old_outer || t.node == old_inner; });
    if (a == b * size_inner) {
      form.terms.push_back({merged, b});
    } else {
      if (a != 0) form.terms.push_back({quotient, a});
      if (b != 0) form.terms.push_back({rest, b});
    }
  }
  for (KernelNode& node : nodes_) {
    if (node.varies & bit(inner)) node.varies = (node.varies & ~bit(inner)) | bit(outer);
  }
  nodes_[old_outer].range = nodes_[old_inner].range = -1;
  ranges_[outer].node = merged;
  ranges_[outer].size = size_outer * size_inner;
  ranges_[inner].size = 1;
  std::erase(loops_, inner);
  for (auto& [fold, own] : fold_ranges_) std::erase(own.ranges, inner);
}

}  // namespace tinyshard::codegen
