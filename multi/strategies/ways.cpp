#include "multi/strategies/ways.h"

#include <limits>
#include <map>

#include "multi/moves.h"

namespace tinyshard {
namespace {

constexpr double kAgainst = 1e30;  // bytes; more than anything sends

class Search {
 public:
  Search(const Contraction& op, const std::vector<std::vector<Way>>& ways,
         const LocalValues& values)
      : op_(op), ways_(ways), values_(values) {
    now_.a.resize(ways.size()), now_.b.resize(ways.size()), now_.result.resize(ways.size());
    look(0, 1);
  }
  Chosen best;

 private:
  // Of the axes from this one on; `parts`: among how many devices those before divide the work.
  void look(size_t axis, double parts) {
    if (axis == ways_.size()) {
      const double bytes = sent() + op_.flops / parts / kFlopsPerByte;
      if (bytes >= least_) return;
      least_ = bytes, best = now_;
      return;
    }
    for (const Way& way : ways_[axis]) {
      now_.a[axis] = way.a, now_.b[axis] = way.b, now_.result[axis] = way.result;
      const bool divides = !way.result.is_replicate();
      look(axis + 1, divides ? parts * double(op_.mesh.axes()[axis].size) : parts);
    }
  }

  double sent() {
    std::vector<Placement> pending = now_.result, complete = pending;
    for (size_t i = 0; i < pending.size(); ++i) {
      if (!pending[i].is_partial()) continue;
      complete[i] = Replicate;
      if (op_.a.place[i] == now_.a[i] && op_.b.place[i] == now_.b[i]) pending[i] = Replicate;
    }
    double against = 0;
    if (op_.a_stays && !(op_.a.place == now_.a)) against += kAgainst;
    if (op_.b_stays && !(op_.b.place == now_.b)) against += kAgainst;
    return against + moved(op_.a, op_.shape_a, now_.a, for_a_) / op_.shared_a +
           moved(op_.b, op_.shape_b, now_.b, for_b_) / op_.shared_b +
           bytes_moved(op_.type, op_.shape, op_.mesh, pending, complete);
  }

  using Known = std::map<std::vector<int>, double>;
  double moved(const LocalValue& v, DimSpan global, const std::vector<Placement>& to,
               Known& known) {
    std::vector<int> key;
    for (const Placement& p : to) key.push_back(p.is_shard() ? p.dim : -1);
    auto [place, fresh] = known.try_emplace(std::move(key), 0);
    if (fresh && !values_.was_moved(v, to))
      place->second = bytes_moved(v.local.dtype(), global, op_.mesh, v.place, to);
    return place->second;
  }

  const Contraction& op_;
  const std::vector<std::vector<Way>>& ways_;
  const LocalValues& values_;
  Chosen now_;
  Known for_a_, for_b_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

Chosen cheapest(const Contraction& op, const std::vector<std::vector<Way>>& ways,
                const LocalValues& values) {
  return Search(op, ways, values).best;
}

}  // namespace tinyshard
