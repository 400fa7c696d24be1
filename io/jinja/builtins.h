// Functions, filters, tests and methods of templates.
#pragma once
#include <string>
#include <vector>

#include "io/jinja/value.h"

namespace tinyshard::jinja {

// namespace(), range(), dict(), raise_exception(), strftime_now().
Dict global_functions();

// value | name(arguments): the value is the first argument.
Value filter(const std::string& name, const Arguments& arguments);
bool test(const std::string& name, const Arguments& arguments);

// value.name(arguments). Returns a function, undefined where the value's type has no such method.
Value method(const Value& value, const std::string& name);
// value.name: a method, else an entry of a dict.
Value attribute(const Value& value, const std::string& name);
// value[key]; undefined where there is none.
Value item(const Value& value, const Value& key);
Value slice(const Value& value, const Value& begin, const Value& end, const Value& step);

Value binary(const std::string& op, const Value& a, const Value& b);
bool contains(const Value& whole, const Value& part);

}  // namespace tinyshard::jinja
