// Compares what must agree: the library's results with the interpreter's bounds, each way of
// running a program with every other, gradients with differences.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/worker.h"

namespace fuzz {

// A comparison: how a program is run, and against what it is held.
struct Check {
  std::string mode;  // "values", "steps", "captured", "gradients", "switches", "placements"
  Way way = Way::Lazy;
  bool placed = false;
  Environment environment;
  std::string to_string() const;
};

struct Finding {
  Check check;
  std::string kind;  // "value", "bits", "type", "gradient", "crash", "hang", "UserError", ...
  std::string text;  // what came and what should have come
  int root = -1;     // of Program::roots, where it is one
  std::string signature() const;  // equal for what is probably the same
};

// The comparisons that a program is worth, some of the switches chosen by `seed`. An empty mode
// means all.
std::vector<Check> checks_for(const Program& program, const std::string& mode, uint64_t seed);

// Holds what all comparisons of a program share: what is expected, and its lazy results.
class Judge {
 public:
  Judge(const Program& program, Workers& workers) : program_(program), workers_(workers) {}
  // Throws Invalid where the program says nothing.
  std::optional<Finding> operator()(const Check& check);

 private:
  const Run& expected(bool placed);
  const Reply& lazy(bool placed);

  const Program& program_;
  Workers& workers_;
  std::optional<Run> expected_[2];
  std::optional<Reply> lazy_[2];  // by whether it is placed
};

// Roots whose bits do not depend on how sums are ordered.
std::vector<bool> exact_roots(const Program& program);

}  // namespace fuzz
