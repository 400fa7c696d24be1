// The choice has two parts. Forced: roots, operands and results of opaque ops, assigned storages.
// Chosen: a value that several kernels would compute gets memory unless recomputing it costs no
// more than reading it back, that is, unless it reads at most one buffer of its own size, does
// little arithmetic and contains no reduction. A reduced value that several kernels spread out
// again (a mean, a maximum) gets memory itself, being small, so that what is computed from it stays
// cheap. A value gets none if all that is made of it goes through one other that gets memory. If a value is only
// widened, its narrow form gets the memory. So does what few sums add up, if a long
// reduction makes each term.
//
// A kernel computes a node once for each way in which it looks at it: in a stencil
//
//   x1 = f(x0.roll(1), x0, x0.roll(-1)),  x2 = f(x1.roll(1), x1, x1.roll(-1)),  ...
//
// the kernel of x2 computes x0 once through `roll(1)` of `roll(1)`, once through `roll(-1)` of
// `roll(1)` and so on. These computations multiply from step to step while nodes only add up. If a
// kernel would have more than kMostComputations of them, memory goes to the value in it that saves
// most of them.
#include "core/schedule/fusion.h"

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr double kCheapOps = 100;    // arithmetic per element that hides behind one load
constexpr double kCheapReads = 1.3;  // elements read per element made
constexpr int kLargeKernel = 400;    // nodes in one kernel before its value is cut off
constexpr int kMostComputations = 4 * kLargeKernel;  // of its nodes, before a value in it is
constexpr int kMostViews = 500;                      // of views, before one gets memory
constexpr int64_t kMuch = 1 << 20, kFew = 16;        // elements; of which one is taken
// A value that so long a reduction makes is stored if few sums add it up, where rows together have so many
// elements: a kernel more takes longer else.
constexpr double kLongRow = 32, kLongRows = 1 << 16;
constexpr int64_t kFewSums = 1 << 12;

// The cost of computing a value inside another kernel, each part counted once.
struct Cost {
  double ops = 0;       // arithmetic per element
  double elements = 0;  // read from memory for the whole value
  int nodes = 0;
  int computations = 0;  // of nodes, counted once for each way to look at one
};

// Nodes as one kernel sees them. A view is a chain of movements from the kernel's value down to a
// node; equal chains lead to equal indices, and a node is computed once for all of them.
class Computations {
 public:
  struct Place {
    UOp node;
    size_t view;
  };

  // The place at which `user` reads its source.
  Place source(const Place& user, size_t source) {
    const UOp &x = user.node, &s = x->src()[source];
    const bool moves =
        is_movement(x.op()) || x.op() == Op::Reduce || (x.op() == Op::Gather && source == 0);
    if (!moves) return {s, user.view};
    const Step* last = &steps_[user.view];
    if (last->by && undoes(*x, *last->by)) return {s, last->before};
    steps_.push_back({with_step(last->id, *x), user.view, x.get()});
    return {s, steps_.size() - 1};
  }

  // Notes a place; how many views of its node have been seen with it, 0 for a place seen before.
  int add(const Place& place) {
    const uint64_t view = steps_[place.view].id;
    Seen& seen = seen_[place.node];
    if (seen.views == 0) {
      seen = {view, 1};
      nodes_.push_back(place.node);
      return 1;
    }
    if (seen.first == view || !others_.insert(mixed(view, place.node->id)).second) return 0;
    return ++seen.views;
  }

  std::span<const UOp> nodes() const { return nodes_; }
  int views_of(const UOp& x) const { return seen_.at(x).views; }

 private:
  struct Step {
    uint64_t id;        // equal for equal chains
    size_t before = 0;  // index of the chain without its last step
    const Node* by = nullptr;
  };
  struct Seen {
    uint64_t first = 0;
    int views = 0;
  };

  static uint64_t mixed(uint64_t a, uint64_t b) {
    a = (a ^ b) * 0x9e3779b97f4a7c15;
    return a ^ a >> 29;
  }

