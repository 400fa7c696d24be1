// Shared by the programs that play a rank of a job (job.h reads their lines).
#pragma once
#include <chrono>
#include <cstdlib>
#include <string>
#include <unistd.h>

#include "core/base/error.h"

namespace tinyshard::test {

using Clock = std::chrono::steady_clock;

inline double milliseconds_since(Clock::time_point begun) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begun).count();
}

// Writes a line at once: lines of several ranks do not mix.
inline void print_line(const std::string& line) {
  const std::string text = line + "\n";
  if (write(STDOUT_FILENO, text.data(), text.size()) < 0) std::_Exit(9);
}

// "<rank> report <peer> <steady clock, ns> <elapsed ms of the call> <again ms> <error text>". The
// clock is the same in all processes of the host.
inline void print_report(int rank, const CommError& error, double elapsed_ms, Clock::time_point at,
                         double again_ms) {
  print_line(std::to_string(rank) + " report " + std::to_string(error.info().peer) + " " +
             std::to_string(at.time_since_epoch().count()) + " " + std::to_string(elapsed_ms) +
             " " + std::to_string(again_ms) + " " + error.what());
}

}  // namespace tinyshard::test
