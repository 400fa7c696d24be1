// A program as C++ that compiles with the public header and prints what it gives.
#pragma once
#include <string>

#include "tests/fuzz/compare.h"

namespace fuzz {

std::string to_cpp(const Program& program, const Finding& finding);

}  // namespace fuzz
