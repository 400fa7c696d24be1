// The parts of the page, which view/embed.cmake writes down as text.
#pragma once
#include <string_view>
#include <vector>

namespace tinyshard::view {

extern const std::string_view kPage, kStyle;
extern const std::vector<std::string_view> kScripts;

}  // namespace tinyshard::view
