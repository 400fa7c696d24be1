// Two lists of timed cases beside each other: ours with limits, and those of a peer.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace tinyshard::sweep {

// A line of a list, which compare() reads again:
//   7 softmax 812.50 640.00 0.788 bf16 1024 768 : 1      ID KIND US LIMIT SHARE, then the case
//   7 softmax failed: softmax: axis 4 is out of range
struct Timed {
  int64_t id = 0;
  std::string kind;
  std::optional<double> us;
  double limit = 0;  // in us; peers have none
  std::string text;  // the case, or why it failed
};
std::string text_of(const Timed& timed);

// Prints how near to limits ours are and how they compare with the peer's, then the `worst` ones.
void compare(const std::string& ours, const std::string& theirs, size_t worst);

}  // namespace tinyshard::sweep
