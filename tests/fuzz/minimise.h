// Makes a failing program small while it fails in the same way.
#pragma once
#include "tests/fuzz/compare.h"

namespace fuzz {

struct Minimal {
  Program program;
  Finding finding;
};
Minimal minimise(const Program& program, const Finding& finding, Workers& workers, double seconds);

// The program without steps and leaves that nothing reads.
Program pruned(const Program& program);

}  // namespace fuzz