  static uint64_t with_step(uint64_t id, const Node& step) {
    id = mixed(id, uint64_t(step.op));
    // Reductions over the same elements differ in what they do with these.
    for (int64_t a : step.arg().subspan(step.op == Op::Reduce ? 1 : 0)) id = mixed(id, uint64_t(a));
    for (int64_t size : step.src()[0].shape()) id = mixed(id, uint64_t(size));
    // The places at which a gather reads are values.
    return step.op == Op::Gather ? mixed(id, step.id) : id;
  }

  // Tells whether looking through `outer` and then through `inner` is looking at the value itself.
  static bool undoes(const Node& inner, const Node& outer) {
    if (inner.op != outer.op) return false;
    switch (inner.op) {
      case Op::Reshape:
        return std::ranges::equal(inner.src()[0].shape(), outer.shape());
      case Op::Flip:
        return std::ranges::equal(inner.arg(), outer.arg());
      case Op::Permute:
        for (size_t i = 0; i < inner.arguments; ++i) {
          if (inner.arg()[size_t(outer.arg()[i])] != int64_t(i)) return false;
        }
        return true;
      default:
        return false;
    }
  }

  std::vector<Step> steps_{{.id = 1}};
  std::vector<UOp> nodes_;  // as met
  NodeMap<Seen> seen_;
  std::unordered_set<uint64_t> others_;  // places but the first of each node
};

// At most two of the materialized values that use a node: one or several is all that matters.
struct Users {
  const Node* first = nullptr;
  bool several = false;
  void add(const Node* user) {
    if (!first) first = user;
    if (first != user) several = true;
  }
  void add(const Users& other) {
    if (other.first) add(other.first);
    several = several || other.several;
  }
};

// Where all uses of a value come together. Of a = f(x), b = g(x), c = a + b, d = h(c) all uses of x come together in
// c, and those of c in d; they do not if b is also a result. Values are numbers in the order of a graph, whose last is
// looked at first.
class Meetings {
 public:
  static constexpr uint32_t kNowhere = ~uint32_t(0);

  explicit Meetings(size_t values) : meets_(values), depth_(values) {}

  // Value `user` uses `source`.
  void use(uint32_t source, uint32_t user) {
    Meeting& m = meets_[source];
    m = m.used ? Meeting{true, common(m.at, user)} : Meeting{true, user};
  }
  // All uses of the value are known. Those of one that `ends` lead nowhere else.
  void finish(uint32_t value, bool ends) {
    Meeting& m = meets_[value];
    if (ends) m.at = kNowhere;
    depth_[value] = m.at == kNowhere ? 0 : depth_[m.at] + 1;
  }
  uint32_t of(uint32_t value) const { return meets_[value].at; }

 private:
  static constexpr int kSteps = 64;  // to look for a place far above is not worth its time
  struct Meeting {
    bool used = false;
    uint32_t at = kNowhere;
  };

  uint32_t common(uint32_t a, uint32_t b) const {
    for (int step = 0; step < kSteps; ++step) {
      if (a == b || a == kNowhere || b == kNowhere) return a == b ? a : kNowhere;
      uint32_t& deeper = depth_[a] > depth_[b] ? a : b;
      deeper = meets_[deeper].at;
    }
    return kNowhere;
  }

  std::vector<Meeting> meets_;
  std::vector<uint32_t> depth_;
};

// Returns what a value is widened from: the same in less memory.
UOp narrower(const UOp& x) {
  bool widened = x.op() == Op::Cast && is_float(x.dtype()) && is_float(x.src(0).dtype()) &&
                 itemsize(x.src(0).dtype()) < itemsize(x.dtype());
  return widened ? x.src(0) : x;
}

}  // namespace

bool is_opaque(Op op) {
  return is_library_op(op) || op == Op::After || op == Op::Collective || op == Op::CopyIn ||
         op == Op::Sink;
}

Fusion::Fusion(std::span<const UOp> order, std::span<const UOp> roots) {
  force(order, roots);
  choose(order);
}

