#include "tests/golden/runner.h"

#include <cstdlib>
#include <exception>
#include <iostream>

namespace tinyshard::golden {

void Tally::begin(std::string_view name) const {
  if (verbose_) std::cout << name << std::endl;  // NOLINT(performance-avoid-endl): before a crash
}

void Tally::end(std::string_view name, bool passed, std::string_view message) {
  ++(passed ? passed_ : failed_);
  if (!passed) std::cout << "FAILED " << name << ": " << message << '\n';
}

int Tally::finish() const {
  std::cout << passed_ << " passed, " << failed_ << " failed" << std::endl;
  return failed_ == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int run_main(std::string_view program, int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << program << ": " << error.what() << '\n';
    return 2;
  }
}

}  // namespace tinyshard::golden
