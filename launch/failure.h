// How a program of several ranks ends when it cannot go on.
#pragma once
#include <exception>
#include <string_view>

namespace tinyshard {

// Prints "program: what the error says" to stderr and returns 1, the exit status. All ranks meet
// the same mistake, and the first to end makes the launcher end the others: every rank but the
// first waits two seconds, so that the mistake is told once.
int tell_failure(std::string_view program, const std::exception& error) noexcept;

}  // namespace tinyshard
