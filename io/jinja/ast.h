// The tree of a template.
#pragma once
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/jinja/value.h"

namespace tinyshard::jinja {

struct Expression;
using ExpressionPtr = std::shared_ptr<Expression>;  // a < b < c has b twice

struct Expression {
  enum Kind {
    Constant,   // value
    Name,       // name
    ListOf,     // items
    DictOf,     // items: key, value, key, value...
    Attribute,  // items[0].name
    Item,       // items[0][items[1]]
    SliceOf,    // items[0][items[1]:items[2]:items[3]], each of which may be missing
    Call,       // items[0](arguments)
    Filter,     // items[0] | name(arguments)
    Test,       // items[0] is name(arguments)
    Unary,      // name items[0]: "not", "-", "+"
    Binary,     // items[0] name items[1]
    Choice,     // items[1] if items[0] else items[2], which may be missing
  } kind = Constant;
  std::string name;
  Value value;
  std::vector<ExpressionPtr> items;
  std::vector<ExpressionPtr> arguments;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
};

struct Statement;
using Body = std::vector<Statement>;

struct Statement {
  enum Kind {
    Text,
    Print,
    If,
    For,
    Set,
    SetBlock,
    Macro,
    FilterBlock,
    Break,
    Continue
  } kind = Text;
  size_t line = 1;
  std::string text;                // of a Text; the name of a Macro
  ExpressionPtr expression;        // printed, tested, visited, assigned; a filter of an empty name
  ExpressionPtr condition;         // of a For
  std::vector<std::string> names;  // that a For or a Set gives values; parameters of a Macro
  std::string field;               // of {% set names[0].field = ... %}
  std::vector<ExpressionPtr> defaults;  // of a Macro, as many as it has names; some are missing
  Body body, otherwise;
};

// The name by which a filter of a block finds the block's text.
inline constexpr const char* kBlockText = " text";

// UserError where a source is no template.
Body parse_template(std::string_view source);

}  // namespace tinyshard::jinja
