// A random program as data: leaves, steps that compute from numbered values, roots that are read.
// The same program is run by the library in several ways (execute.h), by the interpreter
// (interpreter.h), printed as C++ (print.h) and taken apart (minimise.h).
//
//   leaf f32 4,3 seed=7 style=uniform role=arg place=0,-1
//   sin in=0
//   sum in=1 n=0,1
//   roots 2
//
// Leaf 0 is value 0; step k makes the value with the next number. A step that writes (assign,
// setitem) makes its target's new value and also is one: both numbers then mean the target.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/array.h"

namespace fuzz {

// Where a leaf comes from. Arguments have other values at each call of the program, and may be fed
// back; states are made once and live on; constants are made once and never written; variables
// are whole numbers of shape []. Parameters are constants whose gradient backward() leaves in them.
enum class Role : uint8_t { Constant, Argument, State, Variable, Parameter };
// Uniform: floats in [-2, 2), small integers. Whole: floats that are small integers, so that there
// are ties. Wild: every bit pattern, NaN and infinities. Index: integers below `limit`.
// Same: all elements are equal, written as Tensor::full. Range: Tensor::arange reshaped.
enum class Style : uint8_t { Uniform, Whole, Wild, Index, Same, Range, Given };

struct Leaf {
  Type type = Type::F32;
  Shape shape;
  uint64_t seed = 0;
  Style style = Style::Uniform;
  int64_t limit = 0;  // of indices and variables
  Role role = Role::Constant;
  std::vector<int64_t> placement;  // per mesh axis the sharded dim, -1 replicated; empty: no mesh
  std::vector<std::byte> given;    // the elements where the style is Given
};

struct Step {
  std::string op;
  std::vector<int> in;
  std::vector<int64_t> n;
  std::vector<double> d;
  std::string text;
};

// Root `root` of a call is argument `leaf` of the next one.
struct Feedback {
  int root, leaf;
};

struct Program {
  std::vector<Leaf> leaves;
  std::vector<Step> steps;
  std::vector<int> roots;
  std::vector<int> targets;   // of gradients of a weighted sum of the roots
  std::vector<int64_t> mesh;  // sizes of its axes; empty: one device
  std::vector<Feedback> feedback;
  int calls = 1;

  int values() const { return int(leaves.size() + steps.size()); }
  bool is_leaf(int value) const { return value < int(leaves.size()); }
  const Step& step(int value) const { return steps[size_t(value) - leaves.size()]; }
};

std::string to_text(const Program& program);
Program parse(const std::string& text);

// The elements of a leaf at a call.
Array elements(const Leaf& leaf, int call);
// The number of a leaf whose style is Same, which may have no elements.
Element same_element(const Leaf& leaf);
// Factors that the gradient's loss gives to the elements of root k.
Array loss_weights(Type type, const Shape& shape, int k);

// Steps that write over the value of their first operand.
bool writes(const Step& step);
// Steps that make no value of their own: the number means their first operand.
bool is_statement(const Step& step);
// Steps that say where values lie, and mean their first operand where nothing is placed.
bool is_placement(const Step& step);
// Steps whose call reads values on the host, which a captured step cannot.
bool reads_values(const Step& step);
// True if the value fed back is a leaf's storage, which a statement of the next call may write.
bool fed_as_copy(const Program& program, const Feedback& feedback);

}  // namespace fuzz
