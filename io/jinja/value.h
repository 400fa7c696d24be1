// Values of a template: what Python has, as far as templates of chats use it. Lists and dicts are
// shared, as in Python; only namespaces are written to. A tuple is a list.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace tinyshard::jinja {

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in the order of its making

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // Returns the argument that stands at a place or has a name; undefined where there is none.
  Value get(size_t place, std::string_view name) const;
};
using Function = std::function<Value(const Arguments&)>;

struct Undefined {};
struct None {};
struct Namespace {  // what {% set ns.x = 1 %} writes to
  std::shared_ptr<Dict> fields;
};

class Value {
 public:
  Value() = default;                                                      // undefined
  Value(None) : data_(None()) {}                                          // NOLINT: as Python does
  Value(bool b) : data_(b) {}                                             // NOLINT
  Value(int64_t i) : data_(i) {}                                          // NOLINT
  Value(double d) : data_(d) {}                                           // NOLINT
  Value(std::string s) : data_(std::move(s)) {}                           // NOLINT
  Value(const char* s) : data_(std::string(s)) {}                         // NOLINT
  Value(List l) : data_(std::make_shared<List>(std::move(l))) {}          // NOLINT
  Value(Dict d) : data_(std::make_shared<Dict>(std::move(d))) {}          // NOLINT
  Value(Function f) : data_(std::make_shared<Function>(std::move(f))) {}  // NOLINT
  Value(Namespace n) : data_(std::move(n)) {}                             // NOLINT
  static Value from_json(const nlohmann::ordered_json& json);

  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_integer() const { return is<int64_t>(); }
  bool is_float() const { return is<double>(); }
  bool is_number() const { return is_integer() || is_float() || is_bool(); }
  bool is_text() const { return is<std::string>(); }
  bool is_list() const { return is<std::shared_ptr<List>>(); }
  bool is_dict() const { return is<std::shared_ptr<Dict>>(); }
  bool is_function() const { return is<std::shared_ptr<Function>>(); }
  bool is_namespace() const { return is<Namespace>(); }

  bool truth() const;
  int64_t integer() const;  // of a bool, too
  double real() const;
  const std::string& text() const { return std::get<std::string>(data_); }
  const List& list() const { return *std::get<std::shared_ptr<List>>(data_); }
  const Dict& dict() const { return *std::get<std::shared_ptr<Dict>>(data_); }
  const Function& function() const { return *std::get<std::shared_ptr<Function>>(data_); }
  Dict& fields() const { return *std::get<Namespace>(data_).fields; }

  // Returns a dict's or a namespace's entry, undefined where there is none.
  Value entry(const Value& key) const;

  std::string str() const;   // as print() shows it
  std::string repr() const;  // as it stands in a list
  // Returns the value as json.dumps writes it; with an `indent` below 0 in one line.
  std::string json(int64_t indent = -1, int64_t depth = 0, bool sorted = false) const;
  const char* type() const;  // for messages

  bool operator==(const Value& other) const;
  // Fails where the two have no order.
  bool operator<(const Value& other) const;

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(data_);
  }

  std::variant<Undefined, None, bool, int64_t, double, std::string, std::shared_ptr<List>,
               std::shared_ptr<Dict>, std::shared_ptr<Function>, Namespace>
      data_;
};

// An error of a template: the interpreter adds file and line.
[[noreturn]] void fail(const std::string& why);

// Fails where a text or a list has grown too long: a template can double one many times.
void check_size(size_t size);

// The elements that a loop visits: of a list, the keys of a dict, the characters of a text.
List elements(const Value& value);

}  // namespace tinyshard::jinja
