#include "launch/failure.h"

#include <chrono>
#include <cstdio>
#include <thread>

#include "core/base/error.h"
#include "launch/environment.h"

namespace tinyshard {

int tell_failure(std::string_view program, const std::exception& error) noexcept {
  int rank = 0;
  try {
    rank = read_launch_environment().rank;
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // That the environment makes no sense is the error to tell, then.
  }
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  std::fprintf(stderr, "%.*s: %s\n", int(program.size()), program.data(), error.what());
  return 1;
}

}  // namespace tinyshard
