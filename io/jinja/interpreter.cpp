// Loops and macros have names of their own; {% if %} has not. What a loop sets is gone when it ends,
// which is why templates write to namespaces.
#include "io/jinja/interpreter.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/jinja/builtins.h"

namespace tinyshard::jinja {
namespace {

constexpr int64_t kMaxSteps = 10'000'000;
constexpr int kMaxCalls = 100;

struct Scope {
  const Scope* outer = nullptr;
  Dict names;

  void set(const std::string& name, Value value) {
    const auto found =
        std::ranges::find_if(names, [&](const auto& e) { return e.first.text() == name; });
    if (found == names.end())
      names.emplace_back(name, std::move(value));
    else
      found->second = std::move(value);
  }
  Value get(const std::string& name) const {
    for (const Scope* scope = this; scope; scope = scope->outer) {
      for (const auto& [known, value] : scope->names) {
        if (known.text() == name) return value;
      }
    }
    return {};
  }
};

enum class Flow { Goes, Breaks, Continues };

class Interpreter {
 public:
  explicit Interpreter(const Dict& values) {
    builtins_.names = global_functions();
    globals_.outer = &builtins_;
    globals_.names = values;
  }

  std::string run(const Body& body) {
    std::string out;
    run(body, globals_, out);
    return out;
  }

 private:
  Flow run(const Body& body, Scope& scope, std::string& out) {
    for (const Statement& statement : body) {
      line_ = statement.line;
      step();
      Flow flow = Flow::Goes;
      try {
        flow = run(statement, scope, out);
      } catch (const UserError& error) {
        if (told_) throw;
        told_ = true;
        throw UserError(fmt::format("line {}: {}", line_, error.what()));
      }
      check_size(out.size());
      if (flow != Flow::Goes) return flow;
    }
    return Flow::Goes;
  }

  Flow run(const Statement& s, Scope& scope, std::string& out) {
    switch (s.kind) {
      case Statement::Text:
        out += s.text;
        break;
      case Statement::Print:
        out += value(*s.expression, scope).str();
        break;
      case Statement::If:
        return run(value(*s.expression, scope).truth() ? s.body : s.otherwise, scope, out);
      case Statement::For:
        run_loop(s, scope, out);
        break;
      case Statement::Set:
        set(s, value(*s.expression, scope), scope);
        break;
      case Statement::SetBlock:
        set(s, filtered(s, scope), scope);
        break;
      case Statement::FilterBlock:
        out += filtered(s, scope).str();
        break;
      case Statement::Macro:
        scope.set(s.text, macro(s));
        break;
      case Statement::Break:
        return Flow::Breaks;
      case Statement::Continue:
        return Flow::Continues;
    }
    return Flow::Goes;
  }

  // Returns the text of a block as its filters leave it.
  Value filtered(const Statement& s, Scope& scope) {
    Scope inner{&scope, {}};
    std::string text;
    run(s.body, inner, text);
    inner.set(kBlockText, std::move(text));
    return value(*s.expression, inner);
  }

  void set(const Statement& s, const Value& made, Scope& scope) {
    if (!s.field.empty()) {
      const Value target = scope.get(s.names[0]);
      if (!target.is_namespace())
        fail(fmt::format("{} is {}, not a namespace", s.names[0], target.type()));
      Dict& fields = target.fields();
      const auto found =
          std::ranges::find_if(fields, [&](const auto& e) { return e.first == Value(s.field); });
      if (found == fields.end())
        fields.emplace_back(s.field, made);
      else
        found->second = made;
      return;
    }
    unpack(s.names, made, scope);
  }

  static void unpack(const std::vector<std::string>& names, const Value& made, Scope& scope) {
    if (names.size() == 1) return scope.set(names[0], made);
    const List parts = elements(made);
    if (parts.size() != names.size())
      fail(fmt::format("{} values for {} names", parts.size(), names.size()));
    for (size_t i = 0; i < names.size(); ++i) scope.set(names[i], parts[i]);
  }

  void run_loop(const Statement& s, Scope& scope, std::string& out) {
    List list = elements(value(*s.expression, scope));
    if (s.condition) {
      std::erase_if(list, [&](const Value& each) {
        Scope inner{&scope, {}};
        unpack(s.names, each, inner);
        return !value(*s.condition, inner).truth();
      });
    }
    if (list.empty()) {
      run(s.otherwise, scope, out);
      return;
    }
    for (size_t i = 0; i < list.size(); ++i) {
      step(10);  // for what the loop knows of itself
      Scope inner{&scope, {}};
      unpack(s.names, list[i], inner);
      inner.set("loop", loop_at(list, i));
      if (run(s.body, inner, out) == Flow::Breaks) break;
    }
  }

