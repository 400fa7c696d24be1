// What the benchmarks have in common: how runs are timed, and a row printed, which is a JSON object
// a line for the scripts beside this file:
//   {"case": name, "us": median, "p10": .., "p90": .., "n": runs, "rate": .., "unit": ".."}
//   {"case": name, "missing": why}
#pragma once
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "launch/failure.h"
#include "report/jsonl.h"

namespace tinyshard::bench {

using Clock = std::chrono::steady_clock;
inline double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// `work` is what one run does, in `unit` times a second: gigabytes for "GB/s".
inline void print_row(std::string_view name, std::vector<double> us, double work = 0,
                      std::string_view unit = "") {
  std::ranges::sort(us);
  auto at = [&](size_t tenths) { return us[(us.size() - 1) * tenths / 10]; };
  std::cout << fmt::format(R"({{"case": {}, "us": {:.6g}, "p10": {:.6g}, "p90": {:.6g}, "n": {}, )"
                           R"("rate": {:.6g}, "unit": {}}})",
                           JsonValue(name).text(), at(5), at(1), at(9), us.size(),
                           work > 0 ? work / at(5) * 1e6 : 0, JsonValue(unit).text())
            << std::endl;
}
inline void print_missing(std::string_view name, std::string_view why) {
  std::cout << fmt::format(R"({{"case": {}, "missing": {}}})", JsonValue(name).text(),
                           JsonValue(why).text())
            << std::endl;
}

// Exit status of a benchmark: 1 after a failure that is told in one line, 2 after a command line
// that makes no sense.
inline int run_main(const char* name, CLI::App& app, int argc, char** argv,
                    const std::function<void()>& run) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  try {
    run();
    return 0;
  } catch (const std::exception& e) {
    return tell_failure(name, e);
  }
}

}  // namespace tinyshard::bench
