// The search looks at every combination of the axes' ways, those of the last axis changing fastest:
//
//   axis 0: rows, whole    axis 1: columns, whole
//   rows + columns, rows + whole, whole + columns, whole + whole
//
// Layers that are alike have equal costs: they are computed for the first one only.
#include "multi/strategies/ways.h"

#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "multi/movement_log.h"
#include "multi/moves.h"

namespace tinyshard {
namespace {

constexpr double kAgainst = 1e30;  // seconds; more than anything takes

class Search {
 public:
  Search(const UOp& x, const Contraction& op, const std::vector<std::vector<Way>>& ways,
         const LocalValues& values)
      : op_(op),
        ways_(ways),
        values_(values),
        choice_(values.decisions().ask(question(x, op, ways).hash())),
        costs_(values.decisions().costs(costs(question(x, op, ways)))) {
    now_.a.resize(ways.size()), now_.b.resize(ways.size()), now_.result.resize(ways.size());
    look(0, 1);
  }
  Chosen best;

 private:
  static Question question(const UOp& x, const Contraction& op,
                           const std::vector<std::vector<Way>>& ways) {
    Question q(x);
    q.about(op.a, op.shape_a).about(op.b, op.shape_b).about(uint64_t(op.mesh.id()));
    q.about(uint64_t(op.a_stays) + 2 * uint64_t(op.b_stays));
    for (const std::vector<Way>& here : ways) q.about(here.size());
    return q;
  }
  // A hash of all that the options' costs follow from.
  uint64_t costs(Question question) const {
    question.about(op_.shape).about(uint64_t(op_.type));
    for (const std::vector<Way>& here : ways_) {
      for (const Way& way : here) question.about({way.a, way.b, way.result});
    }
    question.about(std::bit_cast<uint64_t>(op_.operations));
    question.about(uint64_t(op_.shared_a)).about(uint64_t(op_.shared_b));
    question.about(values_.known_moves(op_.a)).about(values_.known_moves(op_.b));
    return question.hash();
  }

  // Tries the ways of the axes from this one on; `parts`: how many devices share the work so far.
  void look(size_t axis, double parts) {
    if (axis == ways_.size()) {
      const double seconds = costs_.next([&] {
        return moving() + values_.links().seconds_to_compute(op_.operations / parts, op_.mesh);
      });
      MovementLog::label(values_.decisions(), [&] {
        return fmt::format("operands {} and {}, result {}", fmt::join(words(now_.a), ", "),
                           fmt::join(words(now_.b), ", "), fmt::join(words(now_.result), ", "));
      });
      if (choice_.offer(seconds)) best = now_;
      return;
    }
    for (const Way& way : ways_[axis]) {
      now_.a[axis] = way.a, now_.b[axis] = way.b, now_.result[axis] = way.result;
      const bool divides = !way.result.is_replicate();
      look(axis + 1, divides ? parts * double(op_.mesh.axes()[axis].size) : parts);
    }
  }

  static std::vector<std::string> words(const std::vector<Placement>& placements) {
    std::vector<std::string> all;
    for (const Placement& p : placements) all.push_back(p.to_string());
    return all;
  }

  double moving() const {
    std::vector<Placement> pending = now_.result, complete = pending;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (!pending[i].is_partial()) continue;
      complete[i] = Replicate;
      if (op_.a.place[i] == now_.a[i] && op_.b.place[i] == now_.b[i]) pending[i] = Replicate;
    }
    double against = 0;
    if (op_.a_stays && !(op_.a.place == now_.a)) against += kAgainst;
    if (op_.b_stays && !(op_.b.place == now_.b)) against += kAgainst;
    return against + moved(op_.a, op_.shape_a, now_.a) / op_.shared_a +
           moved(op_.b, op_.shape_b, now_.b) / op_.shared_b +
           seconds_moved(op_.type, op_.shape, op_.mesh, pending, complete, values_.links());
  }

  double moved(const LocalValue& v, DimSpan global, const std::vector<Placement>& to) const {
    if (values_.was_moved(v, to)) return 0;
    return seconds_moved(v.local.dtype(), global, op_.mesh, v.place, to, values_.links());
  }

  const Contraction& op_;
  const std::vector<std::vector<Way>>& ways_;
  const LocalValues& values_;
  Chosen now_;
  Decisions::Choice choice_;
  Decisions::Costs costs_;
};

}  // namespace

Chosen cheapest(const UOp& x, const Contraction& op, const std::vector<std::vector<Way>>& ways,
                const LocalValues& values) {
  return Search(x, op, ways, values).best;
}

}  // namespace tinyshard
