// Nodes are numbered, sources before users. A list is what one value needs, in that order, without
// the inside of folds, which have lists of their own; so nothing recurses but folds inside of
// folds. A node is computed again only where a range that it depends on has another value:
//
//   store(p0, i, x[i] * sum over k of w[k])     loop i: lists of i and of the product
//                                               the fold stands, for it depends on no loop
#include "core/codegen/interpret.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/codegen/bounded_value.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

using bounded::kInfinity;
using bounded::Value;

class Interpreter {
 public:
  Interpreter(const KernelSource& kernel, std::span<const void* const> before,
              std::span<const void* const> after, std::span<const int64_t> coordinates,
              const InterpretOptions& options)
      : kernel_(kernel),
        before_(before),
        after_(after),
        coordinates_(coordinates),
        options_(options),
        numbers_(256) {}

  std::optional<ValueDifference> run() {
    if (!number_nodes()) return std::nullopt;
    std::vector<std::vector<char>> stored(kernel_.params.size());
    bool all = true;
    for (const UOp& store : kernel_.sink->src()) {
      auto& done = stored[size_t(slot_of(*store))];
      if (auto found = compare(store, done, all)) return found;
    }
    for (size_t slot = 0; all && slot < stored.size(); ++slot) {
      if (auto found = compare_rest(int64_t(slot), stored[slot])) return found;
    }
    return std::nullopt;
  }

 private:
  struct Numbered {
    const Node* node = nullptr;
    std::vector<int> sources;
    uint64_t ranges = 0;  // that it depends on
    bool has_load = false;
    std::vector<int> own;   // a fold's ranges
    std::vector<int> body;  // what its operand needs
    bool computed = false;
    std::vector<int64_t> places;  // of its ranges, lowest number first, when it was computed
    Value value;
  };
  struct Range {
    int64_t size, at = 0;
  };

  bool number_nodes() {
    for (const UOp& x : toposort(std::span(&kernel_.sink, 1))) {
      const int number = int(nodes_.size());
      numbers_[x] = number;
      Numbered n;
      n.node = x.get();
      n.has_load = x.op() == Op::Load;
      for (const UOp& s : x->src()) {
        n.sources.push_back(numbers_.at(s));
        if (x.op() == Op::Fold && s.op() == Op::Range) continue;
        n.ranges |= nodes_[size_t(n.sources.back())].ranges;
        n.has_load = n.has_load || nodes_[size_t(n.sources.back())].has_load;
      }
      if (x.op() == Op::Range) {
        if (ranges_.size() == 64) return false;
        n.ranges = uint64_t{1} << ranges_.size();
        ranges_.push_back({range_arg(*x).size});
      }
      if (x.op() == Op::Fold) {
        for (size_t i = 1; i < x->sources; ++i) {
          const uint64_t bit = nodes_[size_t(n.sources[i])].ranges;
          n.own.push_back(std::countr_zero(bit));
          n.ranges &= ~bit;
        }
        n.body = needs(n.sources[0]);
      }
      nodes_.push_back(std::move(n));
    }
    return true;
  }

  // Numbers of the nodes below `root`, sources first, that do not lie inside of a fold.
  std::vector<int> needs(int root) const {
    std::vector<int> list, stack{root};
    std::vector<char> seen(nodes_.size() + 1);
    while (!stack.empty()) {
      const int at = stack.back();
      stack.pop_back();
      if (seen[size_t(at)]) continue;
      seen[size_t(at)] = 1;
      list.push_back(at);
      const Numbered& n = nodes_[size_t(at)];
      if (n.node->op == Op::Fold) continue;
      for (int s : n.sources) stack.push_back(s);
    }
    std::sort(list.begin(), list.end());
    return list;
  }

  // Tells whether the value was computed for the places where the ranges are now.
  bool stands(const Numbered& n) const {
    if (!n.computed) return false;
    size_t i = 0;
    for (uint64_t rest = n.ranges; rest != 0; rest &= rest - 1) {
      if (n.places[i++] != ranges_[size_t(std::countr_zero(rest))].at) return false;
    }
    return true;
  }

  const Value& evaluate(const std::vector<int>& list) {
    for (size_t i = 0; i < list.size(); ++i) {
      const size_t number = size_t(list[i]);
      if (stands(nodes_[number])) continue;
      const Value value = compute(nodes_[number]);
      Numbered& n = nodes_[number];
      n.value = value;
      n.computed = true;
      n.places.clear();
      for (uint64_t rest = n.ranges; rest != 0; rest &= rest - 1)
        n.places.push_back(ranges_[size_t(std::countr_zero(rest))].at);
      // A fold may run over a range that nodes of this list use, too, and so leave other values in
      // the nodes before it: we look at them again.
      if (n.node->op == Op::Fold) i = size_t(-1);
    }
    return nodes_[size_t(list.back())].value;
  }

