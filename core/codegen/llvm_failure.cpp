// LLVM reports such code to a handler which may not return. The handler throws, through LLVM's
// frames, if this thread has asked for that, and returns else, whereupon LLVM ends the process.
#include "core/codegen/llvm_failure.h"

#include <mutex>

#include <llvm/Support/ErrorHandling.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

namespace tinyshard::codegen {
namespace {

// Nobody owns what LLVM has allocated when it gives up; a sanitizer should not call it a leak.
#if defined(__SANITIZE_ADDRESS__)
using Unaccounted = __lsan::ScopedDisabler;
#else
struct Unaccounted {};
#endif

thread_local bool catching = false;

// LLVM calls this when it gives up. If it returned, LLVM would end the process.
void on_failure(void*, const char* reason, bool) {
  if (catching) throw LlvmFailure(reason);
}

class Catching {
 public:
  Catching() { catching = true; }
  ~Catching() { catching = false; }
  Catching(const Catching&) = delete;
  Catching& operator=(const Catching&) = delete;
};

}  // namespace

void with_llvm_failures(const std::function<void()>& work) {
  static std::once_flag once;
  std::call_once(once, [] { llvm::install_fatal_error_handler(on_failure); });
  const Catching now;
  [[maybe_unused]] const Unaccounted memory;
  work();
}

}  // namespace tinyshard::codegen
