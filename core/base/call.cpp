#include "core/base/call.h"

#include <string_view>

#include <fmt/format.h>

#include "core/base/error.h"

namespace tinyshard {
namespace {

struct Running {
  const char* op = nullptr;
  std::string_view file;
  unsigned line = 0;
};
thread_local Running running;

}  // namespace

Call::Call(const char* op, const std::source_location* caller) : outermost_(running.op == nullptr) {
  if (!outermost_) return;
  running.op = op;
  if (caller) running.file = caller->file_name(), running.line = caller->line();
}

Call::~Call() {
  if (outermost_) running = {};
}

void fail(const std::string& text) {
  std::string message = running.op ? fmt::format("{}: {}", running.op, text) : text;
  if (!running.file.empty()) {
    std::string_view file = running.file.substr(running.file.find_last_of('/') + 1);
    message += fmt::format("  ({}:{})", file, running.line);
  }
  throw UserError(message);
}

}  // namespace tinyshard
