// A question is known by a hash, its occurrence by a hash of that and a number. Question 7 is asked twice,
// both times with options of 3, 2 and 2 seconds, under the plan {occurrence_of(7, 1): 0}:
//
//   occurrence 0    yes, yes, no      not planned: the cheapest, of equal ones the first, is option 1
//   occurrence 1    yes, no, no       planned: option 0
//
// A caller cannot know whether a planned option is still to come, so those before it are offers
// like others: the last yes counts.
#include "multi/decisions.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"

namespace tinyshard {

uint64_t occurrence_of(uint64_t question, size_t occurrence) {
  return combine(question, occurrence + 1);
}

void Decisions::begin(Plan plan) {
  plan_ = std::move(plan);
  asked_.clear();
  times_.clear();
}

Decisions::Choice Decisions::ask(uint64_t question) {
  const size_t occurrence = times_[question]++;
  asked_.push_back({question, occurrence, {}});
  const size_t* planned = nullptr;
  if (!plan_.empty()) {
    auto found = plan_.find(occurrence_of(question, occurrence));
    if (found == plan_.end()) found = plan_.find(question);
    if (found != plan_.end()) planned = &found->second;
  }
  return {*this, planned};
}

void Decisions::Costs::check(size_t option, double now) const {
  const double then = (*known_)[option];
  // Sums in another order differ in their last bits.
  if (std::abs(now - then) <= 1e-9 * std::max(std::abs(now), std::abs(then))) return;
  throw InternalError(fmt::format(
      "option {} of an op over devices costs {} s, but {} s are remembered of one whose "
      "costs follow from the same (TS_CHECK=costs)",
      option, now, then));
}

bool Decisions::Choice::offer(double seconds) {
  // Sums in another order differ in their last bits: equal costs are equal, and the first one wins.
  constexpr double kLess = 1 - 1e-9;
  Asked& asked = of_->asked_[number_];
  const size_t number = asked.offers.size();
  asked.offers.push_back(seconds);
  const bool is_planned = planned_ && number == *planned_;
  const bool past_planned = planned_ && number > *planned_;
  if (!is_planned && (past_planned || seconds >= least_ * kLess)) return false;
  least_ = seconds;
  asked.taken = number;
  return true;
}

}  // namespace tinyshard
