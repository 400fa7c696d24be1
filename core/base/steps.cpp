// TS_DISABLE_PASSES=epilogues,reuse: splits the names, finds a step among them, and says of a name
// that no step has which one is nearest.
#include "core/base/steps.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/words.h"

namespace tinyshard {
namespace {

std::vector<std::string_view> disabled_names() {
  std::vector<std::string_view> names;
  for (std::string_view rest = options().disabled_passes; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    if (!name.empty()) names.push_back(name);
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return names;
}

std::string text_of_optional(std::span<const StepName> known) {
  std::string text;
  for (const StepName& step : known) {
    if (!step.required) text += fmt::format("{}{}", text.empty() ? "" : ", ", step.name);
  }
  return "These can be left out: " + text;
}

}  // namespace

bool is_disabled(std::string_view name) {
  if (options().disabled_passes.empty()) return false;
  return std::ranges::count(disabled_names(), name) > 0;
}

void check_disabled(std::span<const StepName> known) {
  for (std::string_view name : disabled_names()) {
    auto step = std::ranges::find(known, name, &StepName::name);
    if (step == known.end()) {
      std::vector<std::string_view> names;
      for (const StepName& s : known) names.push_back(s.name);
      throw UserError(
          fmt::format("TS_DISABLE_PASSES: there is no pass or step \"{}\"; did you mean {}? {}",
                      name, nearest_word(name, names), text_of_optional(known)));
    }
    if (step->required)
      throw UserError(fmt::format("TS_DISABLE_PASSES: \"{}\" cannot be left out. {}", name,
                                  text_of_optional(known)));
  }
}

}  // namespace tinyshard
