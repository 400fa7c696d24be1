// Runs a program in plain loops over doubles and 64-bit integers: slow, literal, and sharing no
// code with the library. Each element comes with a bound of its error.
#pragma once
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/fuzz/program.h"

namespace fuzz {

using Operands = std::vector<const Array*>;
using Rule = std::function<Array(const Step&, const Operands&)>;

// By name of the op. Throws Invalid for operands that the op does not take.
const std::map<std::string, Rule>& rules();
Array interpret(const Step& step, const Operands& operands);

void add_elementwise_rules(std::map<std::string, Rule>& rules);
void add_movement_rules(std::map<std::string, Rule>& rules);
void add_reduction_rules(std::map<std::string, Rule>& rules);
void add_product_rules(std::map<std::string, Rule>& rules);
void add_indexing_rules(std::map<std::string, Rule>& rules);
void add_window_rules(std::map<std::string, Rule>& rules);
void add_layer_rules(std::map<std::string, Rule>& rules);
void add_linalg_rules(std::map<std::string, Rule>& rules);
void add_identity_rules(std::map<std::string, Rule>& rules);
void add_view_rules(std::map<std::string, Rule>& rules);
void add_float8_rules(std::map<std::string, Rule>& rules);

// A change of one element of one value, for differences.
struct Nudge {
  int value = -1;
  size_t element = 0;
  double by = 0;
};

struct Run {
  std::vector<std::vector<Array>> roots;  // per call
  std::vector<Array> values;              // of the last call, as steps left them
};
// `held`: what the operands of detach shall give instead of their own values.
Run interpret(const Program& program, const Nudge& nudge = {},
              const std::vector<Array>* held = nullptr);

// The axis of a tensor of this rank that `axis` names, counted from the end where negative.
int64_t resolved(int64_t axis, int64_t rank);
// Calls f(place, linear index) for each element, row-major.
void each_place(const Shape& shape, const std::function<void(const Shape&, size_t)>& f);
size_t linear(const Shape& place, const Shape& shape);
// x of another shape by broadcasting.
Array expanded(const Array& x, const Shape& shape);
Shape broadcast(const Shape& a, const Shape& b);
// x converted to the type as cast() does it.
Array converted(const Array& x, Type type);

}  // namespace fuzz
