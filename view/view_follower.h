// Follows the files of a running job: gives their page, and then the lines that came since.
//
//   ViewFollower files({"run.rank0.tsview", "run.rank1.tsview"});
//   files.page();               // the page up to here; it knows how far each file was read
//   files.more(positions);      // JSON of whole lines behind these positions
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tinyshard {

// For one thread.
class ViewFollower {
 public:
  // Files, or folders of them, in which more files may come.
  explicit ViewFollower(std::vector<std::string> paths);
  // UserError naming a path that cannot be read.
  std::string page();
  // A position for each file in the order of the page; files that are new begin at 0. A file that has
  // become shorter was begun anew: all of its lines are given, and said to be so.
  std::string more(std::span<const int64_t> positions);

 private:
  void look_for_files();
  std::vector<std::string> paths_, files_;
};

}  // namespace tinyshard
