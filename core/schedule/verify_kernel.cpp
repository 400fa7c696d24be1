// Proves that a kernel may run in place, element by element. With a row softmax over its operand,
//
//   store [i * 8 + j]  exp(load [i * 8 + j] - fold max over k of load [i * 8 + k])
//
// the second load happens where its fold is computed, once for each i; element e is stored in
// iteration (e / 8, e % 8). For each i and k the element i * 8 + k is stored in an iteration of the
// same i, and so after the fold of that i. With load [k * 8 + i] in its place it is not: the fold
// of i = 1 reads what i = 0 has stored.
//
// Small spaces of iterations are gone through one by one. In large ones store and load must have
// the form of digits, sums of coefficient * range of which each coefficient is larger than what all
// smaller ones add up to: an element then tells the value of every range.
#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/schedule/verify.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr int64_t kFewPoints = 1 << 16;   // are gone through at once
constexpr int64_t kMostPoints = 1 << 24;  // and so many where nothing else shows it

using Ranges = std::set<const Node*>;

bool is_loop(const Node* range) { return range_arg(*range).kind == RangeKind::Loop; }
int64_t size_of(const Node* range) { return range_arg(*range).size; }

// An integer expression as a list of steps on numbers, to be evaluated often. Nothing where it
// depends on data.
class Program {
 public:
  static std::optional<Program> of(const UOp& root) {
    Program program;
    NodeMap<int> place;
    for (const UOp& x : toposort(std::span(&root, 1))) {
      Step step;
      switch (x.op()) {
        case Op::Const:
          step.constant = const_as_int(x);
          break;
        case Op::Range:
          program.ranges_.emplace_back(x.get(), int(program.steps_.size()));
          break;
        case Op::DeviceCoordinate:
          program.devices_.emplace_back(coordinate_arg(*x).mesh_axis, coordinate_arg(*x).size,
                                        int(program.steps_.size()));
          break;
        case Op::Where:
          step.chooses = true;
          break;
        default:
          step.compute = info(x.op()).element.integers;
          if (!step.compute) return std::nullopt;
      }
      for (size_t i = 0; i < x->src().size(); ++i) step.from[i] = place.at(x.src(i));
      if (x.dtype() != DType::Index && x.dtype() != DType::Bool) return std::nullopt;
      if (!x->src().empty()) step.kind = integer_kind(x.src(0).dtype());
      place[x] = int(program.steps_.size());
      program.steps_.push_back(step);
    }
    program.values_.resize(program.steps_.size());
    return program;
  }

  void set(const Node* range, int64_t value) {
    for (auto& [r, step] : ranges_) {
      if (r == range) steps_[size_t(step)].constant = value;
    }
  }
  void set_device(int64_t axis, int64_t coordinate) {
    for (auto& [a, size, step] : devices_) {
      if (a == axis) steps_[size_t(step)].constant = coordinate;
    }
  }
  // {axis, size} of the meshes' axes that it depends on.
  void add_axes(std::set<std::pair<int64_t, int64_t>>& axes) const {
    for (auto& [axis, size, step] : devices_) axes.emplace(axis, size);
  }

  int64_t operator()() {
    for (size_t i = 0; i < steps_.size(); ++i) values_[i] = compute(steps_[i]);
    return values_.back();
  }

 private:
  struct Step {
    OnIntegers compute = nullptr;  // null: a Where, or the constant
    IntegerKind kind{};
    bool chooses = false;
    int from[3] = {0, 0, 0};
    int64_t constant = 0;  // of constants, ranges and coordinates
  };

  int64_t compute(const Step& s) const {
    auto v = [&](int i) { return values_[size_t(s.from[i])]; };
    if (s.compute)
      return static_cast<int64_t>(
          s.compute(s.kind, static_cast<uint64_t>(v(0)), static_cast<uint64_t>(v(1))));
    return !s.chooses ? s.constant : v(0) ? v(1) : v(2);
  }

  std::vector<Step> steps_;
  std::vector<std::pair<const Node*, int>> ranges_;
  std::vector<std::tuple<int64_t, int64_t, int>> devices_;
  std::vector<int64_t> values_;
};

// A sum of coefficient * range, by coefficient, of which each is larger than all that the smaller
// ones add up to.
std::optional<std::map<int64_t, const Node*>> digits(const UOp& index) {
  std::map<const Node*, int64_t> coefficients;
  int64_t constant = 0;
  auto add = [&](auto& self, const UOp& x, int64_t factor) -> bool {
    switch (x.op()) {
      case Op::Const:
        constant += factor * const_as_int(x);
        return true;
      case Op::Range:
        coefficients[x.get()] += factor;
        return true;
      case Op::Add:
        return self(self, x.src(0), factor) && self(self, x.src(1), factor);
      case Op::Sub:
        return self(self, x.src(0), factor) && self(self, x.src(1), -factor);
      case Op::Mul:
        if (is_const(x.src(1))) return self(self, x.src(0), factor * const_as_int(x.src(1)));
        if (is_const(x.src(0))) return self(self, x.src(1), factor * const_as_int(x.src(0)));
        return false;
      default:
        return false;
    }
  };
  if (!add(add, index, 1) || constant != 0) return std::nullopt;
  std::map<int64_t, const Node*> found;
  for (auto [range, coefficient] : coefficients) {
    if (coefficient == 0 || size_of(range) <= 1) continue;
    if (coefficient < 0 || !found.emplace(coefficient, range).second) return std::nullopt;
  }
  int64_t most = 0;
  for (auto [coefficient, range] : found) {
    if (coefficient <= most) return std::nullopt;
    most += coefficient * (size_of(range) - 1);
  }
  return found;
}

