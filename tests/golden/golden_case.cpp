// How a case is read, and how its results are compared. Expected values are taken from the file
// and compared as doubles on the host; none of the library's arithmetic is part of it.
#include "tests/golden/golden_case.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tests/test_data.h"

namespace tinyshard::golden {

std::string folder() { return (test::test_data() / "golden").string(); }

Recorded::Recorded(const std::filesystem::path& folder) {
  std::ifstream file(folder / "manifest.json");
  if (!file) return;
  cases_ = json::parse(file).at("cases").get<std::vector<json>>();
  file_.emplace(folder / "tensors.safetensors");
}

const io::TensorEntry& Recorded::entry(const json& key) const {
  return file_.value().at(key.get<std::string>());
}

Tensor Recorded::tensor(const json& key) const {
  if (key.is_null()) return {};
  const io::TensorEntry& found = entry(key);
  return Tensor(found.bytes, Ints(found.shape), found.dtype);
}

Scalar scalar_of(const json& value) {
  constexpr double inf = std::numeric_limits<double>::infinity();
  if (value.is_string()) {
    const std::string text = value;
    if (text == "nan") return std::nan("");
    if (text == "inf" || text == "-inf") return text == "inf" ? inf : -inf;
    throw Refused(fmt::format("\"{}\" is no number", text));
  }
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_unsigned()) return value.get<uint64_t>();
  if (value.is_number_integer()) return value.get<int64_t>();
  return value.get<double>();
}

namespace {

template <class T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Reads a float of 8 bits, so many of them mantissa. `fnuz`: without infinities and -0.
double float8(uint8_t code, int mantissa, int bias, bool fnuz) {
  const int exponent = (code & 127) >> mantissa, fraction = code & ((1 << mantissa) - 1);
  const double sign = code & 128 ? -1 : 1;
  if (fnuz && code == 128) return std::nan("");
  if (!fnuz && mantissa == 3 && (code & 127) == 127) return std::nan("");
  if (!fnuz && mantissa == 2 && exponent == 31)
    return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  const int whole = exponent ? (1 << mantissa) + fraction : fraction;
  return sign * std::ldexp(whole, (exponent ? exponent : 1) - bias - mantissa);
}

double number(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::Bool:
      return read<uint8_t>(at) != 0;
    case DType::I8:
      return read<int8_t>(at);
    case DType::I16:
      return read<int16_t>(at);
    case DType::I32:
      return read<int32_t>(at);
    case DType::I64:
      return static_cast<double>(read<int64_t>(at));
    case DType::U8:
      return read<uint8_t>(at);
    case DType::U16:
      return read<uint16_t>(at);
    case DType::U32:
      return read<uint32_t>(at);
    case DType::U64:
      return static_cast<double>(read<uint64_t>(at));
    case DType::F16: {
      const auto bits = read<uint16_t>(at);
      const int exponent = bits >> 10 & 31, fraction = bits & 1023;
      const double sign = bits >> 15 ? -1 : 1;
      if (exponent == 31)
        return fraction ? std::nan("") : sign * std::numeric_limits<double>::infinity();
      return sign *
             (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
    }
    case DType::BF16: {
      const uint32_t bits = uint32_t{read<uint16_t>(at)} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return value;
    }
    case DType::F8E4M3FN:
      return float8(read<uint8_t>(at), 3, 7, false);
    case DType::F8E5M2:
      return float8(read<uint8_t>(at), 2, 15, false);
    case DType::F8E4M3FNUZ:
      return float8(read<uint8_t>(at), 3, 8, true);
    case DType::F8E5M2FNUZ:
      return float8(read<uint8_t>(at), 2, 16, true);
    case DType::F32:
      return read<float>(at);
    case DType::F64:
      return read<double>(at);
    case DType::Index:
      break;
  }
  throw std::logic_error("an index type does not reach memory");
}

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
  const std::string op = step[0];
  if (op == "shrink") return x.shrink(pairs_of(step[1], x));
  const Dims list = step[1].get<Dims>();
  if (op == "permute") return x.permute(list);
  if (op == "flip") return x.flip(list);
  if (op == "expand") return x.expand(list);
  if (op == "reshape") return x.reshape(list);
  throw Mismatch(fmt::format("unknown view operation \"{}\"", op));
}

}  // namespace

