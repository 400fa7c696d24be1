// The log of a thread is found by a pointer of the thread, as rules are applied in many passes that need
// not know of records.
#include "core/rewrite/rule_log.h"

namespace tinyshard {

constinit thread_local RuleLog* RuleLog::innermost = nullptr;

RuleLog::RuleLog(size_t most) : most_(most), outer_(std::exchange(innermost, this)) {}
RuleLog::~RuleLog() { innermost = outer_; }

void RuleLog::add(std::string_view rule, const UOp& node, const UOp& by) {
  if (kept_ >= most_) {
    ++left_out_;
    return;
  }
  ++kept_;
  entries_.push_back({std::string(rule), node, by});
}

}  // namespace tinyshard
