// Code for which LLVM finds no instructions. It would end the process; here that is an exception.
#pragma once
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

namespace tinyshard::codegen {

// With LLVM's words, such as "Cannot select: v4i64 = zero_extend_vector_inreg ...".
struct LlvmFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Calls `work`, which throws LlvmFailure where LLVM gives up. The exception comes through functions of
// LLVM that free nothing then: what they worked on is left behind.
void with_llvm_failures(const std::function<void()>& work);

// Keeps for good what is neither whole nor may be destroyed.
template <class T>
void left_behind(std::unique_ptr<T> x) {
  static std::mutex mutex;
  static auto& all = *new std::vector<std::unique_ptr<T>>;
  const std::lock_guard lock(mutex);
  all.push_back(std::move(x));
}

}  // namespace tinyshard::codegen