std::vector<double> numbers(std::span<const std::byte> bytes, DType dtype) {
  const size_t size = itemsize(dtype);
  std::vector<double> out(bytes.size() / size);
  for (size_t i = 0; i < out.size(); ++i) out[i] = number(bytes.data() + i * size, dtype);
  return out;
}

Case::Case(const json& description, const Recorded& recorded, const Where& where)
    : json_(description),
      arguments_(description.at("args")),
      op_(description.at("op")),
      recorded_(&recorded),
      where_(where) {
  for (const json& key : json_.at("inputs")) {
    const Tensor tensor = recorded.tensor(key);
    inputs_.push_back(tensor.defined() ? where_.put(tensor) : tensor);
  }
  if (inputs_.empty()) return;
  viewed_ = inputs_[0];
  for (const json& step : json_.value("pre", json::array())) viewed_ = apply_view(viewed_, step);
}

Case::Case(std::string op, Tensors inputs, json arguments)
    : arguments_(std::move(arguments)), op_(std::move(op)), inputs_(std::move(inputs)) {
  if (!inputs_.empty()) viewed_ = inputs_[0];
}

std::vector<std::string> Case::unread() const {
  std::vector<std::string> out;
  for (const auto& [name, value] : arguments_.items()) {
    if (!asked_.contains(name)) out.push_back(name);
  }
  return out;
}

const Tensor& Case::in(size_t i) const {
  if (i >= inputs_.size()) throw Refused(fmt::format("{} lacks input {}", op_, i));
  return i == 0 ? viewed_ : inputs_[i];
}

Tensors Case::list(size_t from) const {
  Tensors out;
  for (size_t i = from; i < inputs_.size(); ++i) out.push_back(in(i));
  return out;
}

Operand Case::operand(size_t i, const char* name) const {
  if (has_input(i)) return Operand(in(i));
  return Operand(scalar(name));
}

const json& Case::argument(const char* name) const {
  asked_.insert(name);
  if (!arguments_.contains(name)) throw Refused(fmt::format("{} lacks argument {}", op_, name));
  return arguments_.at(name);
}

// A text, a list or a fraction where the parameter is a whole number: no such call compiles.
int64_t Case::integer(const char* name) const {
  const json& value = argument(name);
  if (!value.is_number_integer())
    throw Refused(fmt::format("{} is no integer: {}", name, value.dump()));
  return value.get<int64_t>();
}
int64_t Case::integer(const char* name, int64_t otherwise) const {
  return has(name) ? integer(name) : otherwise;
}
double Case::real(const char* name, double otherwise) const {
  if (!has(name)) return otherwise;
  const Scalar value = scalar(name);
  return value.real;
}
bool Case::flag(const char* name, bool otherwise) const {
  if (!has(name)) return otherwise;
  const json& value = argument(name);
  if (value.is_number_integer()) return value.get<int64_t>() != 0;
  if (!value.is_boolean()) throw Refused(fmt::format("{} is no bool: {}", name, value.dump()));
  return value.get<bool>();
}
std::string Case::text(const char* name, const char* otherwise) const {
  if (!has(name)) return otherwise;
  const json& value = argument(name);
  if (!value.is_string()) throw Refused(fmt::format("{} is no text: {}", name, value.dump()));
  return value.get<std::string>();
}
Scalar Case::scalar(const char* name) const {
  const json& value = argument(name);
  if (!value.is_primitive() || value.is_null())
    throw Refused(fmt::format("{} is no number: {}", name, value.dump()));
  return scalar_of(value);
}

Ints Case::ints(const char* name) const {
  const json& value = argument(name);
  if (!value.is_array()) return Ints(integer(name));
  Dims out;
  for (const json& v : value) {
    if (!v.is_null() && !v.is_number_integer())
      throw Refused(fmt::format("{} holds no integer: {}", name, v.dump()));
    out.push_back(v.is_null() ? -1 : v.get<int64_t>());
  }
  return out;
}
Ints Case::ints(const char* name, const Ints& otherwise) const {
  return has(name) ? ints(name) : otherwise;
}
Ints Case::shape(const char* name) const {
  Ints out = ints(name);
  const json& value = argument(name);
  if (!value.is_array()) return Ints(Dims(out.values));
  for (size_t i = 0; i < value.size(); ++i) {
    if (value[i].is_null()) out.values[i] = in().shape(static_cast<int64_t>(i));
  }
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
  const json& given = argument("index");
  std::vector<Index> out;
  for (const json& entry : given.is_array() ? given : json::array({given})) {
    if (entry.contains("int")) {
      out.emplace_back(entry.at("int").get<int64_t>());
    } else if (entry.contains("newaxis")) {
      out.emplace_back(kNewAxis);
    } else if (entry.contains("ellipsis")) {
      out.emplace_back(kEllipsis);
    } else if (entry.contains("tensor")) {
      out.emplace_back(in(entry.at("tensor").get<size_t>()));
    } else if (entry.contains("slice")) {
      const json& s = entry.at("slice");
      auto bound = [&](size_t i) {
        return i >= s.size() || s[i].is_null() ? std::nullopt : std::optional(s[i].get<int64_t>());
      };
      out.emplace_back(Slice(bound(0), bound(1), bound(2).value_or(1)));
    } else {
      throw Refused(fmt::format("unknown kind of index {}", entry.dump()));
    }
  }
  return out;
}

