// Operators of templates, by Python's rules: / makes a float, // and % round down, + joins texts and
// lists, ~ joins what is printed.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "io/jinja/builtins.h"

namespace tinyshard::jinja {
namespace {

int64_t whole(const std::string& op, int64_t a, int64_t b) {
  int64_t out = 0;
  bool over = false;
  if (op == "+")
    over = __builtin_add_overflow(a, b, &out);
  else if (op == "-")
    over = __builtin_sub_overflow(a, b, &out);
  else if (op == "*")
    over = __builtin_mul_overflow(a, b, &out);
  else if (b == 0)
    fail("a division by zero");
  else if (b == -1)
    over = op == "//" && __builtin_sub_overflow(int64_t{0}, a, &out);
  else if (op == "//")
    out = a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0);
  else
    out = (a % b + b) % b;
  if (over) fail("a whole number beyond 64 bits");
  return out;
}

Value power(const Value& a, const Value& b) {
  const bool wholes = !a.is_float() && !b.is_float() && b.integer() >= 0;
  if (!wholes) return std::pow(a.real(), b.real());
  int64_t out = 1;
  for (int64_t i = 0; i < b.integer(); ++i) {
    out = whole("*", out, a.integer());
    if (i > 64 && (out == 0 || out == 1 || out == -1)) return out;
  }
  return out;
}

Value arithmetic(const std::string& op, const Value& a, const Value& b) {
  if (op == "**") return power(a, b);
  if (op == "/") {
    if (b.real() == 0) fail("a division by zero");
    return a.real() / b.real();
  }
  if (!a.is_float() && !b.is_float()) return whole(op, a.integer(), b.integer());
  const double x = a.real(), y = b.real();
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (y == 0) fail("a division by zero");
  return op == "//" ? std::floor(x / y) : x - y * std::floor(x / y);
}

Value repeated(const Value& what, int64_t times) {
  const size_t size = what.is_text() ? what.text().size() : what.list().size();
  if (times > 0) check_size(size > SIZE_MAX / size_t(times) ? SIZE_MAX : size * size_t(times));
  std::string text;
  List list;
  for (int64_t i = 0; i < times; ++i) {
    if (what.is_text())
      text += what.text();
    else
      list.insert(list.end(), what.list().begin(), what.list().end());
  }
  return what.is_text() ? Value(std::move(text)) : Value(std::move(list));
}

}  // namespace

bool contains(const Value& whole, const Value& part) {
  if (whole.is_text()) {
    if (!part.is_text()) fail(fmt::format("{} cannot be in a text", part.type()));
    return whole.text().find(part.text()) != std::string::npos;
  }
  if (whole.is_dict()) return !whole.entry(part).is_undefined();
  if (whole.is_undefined()) return false;
  if (!whole.is_list()) fail(fmt::format("{} has no elements", whole.type()));
  return std::ranges::find(whole.list(), part) != whole.list().end();
}

Value binary(const std::string& op, const Value& a, const Value& b) {
  if (op == "==") return a == b;
  if (op == "!=") return !(a == b);
  if (op == "<") return a < b;
  if (op == ">") return b < a;
  if (op == "<=") return !(b < a);
  if (op == ">=") return !(a < b);
  if (op == "in") return contains(b, a);
  if (op == "not in") return !contains(b, a);
  if (op == "~" || (op == "+" && a.is_text() && b.is_text())) {
    std::string out = a.str() + b.str();
    check_size(out.size());
    return out;
  }
  if (op == "+" && a.is_list() && b.is_list()) {
    List out = a.list();
    out.insert(out.end(), b.list().begin(), b.list().end());
    check_size(out.size() * sizeof(Value));
    return out;
  }
  if (op == "*" && (a.is_text() || a.is_list()) && b.is_number()) return repeated(a, b.integer());
  if (op == "*" && (b.is_text() || b.is_list()) && a.is_number()) return repeated(b, a.integer());
  if (!a.is_number() || !b.is_number())
    fail(fmt::format("{} {} {} has no meaning", a.type(), op, b.type()));
  return arithmetic(op, a, b);
}

Value item(const Value& value, const Value& key) {
  if (value.is_dict() || value.is_namespace()) {
    const Value found = value.entry(key);
    return found.is_undefined() && key.is_text() ? method(value, key.text()) : found;
  }
  if (value.is_undefined()) fail(fmt::format("an undefined value has no {}", key.repr()));
  if (!key.is_integer() || !(value.is_list() || value.is_text()))
    return key.is_text() ? method(value, key.text()) : Value();
  const List list = elements(value);
  const auto size = static_cast<int64_t>(list.size());
  const int64_t at = key.integer() < 0 ? key.integer() + size : key.integer();
  return at < 0 || at >= size ? Value() : list[static_cast<size_t>(at)];
}

Value attribute(const Value& value, const std::string& name) {
  if (value.is_undefined()) fail(fmt::format("an undefined value has no {}", name));
  const Value found = method(value, name);
  if (!found.is_undefined()) return found;
  return value.is_dict() || value.is_namespace() ? value.entry(name) : Value();
}

Value slice(const Value& value, const Value& begin, const Value& end, const Value& step) {
  if (!value.is_text() && !value.is_list()) fail(fmt::format("{} has no slices", value.type()));
  const List all = elements(value);
  const auto size = static_cast<int64_t>(all.size());
  const auto given = [](const Value& v) { return !v.is_none() && !v.is_undefined(); };
  const int64_t by = given(step) ? step.integer() : 1;
  if (by == 0) fail("a slice with a step of 0");
  const auto place = [&](const Value& v, int64_t otherwise) {
    if (!given(v)) return otherwise;
    const int64_t at = v.integer() < 0 ? v.integer() + size : v.integer();
    return by > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t from = place(begin, by > 0 ? 0 : size - 1), to = place(end, by > 0 ? size : -1);
  List out;
  for (int64_t at = from; by > 0 ? at < to : at > to; at += by)
    out.push_back(all[static_cast<size_t>(at)]);
  if (value.is_list()) return out;
  std::string text;
  for (const Value& letter : out) text += letter.text();
  return text;
}

}  // namespace tinyshard::jinja
