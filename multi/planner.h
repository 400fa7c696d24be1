// A plan for the whole graph. Each op alone takes the way that costs least there (decisions.h), which
// may cost more later; the planner looks for choices with which the graph as a whole takes less.
//
//   x f32[4096, 1024] on all of 8 devices, A [1024, 16] divided by columns, B [16, 1024] by rows
//   alone      x @ A by columns moves nothing, (x @ A) @ B by its inner dim neither; but each device
//              has a term of the result then, and the sum of these sends 28 MiB
//   together   A and B are gathered, 112 KiB
//
// The search is a descent: of the choices that the best plan so far makes, one by one, it tries the
// other options, the locally cheapest first, lets all ops after it choose anew, and keeps what makes
// the whole cheaper; where no single choice does, it tries an option together with those of the next
// choices after it. An option is not tried whose cost is more than what all movement costs that could
// be spared, so a program that moves nothing but gradients is never searched. Attempts are counted,
// not timed: all ranks find the same plan.
#pragma once
#include <functional>
#include <vector>

#include "multi/decisions.h"
#include "multi/estimate.h"

namespace tinyshard {

// The graph by a plan: what it takes, and what was asked on the way.
struct Tried {
  Estimate cost;
  std::vector<Decisions::Asked> asked;
};
using TryPlan = std::function<Tried(const Plan&)>;

// Limits on attempts: how many in all, and how many one after the other that come to nothing.
struct Budget {
  int attempts = 1000, in_vain = 1000;
};

// A plan that takes at least 2 % less than `alone`, which is that of the empty plan; empty where none
// was found.
Plan plan_whole(const Tried& alone, const TryPlan& attempt, const Budget& budget);

// Returns whether a plan could gain enough to be kept.
bool worth_planning(const Tried& alone);

}  // namespace tinyshard
