// Where the marks of a chart's axis stand, and what they say.
#pragma once
#include <string>
#include <vector>

namespace tinyshard {

// Ends of an axis and the places of its marks: steps of 1, 2 or 5 times a power of ten, about
// `count` of them. With `log`, marks are at powers of ten, or at 1, 2 and 5 of them when there are
// few.
struct Axis {
  double low = 0, high = 1;
  std::vector<double> ticks;
  std::vector<std::string> labels;
};
Axis nice_axis(double low, double high, int count, bool log);

}  // namespace tinyshard
