// Runs one recorded case and says how it went; golden_test and golden_runner share it.
#pragma once
#include <string>

#include "tests/golden/golden_case.h"

namespace tinyshard::golden {

struct Outcome {
  bool passed = false;
  std::string message;  // of a failure; or the error that was expected
};

// Never throws: an unknown op, another value, an error nobody expected or none where one was
// expected is a failure with its reason.
Outcome run_case(const json& description, const Recorded& recorded, const Where& where);

}  // namespace tinyshard::golden