  Value compute(const Numbered& n) {
    const Node& x = *n.node;
    const auto source = [&](size_t i) -> const Value& {
      return nodes_[size_t(n.sources[i])].value;
    };
    const auto type = [&](size_t i) { return x.src()[i].dtype(); };
    switch (x.op) {
      case Op::Param:
        return {};
      case Op::Const:
        if (!is_float(x.dtype)) return {0, 0, const_bits(x), false};
        return bounded::real_value(x.dtype, std::bit_cast<double>(const_bits(x)), 0);
      case Op::Range:
        return {0, 0, ranges_[size_t(std::countr_zero(n.ranges))].at, false};
      case Op::DeviceCoordinate:
        return {0, 0, coordinates_[size_t(coordinate_arg(x).mesh_axis)], false};
      case Op::Load: {
        const int64_t slot = slot_of(x), at = source(1).whole;
        if (x.sources > 2 && !source(2).unsure && source(2).whole == 0) return {};
        if (source(1).unsure || (x.sources > 2 && source(2).unsure)) return {0, kInfinity, 0, true};
        if (at < 0 || at >= kernel_.params[size_t(slot)].numel) return {};
        return bounded::element(before_[size_t(slot)], x.dtype, at);
      }
      case Op::Fold:
        return fold(n);
      case Op::Where: {
        const Value &condition = source(0), &a = source(1), &b = source(2);
        Value chosen = condition.whole != 0 ? a : b;
        if (!condition.unsure) return chosen;
        if (is_float(x.dtype)) {
          chosen.error = std::abs(a.real - b.real) + std::max(a.error, b.error);
          if (std::isnan(chosen.error)) chosen.error = kInfinity;
        } else {
          chosen.unsure = a.unsure || b.unsure || a.whole != b.whole;
        }
        return chosen;
      }
      case Op::Cast:
        return bounded::cast(source(0), type(0), x.dtype);
      case Op::Bitcast:
        return bounded::bit_cast(source(0), type(0), x.dtype);
      default: {
        static const Value none;
        const Value& second = x.sources > 1 ? source(1) : none;
        return is_float(type(0))
                   ? bounded::on_reals(x.op, x.dtype, source(0), second, options_.division_ulps)
                   : bounded::on_integers(x.op, type(0), x.dtype, source(0), second);
      }
    }
  }

  Value fold(const Numbered& n) {
    const FoldArg arg = fold_arg(*n.node);
    bounded::Total total(arg.op, n.node->dtype, arg.adds_products);
    const std::vector<int> own = n.own, body = n.body;
    std::vector<int64_t> outside;  // a fold around this one may be using the same ranges
    for (int r : own) outside.push_back(ranges_[size_t(r)].at);
    over(own, 1, [&](int64_t) {
      total.add(evaluate(body));
      return true;
    });
    for (size_t i = 0; i < own.size(); ++i) ranges_[size_t(own[i])].at = outside[i];
    return total.value();
  }

  // body(i) with the ranges at each `step`-th of their places, the last one included, until it
  // returns false.
  template <class Body>
  void over(const std::vector<int>& ranges, int64_t step, Body body) {
    int64_t count = 1;
    for (int r : ranges) count *= ranges_[size_t(r)].size;
    for (int64_t i = 0; i < count; i = i + step < count || i == count - 1 ? i + step : count - 1) {
      int64_t rest = i;
      for (size_t d = ranges.size(); d-- > 0;) {
        Range& range = ranges_[size_t(ranges[d])];
        range.at = rest % range.size;
        rest /= range.size;
      }
      if (!body(i)) return;
    }
  }

  // Estimates how many values it takes to evaluate the list.
  double cost(const std::vector<int>& list) const {
    double sum = 0;
    for (int number : list) {
      const Numbered& n = nodes_[size_t(number)];
      double times = 1;
      for (int r : n.own) times *= double(ranges_[size_t(r)].size);
      sum += 1 + (n.own.empty() ? 0 : times * cost(n.body));
    }
    return sum;
  }

