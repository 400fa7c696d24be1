// When gathers of parameters on use may run: as far ahead of their readers as asked, no further.
//
// Gathers come in turns (core/passes/regather.h). A turn begins when the first task runs that reads
// what it gathered, or a copy of that: such a copy, in another order or type, may itself run as
// soon as the gather is done, and says nothing of where the work is. With a prefetch of 1 the
// gathers of a turn may run once the turn before has begun:
//
//   readers   | h0         | h1         | h2         |
//   gathers    h0   h1          h2           h3
//
// So they travel beside the work of one turn, and two blocks are whole at a time: what was gathered
// for h0 is free when h1 is read. Where nothing else can run, the next turn's gathers may: with a
// prefetch of 0 that is the only way.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/schedule/dependencies.h"

namespace tinyshard {

// Returns for each task the turn for which it only prepares what a gather sends, a parameter in a
// narrower type; 0: it does something else. The first turn counts where there are several.
std::vector<int64_t> prepared_turns(std::span<const Task> tasks);

// Follows one order while it is being made.
class Turns {
 public:
  Turns(std::span<const Task> tasks, const Dependencies& dependencies);

  // Tells whether a task gathers for a turn that is not open, or prepares what such a task sends.
  bool is_closed(int task) const {
    return turn_[size_t(task)] >= 0 && !turns_[size_t(turn_[size_t(task)])].open;
  }
  // Such a task that could run otherwise; it is given back when its turn opens.
  void keep(int task) { turns_[size_t(turn_[size_t(task)])].kept.push_back(task); }

  // Returns the kept tasks of the turns that open because this task runs.
  std::vector<int> opened_by(int task);
  bool any_closed() const { return next_ < turns_.size(); }
  // Opens the next turn, and returns its kept tasks.
  std::vector<int> open_next();

 private:
  struct Turn {
    size_t prefetch = 0;
    bool open = false, begun = false;
    std::vector<int> kept;
  };
  void open(size_t turn, std::vector<int>& kept);
  void find_copies();

  std::span<const Task> tasks_;
  const Dependencies& dependencies_;
  std::vector<Turn> turns_;  // in their order
  std::vector<int> turn_;    // of each task; -1: none
  std::vector<int> copied_;  // the turn of which a task copies what it gathered; -1: none
  size_t next_ = 0;          // all before it are open
};

}  // namespace tinyshard
