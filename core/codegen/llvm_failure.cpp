#include "core/codegen/llvm_failure.h"

#include <mutex>

#include <llvm/Support/ErrorHandling.h>

namespace tinyshard::codegen {
namespace {

thread_local bool catching = false;

// Where it returns LLVM ends the process.
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
  work();
}

}  // namespace tinyshard::codegen
