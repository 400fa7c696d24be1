// Gradients against differences of the interpreter, which computes without rounding. Where a
// function has a kink there is no slope to compare with: differences that are taken on both sides
// of it say something between the two.
//
//   |x| at 0.3:   after 1, before 1         a slope: 1
//   |x| at 0:     after 1, before -1        a kink; differences say 0, a gradient -1, 0 or 1
//   sort of {2, 2, 5} by its first element: what it adds to becomes the second, what it subtracts
//                 from stays the first; a gradient may take either, or the middle one of three
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/interpreter.h"
#include "tests/fuzz/worker.h"

namespace fuzz {

// Tells what is wrong with the gradients of the program's targets, which follow its roots in
// `results`; nothing where some elements of each agree with differences. Throws Invalid where the
// program has no slopes at all.
struct WrongGradient {
  std::string kind;  // "type" or "gradient"
  std::string text;
};
std::optional<WrongGradient> wrong_gradient(const Program& program,
                                            const std::vector<Result>& results);

}  // namespace fuzz
