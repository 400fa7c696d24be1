// Keeps each replacement that a rule of a RuleSet makes, for whoever shows what rules did
// (core/exec/plan_record.h). Without a log a replacement costs a load.
//
// Threads: a log belongs to the thread that made it, and hears of what that thread rewrites.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

class RuleLog {
 public:
  struct Entry {
    std::string rule;
    UOp node, by;
  };
  // Keeps so many, and counts the others.
  explicit RuleLog(size_t most);
  ~RuleLog();
  RuleLog(const RuleLog&) = delete;
  RuleLog& operator=(const RuleLog&) = delete;

  static void note(std::string_view rule, const UOp& node, const UOp& by) {
    if (innermost != nullptr) innermost->add(rule, node, by);
  }
  // Returns what came since the last call.
  std::vector<Entry> take() { return std::exchange(entries_, {}); }
  size_t left_out() const { return left_out_; }

 private:
  void add(std::string_view rule, const UOp& node, const UOp& by);
  static constinit thread_local RuleLog* innermost;

  const size_t most_;
  size_t kept_ = 0, left_out_ = 0;
  std::vector<Entry> entries_;
  RuleLog* outer_;
};

}  // namespace tinyshard
