// The mode belongs to the thread, the type of floats to the process. A mode that a trace has set
// itself is marked as such, and looking at it notes nothing: it is the same in every call.
#include "core/exec/scopes.h"

#include <array>
#include <atomic>
#include <cctype>
#include <string>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/options.h"
#include "core/base/thread_local.h"
#include "core/exec/capture.h"

namespace tinyshard::scopes {
namespace {

TS_HOT_THREAD_LOCAL Training mode;
// Reads DEFAULT_FLOAT: a name of ours, or of tinygrad.
DType float_of_option() {
  std::string wanted = options().default_float;
  for (char& c : wanted) c = char(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [type, other, third] :
       std::to_array<std::tuple<DType, const char*, const char*>>(
           {{DType::F32, "float", "float32"},
            {DType::F64, "double", "float64"},
            {DType::F16, "half", "float16"},
            {DType::BF16, "bfloat16", "bfloat"}})) {
    if (wanted == name(type) || wanted == other || wanted == third) return type;
  }
  if (wanted.empty()) return DType::F32;
  fail(
      fmt::format("environment variable DEFAULT_FLOAT=\"{}\" is none of f32, f64, f16 and bf16, "
                  "or FLOAT, DOUBLE, HALF and BFLOAT16",
                  options().default_float));
}

std::atomic<DType>& float_type() {
  static std::atomic<DType> type{float_of_option()};
  return type;
}

}  // namespace

bool training() {
  Capture* trace = mode.within_trace ? nullptr : current_capture();
  if (trace) trace->scopes().training = mode.on;
  return mode.on;
}

Training set_training(bool on) { return std::exchange(mode, {on, current_capture() != nullptr}); }

void restore_training(Training before) { mode = before; }

DType default_float() {
  const DType now = float_type().load(std::memory_order_relaxed);
  if (Capture* trace = current_capture()) trace->scopes().default_float = now;
  return now;
}

void set_default_float(DType dtype) { float_type().store(dtype, std::memory_order_relaxed); }

bool Seen::hold() const {
  return (!training || *training == mode.on) &&
         (!default_float || *default_float == float_type().load(std::memory_order_relaxed));
}

}  // namespace tinyshard::scopes
