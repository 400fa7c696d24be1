// A plan maps questions (an op with operands that lie so) to options. Layers that
// are alike ask one question, so one change of the plan changes them all; a question
// that is asked four times at most may also be answered anew each time. An attempt
// makes the local graph with a plan and estimates it; it is kept if it takes less
// time, and writes not much more than the plan where each op chose alone.
#include "multi/planner.h"

#include <algorithm>

namespace tinyshard {
namespace {

constexpr double kWorthIt = 0.98;   // of the cost of each choosing alone
constexpr double kLess = 1 - 1e-6;  // what counts as less while the search goes on
constexpr size_t kApart = 4;        // a question asked as often at most is answered each time anew
constexpr size_t kNext = 3;         // choices after one that are made together with it

// A plan may write so much more than that of each op choosing alone: time is not bought with memory
// that may not be there.
constexpr double kMoreBytes = 1.1, kSpareBytes = 64 << 20;

// An option that could be taken in place of another one.
struct Candidate {
  uint64_t key;  // of the plan
  size_t option;
  double extra;  // seconds beyond what was taken, summed over the occurrences
  size_t at;     // where it was asked first
};

class Descent {
 public:
  Descent(const Tried& alone, const TryPlan& attempt, const Budget& budget)
      : best_(alone),
        most_bytes_(kMoreBytes * alone.cost.bytes + kSpareBytes),
        attempt_(attempt),
        left_(budget.attempts),
        in_vain_(budget.in_vain) {}

  Plan run(double alone) {
    do {
      while (improve_one()) {
      }
    } while (improve_two());
    return best_.cost.seconds < alone * kWorthIt ? plan_ : Plan{};
  }

 private:
  // Candidates among what was asked from `from` on, at most `count` choices; the cheapest first.
  static std::vector<Candidate> candidates(const Tried& tried, size_t from = 0,
                                           size_t count = SIZE_MAX) {
    struct Sum {
      size_t first;
      std::vector<double> extra;
    };
    std::vector<std::pair<uint64_t, Sum>> sums;
    std::unordered_map<uint64_t, size_t> known;
    std::unordered_map<uint64_t, size_t> times;
    for (const Decisions::Asked& asked : tried.asked) ++times[asked.question];
    auto add = [&](uint64_t key, size_t at) {
      const Decisions::Asked& asked = tried.asked[at];
      const auto [place, fresh] = known.try_emplace(key, sums.size());
      if (fresh) sums.push_back({key, {at, std::vector<double>(asked.offers.size())}});
      std::vector<double>& extra = sums[place->second].second.extra;
      for (size_t i = 0; i < std::min(extra.size(), asked.offers.size()); ++i)
        extra[i] += asked.offers[i] - asked.offers[asked.taken];
    };
    size_t met = 0;
    for (size_t at = 0; at < tried.asked.size(); ++at) {
      const Decisions::Asked& asked = tried.asked[at];
      if (at < from || asked.offers.size() < 2 || met >= count) continue;
      ++met;
      const size_t often = times[asked.question];
      add(asked.question, at);
      if (often > 1 && often <= kApart) add(occurrence_of(asked.question, asked.occurrence), at);
    }
    std::vector<Candidate> all;
    for (const auto& [key, sum] : sums) {
      for (size_t i = 0; i < sum.extra.size(); ++i) {
        if (i != tried.asked[sum.first].taken && sum.extra[i] < tried.cost.movable_seconds)
          all.push_back({key, i, sum.extra[i], sum.first});
      }
    }
    std::ranges::stable_sort(all, {}, &Candidate::extra);
    return all;
  }

  Plan with(const Candidate& c) const {
    Plan plan = plan_;
    plan[c.key] = c.option;
    return plan;
  }

  bool is_over() { return --left_ < 0 || ++vain_ > in_vain_; }

  bool keep(Plan plan, Tried tried) {
    if (tried.cost.seconds >= best_.cost.seconds * kLess) return false;
    if (tried.cost.bytes > most_bytes_) return false;
    vain_ = 0;
    plan_ = std::move(plan), best_ = std::move(tried);
    return true;
  }

  bool improve_one() {
    bool better = false;
    for (const Candidate& c : candidates(best_)) {
      if (is_over()) return false;
      Plan plan = with(c);
      Tried tried = attempt_(plan);
      better = keep(std::move(plan), std::move(tried)) || better;
    }
    return better;
  }

  bool improve_two() {
    for (const Candidate& c : candidates(best_)) {
      if (is_over()) return false;
      const Plan one = with(c);
      const Tried first = attempt_(one);
      // Skips a first choice that costs more than the second could make good.
      if (first.cost.seconds - best_.cost.seconds > best_.cost.movable_seconds) continue;
      for (const Candidate& d : candidates(first, c.at + 1, kNext)) {
        if (is_over()) return false;
        Plan two = one;
        two[d.key] = d.option;
        Tried tried = attempt_(two);
        if (keep(std::move(two), std::move(tried))) return true;
      }
    }
    return false;
  }

  Plan plan_;
  Tried best_;
  double most_bytes_;
  const TryPlan& attempt_;
  int left_, in_vain_, vain_ = 0;
};

}  // namespace

bool worth_planning(const Tried& alone) {
  const auto open = [](const Decisions::Asked& a) { return a.offers.size() > 1; };
  return alone.cost.movable_seconds > (1 - kWorthIt) * alone.cost.seconds &&
         std::ranges::any_of(alone.asked, open);
}

Plan plan_whole(const Tried& alone, const TryPlan& attempt, const Budget& budget) {
  return Descent(alone, attempt, budget).run(alone.cost.seconds);
}

}  // namespace tinyshard
