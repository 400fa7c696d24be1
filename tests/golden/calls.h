// Which call of the library a recorded op is. The ops are those of the Tensor API's documents; a
// few of them are no call of their own here and are said with others (`const_like` is full_like).
#pragma once
#include <functional>
#include <map>
#include <string>

#include "tests/golden/golden_case.h"

namespace tinyshard::golden {

using Run = std::function<Tensors(const Case&)>;

// By the op's name.
const std::map<std::string, Run>& calls();

// Tells whether the op gives a plain value rather than tensors, and returns that value.
bool gives_value(const std::string& op);
json value_of(const Case& c);

}  // namespace tinyshard::golden
