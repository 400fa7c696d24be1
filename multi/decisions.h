// Which way each op runs that could run in several: strategies ask, and say what each way costs
// there; the cheapest is taken, or what a plan says. What was asked is remembered for the search over
// the whole graph (multi/planner.h).
//
//   Decisions::Choice choice = decisions.ask(question);     of a hash of all that the options follow from
//   for (const Way& way : ways) {                           always in the same order
//     if (choice.offer(seconds(way))) best = way;
//   }
//
// The costs of a question's options may follow from more than the question says: a value that was
// moved before moves for nothing. costs() takes a hash of that as well, and keeps the seconds over
// all attempts at the graph:
//
//   Decisions::Costs costs = decisions.costs(question and what else they follow from);
//   for (const Way& way : ways) {
//     if (choice.offer(costs.next([&] { return seconds(way); }))) best = way;
//   }
//
// Ops that are alike, as the layers of a model, ask the same question. A plan may answer all of them,
// or one occurrence of the question.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/options.h"

namespace tinyshard {

// Number of the option to take by question, or by occurrence of one, which goes first.
using Plan = std::unordered_map<uint64_t, size_t>;
uint64_t occurrence_of(uint64_t question, size_t occurrence);

class Decisions {
 public:
  struct Asked {
    uint64_t question;
    size_t occurrence;           // how often it was asked before
    std::vector<double> offers;  // seconds, as far as the op itself knows
    size_t taken = 0;
  };

  class Choice {
   public:
    // True if this is the option to take so far; a later one may take its place.
    bool offer(double seconds);

   private:
    friend class Decisions;
    Choice(Decisions& of, const size_t* planned)
        : of_(&of), number_(of.asked_.size() - 1), planned_(planned) {}
    Decisions* of_;
    size_t number_;
    const size_t* planned_;  // the option to take; null: the cheapest
    double least_ = std::numeric_limits<double>::infinity();
  };

  // Starts another attempt at the graph.
  void begin(Plan plan);
  Choice ask(uint64_t question);
  const std::vector<Asked>& asked() const { return asked_; }

  // The seconds of options in their order: those of an earlier attempt, or found now.
  class Costs {
   public:
    explicit Costs(std::vector<double>& known) : known_(&known) {}
    template <class Seconds>
    double next(Seconds&& seconds) {
      const size_t option = option_++;
      if (option == known_->size())
        known_->push_back(seconds());
      else if (options().check.costs)
        check(option, seconds());
      return (*known_)[option];
    }

   private:
    void check(size_t option, double now) const;  // InternalError where it is not what is known
    std::vector<double>* known_;
    size_t option_ = 0;
  };
  // Returns the costs remembered by a hash of all that they follow from.
  Costs costs(uint64_t of) { return Costs(costs_[of]); }

 private:
  Plan plan_;
  std::vector<Asked> asked_;
  std::unordered_map<uint64_t, size_t> times_;
  std::unordered_map<uint64_t, std::vector<double>> costs_;
};

}  // namespace tinyshard
