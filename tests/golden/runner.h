// Shared by the two runners of recorded cases: how they count, print and end.
#pragma once
#include <string>
#include <string_view>

namespace tinyshard::golden {

// Prints the cases that fail, and at the end "N passed, N failed".
class Tally {
 public:
  // `verbose`: prints each name before its case runs, so that a crash shows which it was.
  explicit Tally(bool verbose) : verbose_(verbose) {}
  void begin(std::string_view name) const;
  void end(std::string_view name, bool passed, std::string_view message);
  int passed() const { return passed_; }
  int failed() const { return failed_; }
  int finish() const;  // the exit status: 0 where all passed, 1 otherwise

 private:
  bool verbose_;
  int passed_ = 0, failed_ = 0;
};

// The main of a runner: 2 where `run` throws, with the reason on standard error.
int run_main(std::string_view program, int (*run)(int, char**), int argc, char** argv);

}  // namespace tinyshard::golden
