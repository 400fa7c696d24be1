// A recorded case of shared/golden (its README explains the format): inputs, arguments, expected
// results, and how they are compared. No test framework: what differs is a Mismatch.
#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/tensor/tensor.h"
#include "io/safetensors.h"
#include "tests/golden/where.h"

namespace tinyshard::golden {

using nlohmann::json;
using Tensors = std::vector<Tensor>;

// A result that is not the recorded one.
class Mismatch : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A call that C++ cannot express, so that no program with this mistake compiles: a name that no
// enum has, or a text where the parameter is a number. Right where a case expects an error.
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Where the recorded data lies: $TINYSHARD_TEST_DATA/golden, or shared/golden beside the
// repository.
std::string folder();

// manifest.json and tensors.safetensors of a folder.
class Recorded {
 public:
  explicit Recorded(const std::filesystem::path& folder);

  const std::vector<json>& cases() const { return cases_; }
  const io::TensorEntry& entry(const json& key) const;
  Tensor tensor(const json& key) const;  // on the default device; no tensor for null

 private:
  std::vector<json> cases_;
  std::optional<io::SafetensorsFile> file_;
};

// Elements as numbers, converted here and not by the library.
std::vector<double> numbers(std::span<const std::byte> bytes, DType dtype);
inline std::vector<double> numbers(const Tensor& tensor) {
  return numbers(tensor.data(), tensor.dtype());
}

class Case {
 public:
  // The inputs are placed as `where` says.
  Case(const json& description, const Recorded& recorded, const Where& where);
  // A call that is part of a larger one (expression.h); it has nothing to compare with.
  Case(std::string op, Tensors inputs, json arguments);

  const std::string& op() const { return op_; }
  const json& all() const { return json_; }
  const Where& where() const { return where_; }

  // --- inputs and arguments ---
  size_t inputs() const { return inputs_.size(); }
  bool has_input(size_t i) const { return i < inputs_.size() && inputs_[i].defined(); }
  const Tensor& in(size_t i = 0) const;  // after the view operations of `pre` for input 0
  Tensor optional_in(size_t i) const { return has_input(i) ? in(i) : Tensor(); }
  Tensors list(size_t from = 0) const;
  // Input i, or the number under `name`.
  Operand operand(size_t i, const char* name) const;
  // An input takes the place of the one that was given; gradients are taken for it.
  void replace_input(size_t i, const Tensor& tensor) { inputs_.at(i) = tensor; }

  bool has(const char* name) const {
    asked_.insert(name);
    return arguments_.contains(name) && !arguments_.at(name).is_null();
  }
  const json& argument(const char* name) const;
  // Arguments that mean nothing to this library, such as `fused`: nobody needs to ask for them.
  void ignore(const char* name) const { asked_.insert(name); }
  // The recorded arguments that nobody has asked for: a call that leaves them out means something
  // else.
  std::vector<std::string> unread() const;
  int64_t integer(const char* name, int64_t otherwise) const;
  int64_t integer(const char* name) const;
  double real(const char* name, double otherwise) const;
  bool flag(const char* name, bool otherwise = false) const;
  std::string text(const char* name, const char* otherwise = "") const;
  Scalar scalar(const char* name) const;
  Ints ints(const char* name, const Ints& otherwise) const;
  Ints ints(const char* name) const;
  Ints shape(const char* name) const;  // null keeps the size that input 0 has there
  Axes axes(const char* name) const;
  std::optional<int64_t> maybe_integer(const char* name) const;
  std::optional<Scalar> maybe_scalar(const char* name) const;
  std::optional<DType> maybe_dtype(const char* name) const;
  DType dtype(const char* name, DType otherwise) const;
  std::vector<Index> index() const;
  // The place in `names` of the argument, or Refused; the first where it is not given.
  size_t choice(const char* name, std::initializer_list<const char*> names) const;

  // --- comparing: Mismatch ---
  std::vector<double> expected(const json& key) const;
  void compare(const Tensors& outputs) const;
  void compare_gradients(const Tensors& outputs) const;

 private:
  void compare(const Tensor& got, const json& key, const std::string& what) const;

  json json_, arguments_;
  std::string op_;
  const Recorded* recorded_ = nullptr;
  Where where_;
  Tensors inputs_;  // as recorded, and placed: what gradients are taken with respect to
  Tensor viewed_;   // input 0 after `pre`
  mutable std::set<std::string> asked_;
};

Scalar scalar_of(const json& value);

}  // namespace tinyshard::golden
