// Writes a plan's record (plan_record.h) as a piece of HTML.
#pragma once
#include <string>
#include <string_view>

namespace tinyshard {

// Returns a <div> with its own style and without scripts; of an empty record, one that says that there
// is nothing to do. Texts of the record are escaped.
std::string plan_html(std::string_view record);

}  // namespace tinyshard