class InPlace {
 public:
  InPlace(const KernelSource& kernel, const SharedParams& share) : share_(share) {
    for (const UOp& x : toposort(std::span(&kernel.sink, 1))) {
      Ranges& mine = free_[x.get()];
      if (x.op() == Op::Range && size_of(x.get()) > 1) mine.insert(x.get());
      for (const UOp& s : x->src()) mine.insert(free_[s.get()].begin(), free_[s.get()].end());
      if (x.op() == Op::Fold) {
        for (const UOp& r : x->src().subspan(1)) mine.erase(r.get());
      }
      if (x.op() == Op::Store) stores_.push_back(x);
    }
  }

  void run() {
    for (const UOp& store : stores_) {
      std::set<std::pair<const Node*, const Node*>> seen;
      visit(store.src(1), UOp(), store, seen);
      visit(store.src(2), UOp(), store, seen);
      if (store->sources > 3) visit(store.src(3), UOp(), store, seen);
    }
  }

 private:
  static size_t slot(const UOp& access) { return size_t(slot_of(*access)); }
  const Ranges& free(const UOp& x) const { return free_.at(x.get()); }
  bool only_loops(const UOp& x) const { return std::ranges::all_of(free(x), is_loop); }

  // Everything that is computed for `user`; `fold`: the one in whose loops that happens, if any.
  // One that depends on the ranges of another fold is computed in the loops of that one.
  void visit(const UOp& x, const UOp& fold, const UOp& user,
             std::set<std::pair<const Node*, const Node*>>& seen) {
    if (!seen.emplace(x.get(), fold.get()).second) return;
    if (x.op() == Op::Load) {
      for (const UOp& store : stores_) {
        if (share_[slot(store)][slot(x)]) check(x, fold, user, store);
      }
    }
    const UOp& within = x.op() == Op::Fold && only_loops(x) ? x : fold;
    for (const UOp& s : x->src()) visit(s, within, user, seen);
  }

  [[noreturn]] static void fail(const UOp& load, const UOp& store, const char* why) {
    throw InternalError(
        fmt::format("the load of slot {} shares memory with the store to slot {}, "
                    "{}",
                    slot(load), slot(store), why));
  }

  void check(const UOp& load, const UOp& fold, const UOp& user, const UOp& store) {
    const Ranges &computed = fold ? free(fold) : free(load), &stored = free(store.src(1)),
                 &used = free(user.src(1));
    auto contains = [](const Ranges& all, const Ranges& part) {
      return std::ranges::includes(all, part);
    };
    if (!contains(used, stored) && !contains(stored, used))
      fail(load, store, "but what needs it is stored in loops of its own");
    if (!contains(computed, stored) && !contains(stored, computed))
      fail(load, store, "but is computed in loops of its own");
    if (fold && !(load.src(1) == store.src(1)) && !needs(store.src(2), fold))
      fail(load, store, "whose value does not need the fold that reads it");
    Ranges common;
    std::ranges::set_intersection(computed, stored, std::inserter(common, common.end()));
    switch (agree(load, store, common)) {
      case Answer::Yes:
        return;
      case Answer::No:
        fail(load, store, "and finds an element that another iteration has stored");
      case Answer::Unknown:
        fail(load, store, "and nothing shows that it comes first");
    }
  }

  static bool needs(const UOp& value, const UOp& fold) {
    const NodeOrder all = toposort(std::span(&value, 1));
    return std::ranges::find(all, fold) != all.end();
  }

  // Where a load and a store are, as numbers of the loops' values and of the device's coordinates.
  struct Accesses {
    Program stored, loaded;
    std::optional<Program> valid;  // nothing where the mask depends on data: it may hold
    std::vector<std::pair<int64_t, int64_t>> axes;  // of the mesh, with their sizes

    static std::optional<Accesses> of(const UOp& load, const UOp& store) {
      auto stored = Program::of(store.src(1)), loaded = Program::of(load.src(1));
      if (!stored || !loaded) return std::nullopt;
      auto valid = load->src().size() > 2 ? Program::of(load.src(2)) : std::nullopt;
      std::set<std::pair<int64_t, int64_t>> axes;
      for (const Program* p : {&*stored, &*loaded}) p->add_axes(axes);
      if (valid) valid->add_axes(axes);
      return Accesses{*stored, *loaded, valid, {axes.begin(), axes.end()}};
    }
    int64_t devices() const {
      int64_t n = 1;
      for (auto [axis, size] : axes) n = times(n, size);
      return n;
    }
    void set_device(int64_t axis, int64_t coordinate) {
      for (Program* p : {&stored, &loaded}) p->set_device(axis, coordinate);
      if (valid) valid->set_device(axis, coordinate);
    }
  };

