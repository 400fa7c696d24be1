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
  // $0 an operand, #0 an integer, #{1} the integers from there on in braces, %0 a real, @ the text.
  std::string text;
};

const std::map<std::string, OpCall>& calls();

}  // namespace fuzz
