// Chains of views in the arguments of a step: five integers for each link, a kind and up to four
// arguments, from the first argument of the step on.
//
//   0 1 -2 0 0   3 0 1 0 0        [{Slice(), -2}].transpose(0, 1)
//   6 0 0 0 0                     [{v}], of the variable that is the third operand
#pragma once
#include <array>
#include <span>
#include <string>
#include <vector>

#include "tests/fuzz/program.h"

namespace fuzz {

enum class Link : uint8_t { Number, Slice, Flip, Transpose, Flatten, Unsqueeze, Variable };
inline constexpr int kLinks = 7;
inline constexpr size_t kLinkSize = 5;

// The rest of a tensor: a shape, and which of its elements lie there.
struct Part {
  Shape shape;
  std::vector<size_t> at;
};
Part whole(const Shape& shape);
// Invalid for a link that does not fit.
Part next(const Part& part, std::span<const int64_t> link);
Part last(const Shape& shape, const Step& step);

// The step with numbers in place of its variable.
Step with_number(Step step, int64_t variable);

// As C++ says it.
std::string views_text(const Step& step, const std::string& variable);

}  // namespace fuzz