void Fusion::force(std::span<const UOp> order, std::span<const UOp> roots) {
  for (const UOp& root : roots) materialize(root);
  for (const UOp& x : order) {
    if (x.op() == Op::Buffer || x.op() == Op::Contiguous || x.op() == Op::Assign) materialize(x);
    if (x.op() == Op::Gather && !is_const(x.src(0))) {
      // A data-dependent index cannot be pushed through arithmetic at a reasonable price.
      UOp base = under_views(x.src(0));
      if (base.op() != Op::Iota && !is_const(base)) {
        materialize(base);
        // A few elements of much are taken at once: the rest may go.
        if (base->numel() >= kMuch && x->numel() * kFew <= base->numel()) materialize(x);
      }
    }
    if (!is_opaque(x.op())) continue;
    materialize(x);
    for (const UOp& operand : x->src()) {
      UOp base = under_views(operand);
      if (base.op() == Op::Iota || is_const(base))
        materialize(operand);
      else
        materialize(base);
    }
  }
}

void Fusion::choose(std::span<const UOp> order) {
  struct Facts {
    Users users;
    uint32_t consumers = 0;  // sources of ops other than movements that it is
    bool reduces = false;    // holds a reduction that would be computed along with it
    double terms = 0;        // of the longest such reduction that is run anew for each element
    int size = 0;            // no fewer than the computations that it takes
    int views = 0;           // movement ops one after the other, down from a value
  };
  NodeMap<uint32_t> number(order.size());
  for (const UOp& x : order) number[x] = uint32_t(number.size());
  std::vector<Facts> facts(order.size());
  auto of = [&](const UOp& x) -> Facts& { return facts[number.at(x)]; };
  Meetings meetings(order.size());
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& x = order[i];
    const Users mine = materialized(x) ? Users{x.get(), false} : facts[i].users;
    const uint32_t count = is_movement(x.op()) ? facts[i].consumers : 1;
    meetings.finish(uint32_t(i), materialized(x) || x.op() == Op::Reduce);
    for (const UOp& s : x->src()) {
      meetings.use(number.at(s), uint32_t(i));
      Facts& source = of(s);
      source.users.add(mine);
      source.consumers += count;
    }
    if (facts[i].consumers == 1) read_once_.add(x);
  }
  auto cost_of = [&](const UOp& root, Computations& found) {
    Cost cost;
    std::vector<Computations::Place> todo{{root, 0}};
    while (!todo.empty() && cost.nodes <= kLargeKernel && cost.computations <= kMostComputations) {
      Computations::Place place = std::move(todo.back());
      todo.pop_back();
      const UOp& x = place.node;
      const int views = found.add(place);
      if (views == 0) continue;
      if (materialized(x) && !(x == root)) {
        if (views == 1) cost.elements += double(x->numel());
        continue;
      }
      ++cost.computations;
      if (views == 1) {
        ++cost.nodes;
        if (is_elementwise(x.op())) cost.ops += info(x.op()).element.cost.inlined;
        if (x.op() == Op::Gather) cost.elements += double(x->numel());
      }
      for (size_t i = 0; i < x->src().size(); ++i) todo.push_back(found.source(place, i));
    }
    return cost;
  };
  auto can_get_memory = [&](const UOp& x) {
    return !materialized(x) && !is_movement(x.op()) && !x->src().empty();
  };
  auto is_shared = [&](size_t i) { return facts[i].consumers > 1 && facts[i].users.several; };
  // Tells whether a value through which all uses of this one go is shared: that one costs no less, and gets the
  // memory, where it takes no more.
  auto shared_above = [&](size_t i) {
    const auto bytes = [](const UOp& x) {
      return x->numel() * int64_t(itemsize(narrower(x).dtype()));
    };
    for (uint32_t above = meetings.of(uint32_t(i)); above != Meetings::kNowhere;
         above = meetings.of(above)) {
      const UOp& y = order[above];
      if (y->numel() != order[i]->numel()) return false;
      if (is_shared(above) && can_get_memory(y)) return bytes(y) <= bytes(order[i]);
    }
    return false;
  };
  // Finds what follows from the sources of x.
  auto follow = [&](const UOp& x) {
    bool reduction = x.op() == Op::Reduce;
    double terms = reduction && x->numel() > 0 ? double(x.src(0)->numel()) / double(x->numel()) : 0;
    int size = 1;
    for (const UOp& s : x->src()) {
      const Facts& source = of(s);
      reduction = reduction || source.reduces;
      if (x.op() != Op::Expand) terms = std::max(terms, source.terms);
      size += std::min(source.size, kMostComputations);
    }
    const bool own = materialized(x);
    Facts& mine = of(x);
    mine.reduces = reduction && !own;
    mine.terms = own ? 0 : terms;
    mine.size = own ? 1 : size;
  };
  // Gives memory to the value that saves most of what `root` would compute several times; false
  // where there is none.
  auto cut_below = [&](const UOp& root, const Computations& found) {
    UOp best;
    int64_t best_saved = 0;
    for (const UOp& x : found.nodes()) {
      const UOp narrow = narrower(x);
      if (x == root || !can_get_memory(x) || !can_get_memory(narrow)) continue;
      const int64_t saved = int64_t(found.views_of(x) - 1) * of(x).size;
      if (saved > best_saved) best = narrow, best_saved = saved;
    }
    if (!best) return false;
    materialize(best);
    std::vector<UOp> upwards(found.nodes().begin(), found.nodes().end());
    std::ranges::sort(upwards, {}, [](const UOp& x) { return x->id; });  // sources are older
    for (const UOp& x : upwards) follow(x);
    return true;
  };
  // Gives memory to what a movement moves, or a reduction reduces.
  auto materialize_below = [&](const UOp& user) {
    UOp small = under_views(user.src(0));
    materialize(small);
    for (UOp view = user.src(0);; view = view.src(0)) {
      of(view).reduces = false;
      of(view).terms = 0;
      if (view == small) break;
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    const UOp& x = order[i];
    Facts& mine = facts[i];
    if (x.op() == Op::Expand && of(x.src(0)).reduces && mine.users.several &&
        4 * x.src(0)->numel() <= x->numel())
      materialize_below(x);
    // A part of something much larger, as in stack and cat, would have each element of the larger one
    // run the loops that a reduction in it takes.
    if (x.op() == Op::Pad && of(x.src(0)).reduces && 2 * x.src(0)->numel() <= x->numel())
      materialize_below(x);
    // A few sums of what long rows come to, as a mean of losses: else the rows would have no more to run
    // side by side than the sums are.
    if (x.op() == Op::Reduce && x->numel() <= kFewSums && of(x.src(0)).terms >= kLongRow &&
        of(x.src(0)).terms * double(x.src(0)->numel()) >= kLongRows)
      materialize_below(x);
    follow(x);
    // Views of views without end: an index is pushed down through one after the other.
    if (is_movement(x.op()) && !materialized(x)) {
      mine.views = of(x.src(0)).views + 1;
      if (mine.views > kMostViews) {
        mine.views = 0;
        materialize(x);
        follow(x);
      }
    }
    if (!can_get_memory(x)) continue;
    const bool shared = is_shared(i) && !shared_above(i);
    if (!shared && mine.size <= kLargeKernel) continue;
    std::optional<Computations> found(std::in_place);
    Cost cost = cost_of(x, *found);
    while (cost.computations > kMostComputations && cut_below(x, *found)) {
      cost = cost_of(x, found.emplace());
    }
    if (cost.nodes <= kLargeKernel) mine.size = cost.computations;
    double elements = double(std::max<int64_t>(x->numel(), 1));
    bool dear = shared
                    ? mine.reduces || cost.ops > kCheapOps || cost.elements > kCheapReads * elements
                    : cost.nodes > kLargeKernel;
    if (dear) {
      UOp narrow = narrower(x);
      materialize(narrow);
      follow(narrow);
      follow(x);
    }
  }
}

}  // namespace tinyshard
