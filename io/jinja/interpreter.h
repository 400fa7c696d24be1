// Runs a template: makes its text of the values that it is given.
#pragma once
#include <string>

#include "io/jinja/ast.h"

namespace tinyshard::jinja {

// UserError where the template refuses, asks for what is not there, or does not end soon: whatever a
// file holds, its text is at most 64 MiB and takes at most ten million steps.
std::string run_template(const Body& body, const Dict& values);

}  // namespace tinyshard::jinja