size_t Case::choice(const char* name, std::initializer_list<const char*> names) const {
  const std::string given = text(name, *names.begin());
  for (const char* known : names) {
    if (given == known)
      return static_cast<size_t>(std::find(names.begin(), names.end(), known) - names.begin());
  }
  throw Refused(fmt::format("{} \"{}\" is none of {}", name, given, fmt::join(names, ", ")));
}

// --- comparing ---

std::vector<double> Case::expected(const json& key) const {
  const io::TensorEntry& entry = recorded_->entry(key);
  return numbers(entry.bytes, entry.dtype);
}

void Case::compare(const Tensor& got, const json& key, const std::string& what) const {
  const io::TensorEntry& expected = recorded_->entry(key);
  if (got.shape() != expected.shape || got.dtype() != expected.dtype) {
    throw Mismatch(fmt::format("{} is {}[{}], expected {}[{}]", what, name(got.dtype()),
                               fmt::join(got.shape(), ", "), name(expected.dtype),
                               fmt::join(expected.shape, ", ")));
  }
  const std::vector<std::byte> bytes = got.data();
  const std::vector<double> a = numbers(bytes, got.dtype());
  const std::vector<double> b = numbers(expected.bytes, expected.dtype);
  if (a.size() != b.size()) throw Mismatch(what + " has another number of elements");
  const bool whole = !is_float(got.dtype());
  const bool exact = json_.at("check") == "exact";
  const double rtol = exact ? 0.0 : json_.at("rtol").get<double>();
  const double atol = exact ? 0.0 : json_.at("atol").get<double>();
  const size_t size = itemsize(got.dtype());
  for (size_t i = 0; i < a.size(); ++i) {
    if (whole) {  // 64-bit integers are more than a double holds
      if (std::memcmp(bytes.data() + i * size, expected.bytes.data() + i * size, size) == 0)
        continue;
    } else {
      if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
      if (std::abs(a[i] - b[i]) <= atol + rtol * std::abs(b[i]) && !std::isinf(b[i])) continue;
    }
    throw Mismatch(
        fmt::format("{}, element {} of {}, is {}, expected {}", what, i, a.size(), a[i], b[i]));
  }
}

void Case::compare(const Tensors& outputs) const {
  const json& expected = json_.at("outputs");
  if (outputs.size() != expected.size()) {
    throw Mismatch(fmt::format("{} outputs, expected {}", outputs.size(), expected.size()));
  }
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!expected[i].is_null()) compare(outputs[i], expected[i], fmt::format("output {}", i));
  }
}

void Case::compare_gradients(const Tensors& outputs) const {
  if (!json_.contains("grads")) return;
  const json& given = json_.at("cotangent");
  const json weights = given.is_array() ? given : json::array({given});
  if (weights.size() > outputs.size()) throw Mismatch("more cotangents than outputs");
  Tensor total;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i].is_null()) continue;
    const Tensor term = (outputs[i] * where_.put(recorded_->tensor(weights[i]))).sum();
    total = total.defined() ? total + term : term;
  }
  Tensors targets;
  std::vector<std::pair<size_t, json>> wanted;
  for (size_t i = 0; i < inputs_.size(); ++i) {
    const json& key = json_.at("grads")[i];
    if (key.is_null()) continue;
    targets.push_back(inputs_[i]);
    wanted.emplace_back(i, key);
  }
  const Tensors gradients = total.gradient(targets);
  for (size_t i = 0; i < targets.size(); ++i) {
    compare(gradients[i], wanted[i].second, fmt::format("gradient of input {}", wanted[i].first));
  }
}

}  // namespace tinyshard::golden