  std::optional<ValueDifference> compare(const UOp& store, std::vector<char>& done, bool& all) {
    const int64_t slot = slot_of(*store);
    const ParamInfo& param = kernel_.params[size_t(slot)];
    done.resize(size_t(param.numel));
    const int at = numbers_.at(store.src(1)), value = numbers_.at(store.src(2));
    const int valid = store->sources > 3 ? numbers_.at(store.src(3)) : -1;
    const std::vector<int> place_list = needs(at), value_list = needs(value);
    const std::vector<int> valid_list = valid < 0 ? std::vector<int>() : needs(valid);
    uint64_t used = nodes_[size_t(at)].ranges | nodes_[size_t(value)].ranges;
    if (valid >= 0) used |= nodes_[size_t(valid)].ranges;
    std::vector<int> loops;
    double places = 1;
    for (const UOp& loop : kernel_.loops) {
      const int* number = numbers_.find(loop);
      if (!number || (nodes_[size_t(*number)].ranges & used) == 0) continue;
      loops.push_back(std::countr_zero(nodes_[size_t(*number)].ranges));
      places *= double(ranges_[size_t(loops.back())].size);
    }
    const double work = places * (cost(place_list) + cost(value_list));
    const int64_t step = std::max<int64_t>(1, int64_t(std::ceil(work / double(options_.most))));
    all = all && step == 1;
    // Which of several values that go to one place stays there is nobody's promise.
    const bool scatters = nodes_[size_t(at)].has_load;
    if (scatters) {
      all = false;
      return std::nullopt;
    }
    std::optional<ValueDifference> found;
    over(loops, step, [&](int64_t) {
      const int64_t place = evaluate(place_list).whole;
      if (place < 0 || place >= param.numel) return true;
      if (valid >= 0) {
        const Value stores = evaluate(valid_list);
        if (!stores.unsure && stores.whole == 0) return true;
        done[size_t(place)] = 1;
        if (stores.unsure) return true;
      }
      done[size_t(place)] = 1;
      const Value &expected = evaluate(value_list),
                  actual = bounded::element(after_[size_t(slot)], param.dtype, place);
      if (agree(param.dtype, expected, actual)) return true;
      const auto text = [&](const Value& v) {
        return is_float(param.dtype)            ? fmt::format("{:.17g}", v.real)
               : bounded::has_sign(param.dtype) ? fmt::format("{}", v.whole)
                                                : fmt::format("{}", static_cast<uint64_t>(v.whole));
      };
      found = {slot, place, text(actual), text(expected), expected.error, store.src(2)};
      return false;
    });
    return found;
  }

  static bool agree(DType dtype, const Value& expected, const Value& actual) {
    if (!bounded::known(expected)) return true;
    if (!is_float(dtype)) return expected.whole == actual.whole;
    const double x = expected.real, y = actual.real;
    if (x == y || (std::isnan(x) && std::isnan(y))) return true;
    if (!std::isfinite(y))
      return expected.error > 0 && std::abs(x) + expected.error > bounded::largest(dtype);
    return std::abs(x - y) <= expected.error;
  }

  // Elements that the kernel does not store stay what they were.
  std::optional<ValueDifference> compare_rest(int64_t slot, const std::vector<char>& done) const {
    const ParamInfo& param = kernel_.params[size_t(slot)];
    if (!param.written) return std::nullopt;
    for (size_t other = 0; other < kernel_.params.size(); ++other) {  // maybe the same memory
      const ParamInfo& p = kernel_.params[other];
      if (int64_t(other) != slot && p.written && (p.alias == slot || param.alias == int64_t(other)))
        return std::nullopt;
    }
    const size_t size = itemsize(param.dtype);
    for (size_t i = 0; i < size_t(param.numel); ++i) {
      if (i < done.size() && done[i]) continue;
      const auto* old = static_cast<const char*>(before_[size_t(slot)]) + i * size;
      const auto* now = static_cast<const char*>(after_[size_t(slot)]) + i * size;
      if (std::memcmp(old, now, size) != 0) {
        return ValueDifference{slot, int64_t(i), "written to", "what it was", 0, {}};
      }
    }
    return std::nullopt;
  }

  const KernelSource& kernel_;
  std::span<const void* const> before_, after_;
  std::span<const int64_t> coordinates_;
  const InterpretOptions& options_;
  NodeMap<int> numbers_;
  std::vector<Numbered> nodes_;
  std::vector<Range> ranges_;
};

}  // namespace

std::optional<ValueDifference> first_difference(const KernelSource& kernel,
                                                std::span<const void* const> before,
                                                std::span<const void* const> after,
                                                std::span<const int64_t> coordinates,
                                                const InterpretOptions& options) {
  return Interpreter(kernel, before, after, coordinates, options).run();
}

}  // namespace tinyshard