  static Value loop_at(const List& list, size_t i) {
    const auto place = static_cast<int64_t>(i), size = static_cast<int64_t>(list.size());
    Dict loop{{"index", place + 1},
              {"index0", place},
              {"revindex", size - place},
              {"revindex0", size - place - 1},
              {"first", place == 0},
              {"last", place + 1 == size},
              {"length", size},
              {"depth", int64_t{1}},
              {"cycle", Function([place](const Arguments& a) -> Value {
                 if (a.positional.empty()) fail("cycle() of nothing");
                 return a.positional[static_cast<size_t>(place) % a.positional.size()];
               })}};
    if (i > 0) loop.emplace_back("previtem", list[i - 1]);
    if (i + 1 < list.size()) loop.emplace_back("nextitem", list[i + 1]);
    return loop;
  }

  void step(int64_t count = 1) {
    if ((steps_ += count) > kMaxSteps) fail("more than ten million steps");
  }

  Value macro(const Statement& s) {
    return Function([this, &s](const Arguments& a) -> Value {
      if (++calls_ > kMaxCalls) fail("macros that call each other without end");
      Scope inner{&globals_, {}};
      for (size_t i = 0; i < s.names.size(); ++i) {
        Value given = a.get(i, s.names[i]);
        if (given.is_undefined() && s.defaults[i]) given = value(*s.defaults[i], inner);
        inner.set(s.names[i], std::move(given));
      }
      std::string out;
      run(s.body, inner, out);
      --calls_;
      return out;
    });
  }

  Arguments arguments(const Expression& e, const Scope& scope) {
    Arguments out;
    for (const ExpressionPtr& each : e.arguments) out.positional.push_back(value(*each, scope));
    for (const auto& [name, each] : e.named) out.named.emplace_back(name, value(*each, scope));
    return out;
  }

  Value value(const Expression& e, const Scope& scope) {
    step();
    const auto operand = [&](size_t i) {
      return i < e.items.size() && e.items[i] ? value(*e.items[i], scope) : Value();
    };
    switch (e.kind) {
      case Expression::Constant:
        return e.value;
      case Expression::Name:
        return scope.get(e.name);
      case Expression::ListOf: {
        List out;
        for (size_t i = 0; i < e.items.size(); ++i) out.push_back(operand(i));
        return out;
      }
      case Expression::DictOf: {
        Dict out;
        for (size_t i = 0; i < e.items.size(); i += 2) out.emplace_back(operand(i), operand(i + 1));
        return out;
      }
      case Expression::Attribute:
        return attribute(operand(0), e.name);
      case Expression::Item:
        return item(operand(0), operand(1));
      case Expression::SliceOf:
        return slice(operand(0), operand(1), operand(2), operand(3));
      case Expression::Call: {
        const Value called = operand(0);
        if (!called.is_function())
          fail(
              fmt::format("{} is {}, which cannot be called", name_of(*e.items[0]), called.type()));
        return called.function()(arguments(e, scope));
      }
      case Expression::Filter:
      case Expression::Test: {
        Arguments with = arguments(e, scope);
        with.positional.insert(with.positional.begin(), operand(0));
        return e.kind == Expression::Filter ? filter(e.name, with) : Value(test(e.name, with));
      }
      case Expression::Unary: {
        const Value x = operand(0);
        if (e.name == "not") return !x.truth();
        return binary(e.name, int64_t{0}, x);
      }
      case Expression::Binary: {
        const Value left = operand(0);
        if (e.name == "and") return left.truth() ? operand(1) : left;
        if (e.name == "or") return left.truth() ? left : operand(1);
        return binary(e.name, left, operand(1));
      }
      case Expression::Choice:
        return operand(0).truth() ? operand(1) : operand(2);
    }
    return {};
  }

  static std::string name_of(const Expression& e) { return e.name.empty() ? "a value" : e.name; }

  Scope builtins_, globals_;
  int64_t steps_ = 0;
  int calls_ = 0;
  size_t line_ = 1;
  bool told_ = false;
};

}  // namespace

std::string run_template(const Body& body, const Dict& values) {
  return Interpreter(values).run(body);
}

}  // namespace tinyshard::jinja