  enum class Answer : uint8_t { Yes, No, Unknown };

  // Says whether every element loaded is stored where the common loops have the same values.
  Answer agree(const UOp& load, const UOp& store, const Ranges& common) {
    if (common.empty()) return Answer::Yes;  // complete before the first loop
    Ranges ranges = common;
    for (const UOp& x : load->src().subspan(1)) ranges.insert(free(x).begin(), free(x).end());
    auto accesses = Accesses::of(load, store);
    int64_t points = INT64_MAX;
    if (accesses)
      points = times(accesses->devices(), std::max(count(ranges), count(free(store.src(1)))));
    if (points <= kFewPoints) return agree_by_points(*accesses, store, common, ranges);
    if (agree_by_digits(load.src(1), store.src(1), common)) return Answer::Yes;
    if (points <= kMostPoints) return agree_by_points(*accesses, store, common, ranges);
    return Answer::Unknown;
  }

  // The product, or the largest number.
  static int64_t times(int64_t a, int64_t b) {
    int64_t product = 0;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
  }
  static int64_t count(const Ranges& ranges) {
    int64_t n = 1;
    for (const Node* r : ranges) n = times(n, size_of(r));
    return n;
  }

  static bool agree_by_digits(const UOp& loaded, const UOp& stored, const Ranges& common) {
    auto load = digits(loaded), store = digits(stored);
    if (!load || !store) return false;
    for (auto [coefficient, range] : *load) {
      auto same = store->find(coefficient);
      if (same == store->end() || size_of(range) > size_of(same->second)) return false;
    }
    size_t found = 0;
    for (auto [coefficient, range] : *store) {
      if (!common.contains(range)) continue;
      ++found;
      auto same = load->find(coefficient);
      if (same == load->end() || same->second != range) return false;
    }
    return found == common.size();
  }

  // Calls body for each value of the ranges.
  template <class Body>
  static void for_each(const Ranges& ranges, const Body& body) {
    std::vector<const Node*> list(ranges.begin(), ranges.end());
    if (std::ranges::any_of(list, [](const Node* r) { return size_of(r) == 0; })) return;
    std::vector<int64_t> values(list.size());
    for (;;) {
      body(list, values);
      size_t i = 0;
      while (i < list.size() && ++values[i] == size_of(list[i])) values[i++] = 0;
      if (i == list.size()) return;
    }
  }

  // Tries all coordinates of the mesh's axes that the accesses depend on, device by device.
  Answer agree_by_points(Accesses& accesses, const UOp& store, const Ranges& common,
                         const Ranges& ranges) {
    std::vector<int64_t> coordinates(accesses.axes.size());
    for (;;) {
      for (size_t a = 0; a < coordinates.size(); ++a)
        accesses.set_device(accesses.axes[a].first, coordinates[a]);
      Answer answer = on_one_device(accesses.stored, accesses.loaded, accesses.valid, common,
                                    free(store.src(1)), ranges);
      if (answer != Answer::Yes) return answer;
      size_t a = 0;
      while (a < coordinates.size() && ++coordinates[a] == accesses.axes[a].second)
        coordinates[a++] = 0;
      if (a == coordinates.size()) return Answer::Yes;
    }
  }

  static Answer on_one_device(Program& stored, Program& loaded, std::optional<Program>& valid,
                              const Ranges& common, const Ranges& store_ranges,
                              const Ranges& load_ranges) {
    auto key = [&](const std::vector<const Node*>& list, const std::vector<int64_t>& values) {
      int64_t k = 0;  // the values of the common loops
      for (size_t i = 0; i < list.size(); ++i) {
        if (common.contains(list[i])) k = k * size_of(list[i]) + values[i];
      }
      return k;
    };
    auto set = [](Program& p, const std::vector<const Node*>& list,
                  const std::vector<int64_t>& values) {
      for (size_t i = 0; i < list.size(); ++i) p.set(list[i], values[i]);
    };
    std::unordered_map<int64_t, int64_t> owner;  // of an element: the common loops' values
    bool once = true, before = true;
    for_each(store_ranges, [&](const auto& list, const auto& values) {
      set(stored, list, values);
      once = once && owner.emplace(stored(), key(list, values)).second;
    });
    for_each(load_ranges, [&](const auto& list, const auto& values) {
      if (valid) {
        set(*valid, list, values);
        if (!(*valid)()) return;
      }
      set(loaded, list, values);
      auto found = owner.find(loaded());
      before = before && (found == owner.end() || found->second == key(list, values));
    });
    return once && before ? Answer::Yes : Answer::No;
  }

  const SharedParams& share_;
  std::unordered_map<const Node*, Ranges> free_;  // ranges of more than one value
  std::vector<UOp> stores_;
};

}  // namespace

void verify_in_place(const KernelSource& kernel, const SharedParams& share) {
  InPlace(kernel, share).run();
}

}  // namespace tinyshard
