// Which public method is running, so that a mistake found anywhere below it is told in its name and
// with the caller's line: "matmul: inner sizes differ: ...  (train.cpp:21)". The outermost wins.
#pragma once
#include <cstdint>
#include <source_location>
#include <string>

#include "core/base/origin.h"

namespace tinyshard {

class Call {
 public:
  explicit Call(const char* op) : Call(op, nullptr) {}
  Call(const char* op, const std::source_location& caller) : Call(op, &caller) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 private:
  Call(const char* op, const std::source_location* caller);
  const bool outermost_;
};

// The name of the running call, null outside of any; its number, another for each.
const char* running_call();
uint64_t running_call_number();

// The line that the running call was made from; 0 where no public method runs.
OriginId origin_of_call();

// A text as an error of the running call: its name in front, the caller's line behind.
std::string told_of_call(const std::string& text);

// Throws the UserError of the running call.
[[noreturn]] void fail(const std::string& text);

}  // namespace tinyshard
