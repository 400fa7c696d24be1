// Records what the engine does in a file for `tinyshard view`, which shows it as a page: plans with
// shardings and movements, runs with their items, waits for other ranks, memory, compilations. A line
// is one JSON object; the file of a program that was killed has all lines up to then. docs/view.md
// describes the page.
//
//   ViewFile view("run.tsview");
//   for (...) step(batch);
//
// A plan is told once, and of its runs the first three, each 2^n-th and those that are the slowest so far
// with their items; of all runs each item's number, sum and longest time. So a file levels off.
#pragma once
#include <memory>
#include <string>

namespace tinyshard {

struct ViewOptions {
  int rank = 0, ranks = 1;  // the graphs and kernels of equal programs are told by rank 0 alone
  bool code = false;        // LLVM IR and assembly, too: kernels are compiled again for it
};

class ViewFile {
 public:
  // UserError where the file cannot be written.
  explicit ViewFile(const std::string& path, const ViewOptions& options = {});
  ~ViewFile();
  // Ends the file. What happens later is not in it.
  void finish() noexcept;
  ViewFile(const ViewFile&) = delete;
  ViewFile& operator=(const ViewFile&) = delete;

 private:
  class Writer;
  std::unique_ptr<Writer> writer_;
};

// VIZ=FILE, or 1 for a file named after the program: the same for all of a program, from here to its
// exit. Each of several ranks writes its own: run.tsview becomes run.rank2.tsview. UserError where the
// file cannot be written.
void follow_view_option(int rank, int ranks);

}  // namespace tinyshard
