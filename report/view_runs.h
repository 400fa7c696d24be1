// Decides which runs of a plan are told with their items, and counts all of them.
//
// Threads: the owner's lock is held.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/observer.h"

namespace tinyshard {

class ViewRuns {
 public:
  // Adds an event of a run that has ended; `us` is when it began on the file's clock.
  void add(const ObservedEvent& event, double us);
  // Ends the run: its line, or nothing where it is only counted.
  std::string end_run(const ObservedEvent& event, double us);
  // The line of what is counted for a plan so far.
  std::string sum_of(uint64_t plan) const;
  std::vector<uint64_t> plans() const;

 private:
  struct Part {  // of a run: an item, or a wait for it
    int item;
    bool waits;
    double begun, took;  // microseconds
  };
  struct ItemSum {
    int64_t count = 0;
    double sum = 0, longest = 0, waited = 0;  // the first two without waits
  };
  struct Counted {
    int64_t runs = 0, detailed_slow = 0;
    double longest = 0;
    std::vector<ItemSum> items;
  };
  bool is_told(Counted& of, double took) const;
  std::string parts_text(double begun) const;
  double waited_within(size_t item) const;  // microseconds

  std::vector<Part> parts_;  // of the run under way
  std::unordered_map<uint64_t, Counted> counted_;
  size_t told_bytes_ = 0;
  int64_t told_runs_ = 0;
};

}  // namespace tinyshard
