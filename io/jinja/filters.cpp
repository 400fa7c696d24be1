// Filters and tests of templates.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "io/jinja/builtins.h"

namespace tinyshard::jinja {
namespace {

using Call = Value (*)(const Value& x, const Arguments& a);  // a without x

Arguments without_first(const Arguments& a, size_t count = 1) {
  Arguments out = a;
  out.positional.erase(
      out.positional.begin(),
      out.positional.begin() + static_cast<long>(std::min(count, out.positional.size())));
  return out;
}

Value with_method(const Value& x, const char* name, const Arguments& a) {
  const Value text = x.is_text() ? x : Value(x.str());
  return method(text, name).function()(a);
}

// x.a.b for "a.b"; numbers are places.
Value by_path(Value x, const std::string& path) {
  const Value names = method(path, "split").function()({{"."}, {}});
  for (const Value& name : names.list()) {
    const std::string& text = name.text();
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    x = digits ? item(x, int64_t{std::atoll(text.c_str())}) : attribute(x, text);
  }
  return x;
}

// select(test, ...) and selectattr(name, test, ...): those elements that a test says yes to, or no.
Value chosen(const Value& x, const Arguments& a, bool by_attribute, bool wanted) {
  List out;
  const Value path = by_attribute ? a.get(0, "attribute") : Value();
  Arguments rest = without_first(a, by_attribute ? 1 : 0);
  const Value name = rest.get(0, "test");
  for (const Value& each : elements(x)) {
    const Value looked_at = by_attribute ? by_path(each, path.str()) : each;
    Arguments with = without_first(rest);
    with.positional.insert(with.positional.begin(), looked_at);
    if ((name.is_undefined() ? looked_at.truth() : test(name.str(), with)) == wanted)
      out.push_back(each);
  }
  return out;
}

Value mapped(const Value& x, const Arguments& a) {
  List out;
  const Value path = a.get(1000, "attribute"), otherwise = a.get(1000, "default");
  for (const Value& each : elements(x)) {
    if (path.is_undefined()) {
      Arguments with = without_first(a);
      with.positional.insert(with.positional.begin(), each);
      out.push_back(filter(a.get(0, "filter").str(), with));
    } else {
      const Value found = by_path(each, path.str());
      out.push_back(found.is_undefined() ? otherwise : found);
    }
  }
  return out;
}

Value sorted(const Value& x, const Arguments& a) {
  List out = elements(x);
  const Value path = a.get(2, "attribute");
  const auto key = [&](const Value& v) {
    const Value found = path.is_undefined() ? v : by_path(v, path.str());
    return found.is_text() && !a.get(1, "case_sensitive").truth() ? with_method(found, "lower", {})
                                                                  : found;
  };
  const bool reverse = a.get(0, "reverse").truth();
  std::ranges::stable_sort(out, [&](const Value& p, const Value& q) {
    return reverse ? key(q) < key(p) : key(p) < key(q);
  });
  return out;
}

Value sorted_items(const Value& x, const Arguments& a) {
  const bool by_value = a.get(1, "by").str() == "value";
  Arguments options;
  options.named = {{"attribute", by_value ? "1" : "0"},
                   {"reverse", a.get(2, "reverse")},
                   {"case_sensitive", a.get(0, "case_sensitive")}};
  return sorted(method(x, "items").function()({}), options);
}

Value joined(const Value& x, const Arguments& a) {
  const Value path = a.get(1, "attribute");
  std::string out;
  bool first = true;
  for (const Value& each : elements(x)) {
    if (!first) out += a.get(0, "d").str();
    first = false;
    out += (path.is_undefined() ? each : by_path(each, path.str())).str();
    check_size(out.size());
  }
  return out;
}

Value unique(const Value& x, const Arguments&) {
  List out;
  for (const Value& each : elements(x)) {
    if (std::ranges::find(out, each) == out.end()) out.push_back(each);
  }
  return out;
}

Value reversed(const Value& x, const Arguments&) {
  List out = elements(x);
  std::ranges::reverse(out);
  if (!x.is_text()) return out;
  return joined(out, {});
}

Value indented(const Value& x, const Arguments& a) {
  const Value width = a.get(0, "width");
  const std::string by =
      width.is_text()
          ? width.text()
          : std::string(
                size_t(width.is_integer() ? std::clamp<int64_t>(width.integer(), 0, 1000) : 4),
                ' ');
  std::string out = a.get(1, "first").truth() ? by : "";
  const std::string text = x.str();
  for (size_t at = 0; at < text.size(); ++at) {
    out += text[at];
    const bool empty = at + 1 == text.size() || text[at + 1] == '\n';
    if (text[at] == '\n' && (!empty || a.get(2, "blank").truth())) out += by;
  }
  return out;
}

Value rounded(const Value& x, const Arguments& a) {
  const Value digits = a.get(0, "precision"), how = a.get(1, "method");
  const double scale = std::pow(10.0, digits.is_integer() ? double(digits.integer()) : 0.0);
  const double value = x.real() * scale;
  const std::string method = how.is_text() ? how.text() : "common";
  return (method == "ceil"    ? std::ceil(value)
          : method == "floor" ? std::floor(value)
                              : std::nearbyint(value)) /
         scale;
}

Value to_integer(const Value& x, const Arguments& a) {
  const Value otherwise = a.get(0, "default");
  if (x.is_number())
    return x.is_float() ? static_cast<int64_t>(std::clamp(x.real(), -9e18, 9e18)) : x.integer();
  if (x.is_text()) {
    char* end = nullptr;
    const double value = std::strtod(x.text().c_str(), &end);
    if (end != x.text().c_str() && *end == '\0')
      return static_cast<int64_t>(std::clamp(value, -9e18, 9e18));
  }
  return otherwise.is_undefined() ? Value(int64_t{0}) : otherwise;
}

Value to_float(const Value& x, const Arguments& a) {
  const Value otherwise = a.get(0, "default");
  if (x.is_number()) return x.real();
  if (x.is_text()) {
    char* end = nullptr;
    const double value = std::strtod(x.text().c_str(), &end);
    if (end != x.text().c_str() && *end == '\0') return value;
  }
  return otherwise.is_undefined() ? Value(0.0) : otherwise;
}

Value extreme(const Value& x, bool largest) {
  const List all = elements(x);
  if (all.empty()) return {};
  return largest ? *std::max_element(all.begin(), all.end())
                 : *std::min_element(all.begin(), all.end());
}

Value json_of(const Value& x, const Arguments& a) {
  const Value indent = a.get(1000, "indent");
  return x.json(indent.is_integer() ? std::clamp<int64_t>(indent.integer(), 0, 100) : -1, 0,
                a.get(1000, "sort_keys").truth());
}

Value escaped(const Value& x, const Arguments&) {
  std::string out;
  for (const char c : x.str()) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&#34;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += c;
  }
  return out;
}

Value size_of(const Value& x, const Arguments&) { return static_cast<int64_t>(elements(x).size()); }

const std::map<std::string, Call>& filters() {
  static const std::map<std::string, Call> all{
      {"abs",
       [](const Value& x, const Arguments&) {
         return x.is_float() ? Value(std::fabs(x.real())) : Value(std::abs(x.integer()));
       }},
      {"capitalize",
       [](const Value& x, const Arguments&) { return with_method(x, "capitalize", {}); }},
      {"count", size_of},
      {"length", size_of},
      {"default",
       [](const Value& x, const Arguments& a) {
         const bool missing = x.is_undefined() || (a.get(1, "boolean").truth() && !x.truth());
         const Value otherwise = a.get(0, "default_value");
         return !missing ? x : otherwise.is_undefined() ? Value("") : otherwise;
       }},
      {"dictsort", sorted_items},
      {"escape", escaped},
      {"first",
       [](const Value& x, const Arguments&) {
         const List l = elements(x);
         return l.empty() ? Value() : l.front();
       }},
      {"float", to_float},
      {"indent", indented},
      {"int", to_integer},
      {"items",
       [](const Value& x, const Arguments&) {
         return x.is_undefined() ? Value(List()) : attribute(x, "items").function()({});
       }},
      {"join", joined},
      {"last",
       [](const Value& x, const Arguments&) {
         const List l = elements(x);
         return l.empty() ? Value() : l.back();
       }},
      {"list", [](const Value& x, const Arguments&) { return Value(elements(x)); }},
      {"lower", [](const Value& x, const Arguments&) { return with_method(x, "lower", {}); }},
      {"map", mapped},
      {"max", [](const Value& x, const Arguments&) { return extreme(x, true); }},
      {"min", [](const Value& x, const Arguments&) { return extreme(x, false); }},
      {"reject", [](const Value& x, const Arguments& a) { return chosen(x, a, false, false); }},
      {"rejectattr", [](const Value& x, const Arguments& a) { return chosen(x, a, true, false); }},
      {"replace", [](const Value& x, const Arguments& a) { return with_method(x, "replace", a); }},
      {"reverse", reversed},
      {"round", rounded},
      {"safe", [](const Value& x, const Arguments&) { return x; }},
      {"select", [](const Value& x, const Arguments& a) { return chosen(x, a, false, true); }},
      {"selectattr", [](const Value& x, const Arguments& a) { return chosen(x, a, true, true); }},
      {"sort", sorted},
      {"string", [](const Value& x, const Arguments&) { return Value(x.str()); }},
      {"sum",
       [](const Value& x, const Arguments&) {
         const List all = elements(x);
         return std::accumulate(all.begin(), all.end(), Value(int64_t{0}),
                                [](const Value& p, const Value& q) { return binary("+", p, q); });
       }},
      {"title", [](const Value& x, const Arguments&) { return with_method(x, "title", {}); }},
      {"tojson", json_of},
      {"trim", [](const Value& x, const Arguments& a) { return with_method(x, "strip", a); }},
      {"unique", unique},
      {"upper", [](const Value& x, const Arguments&) { return with_method(x, "upper", {}); }},
  };
  return all;
}

using Test = bool (*)(const Value& x, const Value& y);
const std::map<std::string, Test>& tests() {
  static const std::map<std::string, Test> all{
      {"defined", [](const Value& x, const Value&) { return !x.is_undefined(); }},
      {"undefined", [](const Value& x, const Value&) { return x.is_undefined(); }},
      {"none", [](const Value& x, const Value&) { return x.is_none(); }},
      {"boolean", [](const Value& x, const Value&) { return x.is_bool(); }},
      {"true", [](const Value& x, const Value&) { return x.is_bool() && x.truth(); }},
      {"false", [](const Value& x, const Value&) { return x.is_bool() && !x.truth(); }},
      {"integer", [](const Value& x, const Value&) { return x.is_integer(); }},
      {"float", [](const Value& x, const Value&) { return x.is_float(); }},
      {"number", [](const Value& x, const Value&) { return x.is_number(); }},
      {"string", [](const Value& x, const Value&) { return x.is_text(); }},
      {"mapping", [](const Value& x, const Value&) { return x.is_dict(); }},
      {"sequence",
       [](const Value& x, const Value&) { return x.is_list() || x.is_text() || x.is_dict(); }},
      {"iterable",
       [](const Value& x, const Value&) {
         return x.is_list() || x.is_text() || x.is_dict() || x.is_undefined();
       }},
      {"callable", [](const Value& x, const Value&) { return x.is_function(); }},
      {"lower", [](const Value& x, const Value&) { return with_method(x, "islower", {}).truth(); }},
      {"upper", [](const Value& x, const Value&) { return with_method(x, "isupper", {}).truth(); }},
      {"odd", [](const Value& x, const Value&) { return x.integer() % 2 != 0; }},
      {"even", [](const Value& x, const Value&) { return x.integer() % 2 == 0; }},
      {"divisibleby",
       [](const Value& x, const Value& y) { return binary("%", x, y).integer() == 0; }},
      {"in", [](const Value& x, const Value& y) { return contains(y, x); }},
      {"sameas", [](const Value& x, const Value& y) { return x == y; }},
      {"eq", [](const Value& x, const Value& y) { return x == y; }},
      {"equalto", [](const Value& x, const Value& y) { return x == y; }},
      {"==", [](const Value& x, const Value& y) { return x == y; }},
      {"ne", [](const Value& x, const Value& y) { return !(x == y); }},
      {"!=", [](const Value& x, const Value& y) { return !(x == y); }},
      {"lt", [](const Value& x, const Value& y) { return x < y; }},
      {"lessthan", [](const Value& x, const Value& y) { return x < y; }},
      {"gt", [](const Value& x, const Value& y) { return y < x; }},
      {"greaterthan", [](const Value& x, const Value& y) { return y < x; }},
      {"le", [](const Value& x, const Value& y) { return !(y < x); }},
      {"ge", [](const Value& x, const Value& y) { return !(x < y); }},
  };
  return all;
}

}  // namespace

Value filter(const std::string& name, const Arguments& arguments) {
  const auto found = filters().find(name == "d" ? "default" : name == "e" ? "escape" : name);
  if (found == filters().end()) fail(fmt::format("there is no filter {} here", name));
  return found->second(arguments.get(0, ""), without_first(arguments));
}

bool test(const std::string& name, const Arguments& arguments) {
  const auto found = tests().find(name);
  if (found == tests().end()) fail(fmt::format("there is no test {} here", name));
  return found->second(arguments.get(0, ""), arguments.get(1, "other"));
}

}  // namespace tinyshard::jinja
