// Texts of values are those of Python, as models were trained on them: True, None, 1.0, 'a'.
// Numbers of all kinds are compared by value, with true as 1; nothing else is equal across kinds.
// Sizes are limited, as a template comes from a file.
#include "io/jinja/value.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/tokenizers/unicode.h"

namespace tinyshard::jinja {
namespace {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", value);
  if (out.find_first_of(".e") == out.npos) out += ".0";
  return out;
}

std::string quoted(const std::string& text) {
  const char quote = text.find('\'') != text.npos && text.find('"') == text.npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\\' || c == quote)
      out.append(1, '\\').append(1, c);
    else
      out += c;
  }
  return out += quote;
}

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void fail(const std::string& why) { throw UserError(why); }

void check_size(size_t size) {
  constexpr size_t kMaxSize = 64 << 20;
  if (size > kMaxSize) fail("a text or a list that is too long");
}

Value Arguments::get(size_t place, std::string_view name) const {
  if (place < positional.size()) return positional[place];
  const auto found = std::ranges::find(named, name, [](const auto& n) { return n.first; });
  return found == named.end() ? Value() : found->second;
}

Value Value::from_json(const nlohmann::ordered_json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& each : json) list.push_back(from_json(each));
    return list;
  }
  if (json.is_object()) {
    Dict dict;
    for (const auto& [name, each] : json.items()) dict.emplace_back(name, from_json(each));
    return dict;
  }
  return None();
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_bool()) return std::get<bool>(data_);
  if (is_integer()) return std::get<int64_t>(data_) != 0;
  if (is_float()) return std::get<double>(data_) != 0;
  if (is_text()) return !text().empty();
  if (is_list()) return !list().empty();
  if (is_dict()) return !dict().empty();
  return true;
}

int64_t Value::integer() const {
  if (is_bool()) return std::get<bool>(data_) ? 1 : 0;
  if (!is_integer()) fail(fmt::format("{} where a whole number is needed", type()));
  return std::get<int64_t>(data_);
}

double Value::real() const {
  if (is_float()) return std::get<double>(data_);
  if (!is_number()) fail(fmt::format("{} where a number is needed", type()));
  return static_cast<double>(integer());
}

Value Value::entry(const Value& key) const {
  const Dict& entries = is_namespace() ? fields() : dict();
  const auto found = std::ranges::find_if(entries, [&](const auto& e) { return e.first == key; });
  return found == entries.end() ? Value() : found->second;
}

std::string Value::str() const { return is_text() ? text() : repr(); }

std::string Value::repr() const {
  if (is_undefined()) return "";
  if (is_none()) return "None";
  if (is_bool()) return truth() ? "True" : "False";
  if (is_integer()) return fmt::format("{}", integer());
  if (is_float()) return number_text(real());
  if (is_text()) return quoted(text());
  std::string out;
  const auto separate = [&] { out += out.empty() ? "" : ", "; };
  if (is_list()) {
    for (const Value& each : list()) separate(), out += each.repr();
    return "[" + out + "]";
  }
  if (is_dict()) {
    for (const auto& [key, each] : dict()) separate(), out += key.repr() + ": " + each.repr();
    return "{" + out + "}";
  }
  return fmt::format("<{}>", type());
}

std::string Value::json(int64_t indent, int64_t depth, bool sorted) const {
  if (is_none() || is_undefined()) return "null";
  if (is_bool()) return truth() ? "true" : "false";
  if (is_integer() || is_float()) return repr();
  if (is_text()) return json_text(text());
  if (!is_list() && !is_dict()) fail(fmt::format("{} has no JSON", type()));
  const bool lines = indent >= 0;
  const auto line = [&](int64_t d) {
    return lines ? "\n" + std::string(static_cast<size_t>(indent * d), ' ') : "";
  };
  std::string out;
  const auto separate = [&] { out += (out.empty() ? "" : lines ? "," : ", ") + line(depth + 1); };
  if (is_list()) {
    for (const Value& each : list()) separate(), out += each.json(indent, depth + 1, sorted);
    return out.empty() ? "[]" : "[" + out + line(depth) + "]";
  }
  Dict entries = dict();
  if (sorted) std::ranges::sort(entries, [](auto& a, auto& b) { return a.first < b.first; });
  for (const auto& [key, each] : entries)
    separate(), out += json_text(key.str()) + ": " + each.json(indent, depth + 1, sorted);
  return out.empty() ? "{}" : "{" + out + line(depth) + "}";
}

const char* Value::type() const {
  constexpr const char* kNames[] = {
      "an undefined value", "none",       "a boolean", "a whole number",
      "a number",           "a text",     "a list",    "a dict",
      "a function",         "a namespace"};
  return kNames[data_.index()];
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_float() || other.is_float()) return real() == other.real();
    return integer() == other.integer();
  }
  if (data_.index() != other.data_.index()) return false;
  if (is_text()) return text() == other.text();
  if (is_list()) return list() == other.list();
  if (is_dict()) {
    return dict().size() == other.dict().size() && std::ranges::all_of(dict(), [&](const auto& e) {
             const Value found = other.entry(e.first);
             return !found.is_undefined() && found == e.second;
           });
  }
  return is_none() || is_undefined();
}

bool Value::operator<(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_float() || other.is_float()) return real() < other.real();
    return integer() < other.integer();
  }
  if (is_text() && other.is_text()) return text() < other.text();
  if (is_list() && other.is_list())
    return std::lexicographical_compare(list().begin(), list().end(), other.list().begin(),
                                        other.list().end());
  fail(fmt::format("{} and {} have no order", type(), other.type()));
}

List elements(const Value& value) {
  if (value.is_undefined()) return {};
  if (value.is_list()) return value.list();
  List out;
  if (value.is_dict()) {
    for (const auto& [key, each] : value.dict()) out.push_back(key);
    return out;
  }
  if (!value.is_text()) fail(fmt::format("{} has no elements", value.type()));
  const std::string& text = value.text();
  for (size_t at = 0; at < text.size();) {
    const size_t size = tokenizers::letter_at(text, at).size;
    out.emplace_back(text.substr(at, size));
    at += size;
  }
  return out;
}

}  // namespace tinyshard::jinja
