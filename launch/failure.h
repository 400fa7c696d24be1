// How a program of several ranks ends when it cannot go on.
#pragma once
#include <exception>
#include <string_view>

namespace tinyshard {

// Prints "program: what the error says" to stderr and returns 1, the exit status. All ranks meet
// the same mistake, and the first to end makes the launcher end the others (mpirun after one
// second). So rank 0 prints at once, and the others give it half a second: where rank 0 has ended
// by then, it told the same, and they stay silent until the launcher ends them. A CommError that
// blames rank 0 is printed at once: nobody else will tell.
int tell_failure(std::string_view program, const std::exception& error) noexcept;

}  // namespace tinyshard
