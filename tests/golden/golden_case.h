// One recorded case of shared/golden (its README explains the format): inputs, arguments, expected
// results, and how to compare them.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/tensor/tensor.h"

namespace tinyshard::golden {

using nlohmann::json;

// Where the recorded data lies: $TINYSHARD_TEST_DATA/golden, or shared/golden beside the
// repository.
std::string folder();
// All cases of manifest.json; empty where the data is absent.
const std::vector<json>& cases();
// A recorded tensor; no tensor for null.
Tensor stored(const json& key);

class Case {
 public:
  explicit Case(const json& description);

  std::string op() const { return json_.at("op"); }
  bool expects_error() const { return json_.at("check") == "error"; }
  const json& all() const { return json_; }

  // --- inputs and arguments
  // ------------------------------------------------------------------------
  size_t inputs() const { return inputs_.size(); }
  bool has_input(size_t i) const { return i < inputs_.size() && inputs_[i].defined(); }
  const Tensor& in(size_t i = 0) const;  // after the view operations of `pre` for input 0
  Tensor optional_in(size_t i) const { return has_input(i) ? in(i) : Tensor(); }
  std::vector<Tensor> list(size_t from = 0) const;
  // Input i, or the number under `name`.
  Operand operand(size_t i, const char* name) const;

  bool has(const char* name) const {
    asked_.insert(name);
    return arguments_.contains(name) && !arguments_.at(name).is_null();
  }
  const json& argument(const char* name) const {
    asked_.insert(name);
    return arguments_.at(name);
  }
  // The recorded arguments that nobody has asked for: a call that leaves them out means something
  // else.
  std::vector<std::string> unread() const;
  int64_t integer(const char* name, int64_t otherwise = 0) const;
  double real(const char* name, double otherwise) const;
  bool flag(const char* name, bool otherwise = false) const;
  std::string text(const char* name, const char* otherwise = "") const;
  Scalar scalar(const char* name) const;
  Ints ints(const char* name, const Ints& otherwise = {}) const;
  Axes axes(const char* name) const;
  std::optional<int64_t> maybe_integer(const char* name) const;
  std::optional<Scalar> maybe_scalar(const char* name) const;
  std::optional<DType> maybe_dtype(const char* name) const;
  DType dtype(const char* name, DType otherwise) const;
  std::vector<Index> index() const;

  // --- comparing
  // ----------------------------------------------------------------------------------- Adds
  // failures to the running test.
  void compare(const std::vector<Tensor>& outputs) const;
  void compare_gradients(const std::vector<Tensor>& outputs) const;

 private:
  void compare(const Tensor& got, const json& key, const std::string& what) const;

  const json& json_;
  const json& arguments_;
  std::vector<Tensor> inputs_;  // as recorded: what gradients are taken with respect to
  Tensor viewed_;               // input 0 after `pre`
  mutable std::set<std::string> asked_;
};

Scalar scalar_of(const json& value);

}  // namespace tinyshard::golden
