#include "tests/golden/golden_case.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "io/safetensors.h"

namespace tinyshard::golden {

std::string folder() {
  const char* set = std::getenv("TINYSHARD_TEST_DATA");
  return std::string(set ? set : TINYSHARD_TEST_DATA_DIR) + "/golden";
}

const std::vector<json>& cases() {
  static const std::vector<json> all = [] {
    std::ifstream file(folder() + "/manifest.json");
    return file ? json::parse(file).at("cases").get<std::vector<json>>() : std::vector<json>{};
  }();
  return all;
}

Tensor stored(const json& key) {
  if (key.is_null()) return {};
  static const io::SafetensorsFile file(folder() + "/tensors.safetensors");
  const io::TensorEntry& entry = file.at(key.get<std::string>());
  return Tensor(entry.bytes, Ints(entry.shape), entry.dtype);
}

Scalar scalar_of(const json& value) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (value.is_string()) {
    std::string text = value;
    return text == "nan" ? std::nan("") : text == "inf" ? inf : -inf;
  }
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.get<double>();
}

namespace {

Pairs pairs_of(const json& list, const Tensor& x) {
  Pairs out;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].is_null()) {
      out.emplace_back(0, x.shape(static_cast<int64_t>(i)));
    } else {
      out.emplace_back(list[i][0].get<int64_t>(), list[i][1].get<int64_t>());
    }
  }
  return out;
}

Tensor apply_view(const Tensor& x, const json& step) {
  std::string op = step[0];
  if (op == "shrink") return x.shrink(pairs_of(step[1], x));
  Dims list = step[1].get<Dims>();
  if (op == "permute") return x.permute(list);
  if (op == "flip") return x.flip(list);
  if (op == "expand") return x.expand(list);
  return x.reshape(list);
}

}  // namespace

Case::Case(const json& description) : json_(description), arguments_(description.at("args")) {
  for (const json& key : json_.at("inputs")) inputs_.push_back(stored(key));
  if (inputs_.empty()) return;
  viewed_ = inputs_[0];
  if (json_.contains("pre")) {
    for (const json& step : json_.at("pre")) viewed_ = apply_view(viewed_, step);
  }
}

std::vector<std::string> Case::unread() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : arguments_.items()) {
    if (!asked_.contains(name)) out.push_back(name);
  }
  return out;
}

const Tensor& Case::in(size_t i) const { return i == 0 ? viewed_ : inputs_.at(i); }

std::vector<Tensor> Case::list(size_t from) const {
  std::vector<Tensor> out;
  for (size_t i = from; i < inputs_.size(); ++i) out.push_back(in(i));
  return out;
}

Operand Case::operand(size_t i, const char* name) const {
  if (has_input(i)) return Operand(in(i));
  return Operand(scalar(name));
}

int64_t Case::integer(const char* name, int64_t otherwise) const {
  return has(name) ? argument(name).get<int64_t>() : otherwise;
}
double Case::real(const char* name, double otherwise) const {
  return has(name) ? argument(name).get<double>() : otherwise;
}
bool Case::flag(const char* name, bool otherwise) const {
  return has(name) ? argument(name).get<bool>() : otherwise;
}
std::string Case::text(const char* name, const char* otherwise) const {
  return has(name) ? argument(name).get<std::string>() : otherwise;
}
Scalar Case::scalar(const char* name) const { return scalar_of(argument(name)); }

Ints Case::ints(const char* name, const Ints& otherwise) const {
  if (!has(name)) return otherwise;
  const json& value = argument(name);
  if (!value.is_array()) return Ints(value.get<int64_t>());
  Dims out;
  for (const json& v : value) out.push_back(v.is_null() ? -1 : v.get<int64_t>());
  return out;
}

Axes Case::axes(const char* name) const { return has(name) ? Axes(ints(name).values) : Axes(); }

std::optional<int64_t> Case::maybe_integer(const char* name) const {
  if (!has(name)) return std::nullopt;
  return integer(name);
}
std::optional<Scalar> Case::maybe_scalar(const char* name) const {
  if (!has(name)) return std::nullopt;
  return scalar(name);
}
std::optional<DType> Case::maybe_dtype(const char* name) const {
  if (!has(name)) return std::nullopt;
  return dtype_from_name(text(name));
}
DType Case::dtype(const char* name, DType otherwise) const {
  return maybe_dtype(name).value_or(otherwise);
}

std::vector<Index> Case::index() const {
  std::vector<Index> out;
  for (const json& entry : argument("index")) {
    if (entry.contains("int")) out.emplace_back(entry.at("int").get<int64_t>());
    if (entry.contains("newaxis")) out.emplace_back(kNewAxis);
    if (entry.contains("ellipsis")) out.emplace_back(kEllipsis);
    if (entry.contains("tensor")) out.emplace_back(in(entry.at("tensor").get<size_t>()));
    if (entry.contains("slice")) {
      const json& s = entry.at("slice");
      auto bound = [&](size_t i) {
        return s[i].is_null() ? std::nullopt : std::optional(s[i].get<int64_t>());
      };
      out.emplace_back(Slice(bound(0), bound(1), bound(2).value_or(1)));
    }
  }
  return out;
}

// --- comparing -----------------------------------------------------------------------------------

void Case::compare(const Tensor& got, const json& key, const std::string& what) const {
  Tensor expected = stored(key);
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  ASSERT_EQ(name(got.dtype()), name(expected.dtype())) << what;
  if (is_int(got.dtype())) {
    EXPECT_EQ(got.to_vector<int64_t>(), expected.to_vector<int64_t>()) << what;
    return;
  }
  bool exact = json_.at("check") == "exact";
  double rtol = exact ? 0.0 : json_.at("rtol").get<double>(),
         atol = exact ? 0.0 : json_.at("atol").get<double>();
  std::vector<double> a = got.to_vector<double>(), b = expected.to_vector<double>();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    ASSERT_LE(std::abs(a[i] - b[i]), atol + rtol * std::abs(b[i]))
        << what << ", element " << i << " of " << a.size() << ": " << a[i] << ", expected " << b[i];
  }
}

void Case::compare(const std::vector<Tensor>& outputs) const {
  const json& expected = json_.at("outputs");
  ASSERT_EQ(outputs.size(), expected.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!expected[i].is_null()) compare(outputs[i], expected[i], "output " + std::to_string(i));
  }
}

void Case::compare_gradients(const std::vector<Tensor>& outputs) const {
  if (!json_.contains("grads")) return;
  const json& given = json_.at("cotangent");
  json weights = given.is_array() ? given : json::array({given});
  Tensor total;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].is_null()) continue;
    Tensor term = (outputs[i] * stored(weights[i])).sum();
    total = total.defined() ? total + term : term;
  }
  std::vector<Tensor> targets;
  json wanted = json::array();
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const json& key = json_.at("grads")[i];
    if (key.is_null()) continue;
    targets.push_back(inputs_[i]);
    wanted.push_back(key);
  }
  std::vector<Tensor> gradients = total.gradient(targets);
  for (size_t i = 0; i < targets.size(); ++i)
    compare(gradients[i], wanted[i], "gradient " + std::to_string(i));
}

}  // namespace tinyshard::golden
