// Texts of errors, for tests of bad input.
#pragma once
#include <string>

namespace tinyshard::test {

// The text of the E that a statement throws, or "" when nothing was thrown.
template <class E, class F>
std::string message_of(F&& statement) {
  try {
    statement();
  } catch (const E& error) {
    return error.what();
  }
  return {};
}

}  // namespace tinyshard::test
