// The outermost public method of each thread. x.argsort() calls x.sort(): a mistake that is found in
// sort() is told as one of argsort(), with the line that called it.
#include "core/base/call.h"

#include <string_view>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/thread_local.h"

namespace tinyshard {
namespace {

struct Running {
  const char* op = nullptr;
  std::string_view file;
  unsigned line = 0;
  OriginId origin = 0;  // once it was asked for
};
TS_HOT_THREAD_LOCAL Running running;
TS_HOT_THREAD_LOCAL uint64_t number = 0;

}  // namespace

Call::Call(const char* op, const std::source_location* caller) : outermost_(running.op == nullptr) {
  if (!outermost_) return;
  ++number;
  running.op = op;
  if (caller) running.file = caller->file_name(), running.line = caller->line();
}

Call::~Call() {
  if (outermost_) running = {};
}

const char* running_call() { return running.op; }
uint64_t running_call_number() { return number; }

OriginId origin_of_call() {
  if (running.origin == 0 && running.op) {
    running.origin = origin_at(running.op, running.file, running.line);
  }
  return running.origin;
}

std::string told_of_call(const std::string& text) {
  std::string message = running.op ? fmt::format("{}: {}", running.op, text) : text;
  if (!running.file.empty()) {
    std::string_view file = running.file.substr(running.file.find_last_of('/') + 1);
    message += fmt::format("  ({}:{})", file, running.line);
  }
  return message;
}

void fail(const std::string& text) { throw UserError(told_of_call(text)); }

}  // namespace tinyshard
