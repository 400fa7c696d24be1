// How each op is written with the public interface: the call itself, and its text.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <tinyshard/tinyshard.h>
#include <vector>

#include "tests/fuzz/program.h"

namespace fuzz {

using Tensors = std::vector<tinyshard::Tensor>;

struct OpCall {
  std::function<tinyshard::Tensor(const Step&, const Tensors&)> run;
  // $0 an operand or the number in its place, ?0 an operand or {}, #0 an integer, #b0 a bool, #{1}
  // the integers from there on in braces, #views the links of views.h, %0 a real, @ the text.
  std::string text;
  // Where the second operand stands on the left: of operators, as Step::n[1] says.
  std::string swapped = {};
};

const std::map<std::string, OpCall>& calls();

}  // namespace fuzz
