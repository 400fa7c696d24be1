// Decides which runs of a plan are told with their items, and counts all of them.
//
// Threads: the owner's lock is held.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/observer.h"

namespace tinyshard {

class ViewRuns {
 public:
  // Counts a run and its items, and returns its line; an empty one where it is only counted. The file
  // began at `start`.
  std::string add(const ObservedEvent& run, std::chrono::steady_clock::time_point start);
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
    bool measured = false;  // items are those of a measured run, and of none before it
    double longest = 0;
    std::vector<ItemSum> items;
  };
  bool is_told(Counted& of, double took) const;
  std::string parts_text(double begun) const;
  double waited_within(size_t item) const;  // microseconds

  std::vector<Part> parts_;  // of the run that is added
  std::unordered_map<uint64_t, Counted> counted_;
  size_t told_bytes_ = 0;
  int64_t told_runs_ = 0;
};

}  // namespace tinyshard
