// Each reason has an entry: when a line was last written about it, and how many came since. Reasons
// are few texts of our own, whoever is refused, so that strangers cannot make the table grow.
#include "transport/tcp/refusals.h"

#include <fmt/format.h>

namespace tinyshard::tcp {

void Refusals::note(std::string_view where, std::string_view who, std::string_view reason,
                    Clock::time_point now) {
  const auto [entry, first] = told_.try_emplace(std::string(reason));
  Told& told = entry->second;
  if (!first && now - told.at < kQuiet) {
    ++told.since;
    return;
  }
  const std::string more = told.since == 0 ? "" : fmt::format("; {} more before it", told.since);
  tell_(fmt::format("{} refuses {}: {}{}", where, who, reason, more));
  told = {now, 0};
}

void Refusals::close(std::string_view where) {
  for (auto& [reason, told] : told_) {
    if (told.since != 0) tell_(fmt::format("{} refused {} more: {}", where, told.since, reason));
    told.since = 0;
  }
}

}  // namespace tinyshard::tcp
