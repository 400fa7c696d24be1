// The log that hears of a thread's movements is found by a pointer of the thread, as redistribution is
// called from many strategies that need not know of records.
#include "multi/movement_log.h"

#include "core/base/observer.h"

namespace tinyshard {

constinit thread_local MovementLog* MovementLog::innermost = nullptr;
constinit thread_local int MovementLog::wanted_here = 0;

MovementLog::MovementLog() : wanted_(wanted_here > 0 || records_are_read() != RecordForm::None) {
  if (!wanted_) return;
  outer_ = innermost;
  innermost = this;
}

MovementLog::~MovementLog() {
  if (wanted_) innermost = outer_;
}

void MovementLog::lies(const UOp& x, Sharding where, OriginId origin,
                       std::span<const Decisions::Asked> asked, size_t first) {
  if (!wanted_) return;
  std::vector<WayChoice> choices;
  for (size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].offers.size() < 2) continue;
    const std::vector<std::string>& labels = labels_[first + i];
    WayChoice choice{.options = {}, .taken = asked[i].taken};
    for (size_t o = 0; o < asked[i].offers.size(); ++o)
      choice.options.push_back({o < labels.size() ? labels[o] : "", asked[i].offers[o]});
    choices.push_back(std::move(choice));
  }
  values_.push_back({x, std::move(where), origin, std::move(choices)});
}

}  // namespace tinyshard
