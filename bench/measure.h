// Common parts of the benchmarks: how runs are timed, and a row printed, which is a JSON object
// a line for the scripts beside this file:
//   {"case": name, "us": median, "p10": .., "p90": .., "n": runs, "steps": in one run,
//    "rate": .., "unit": ".."}
//   {"case": name, "missing": why}
#pragma once
#include <algorithm>
#include <chrono>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "examples/run_main.h"
#include "report/jsonl.h"

namespace tinyshard::bench {

using Clock = std::chrono::steady_clock;
inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// `work` is what one run does, in `unit` times a second: gigabytes for "GB/s". `steps` is how often
// it does what a reader wants the time of: a run may be several steps in a row.
inline void print_row(std::string_view name, std::vector<double> us, double work = 0,
                      std::string_view unit = "", int steps = 1) {
  std::ranges::sort(us);
  auto at = [&](size_t tenths) { return us[(us.size() - 1) * tenths / 10]; };
  std::cout << fmt::format(R"({{"case": {}, "us": {:.6g}, "p10": {:.6g}, "p90": {:.6g}, "n": {}, )"
                           R"("steps": {}, "rate": {:.6g}, "unit": {}}})",
                           JsonValue(name).text(), at(5), at(1), at(9), us.size(), steps,
                           work > 0 ? work / at(5) * 1e6 : 0, JsonValue(unit).text())
            << std::endl;
}
inline void print_missing(std::string_view name, std::string_view why) {
  std::cout << fmt::format(R"({{"case": {}, "missing": {}}})", JsonValue(name).text(),
                           JsonValue(why).text())
            << std::endl;
}

using training::run_main;

}  // namespace tinyshard::bench
