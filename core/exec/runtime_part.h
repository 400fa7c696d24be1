// A runtime part holds memory, programs or communicators of the context, and may outlive them.
#pragma once
#include <atomic>
#include <mutex>

namespace tinyshard {

class RuntimePart;

// The table of the parts of one context.
class RuntimeParts {
 public:
  // Tells all parts that the context's epoch ends: each gives back what it holds and is lost. Their
  // own threads are kept off by the caller (Context::shutdown).
  void end_all() noexcept;

 private:
  friend class RuntimePart;
  std::mutex mutex_;
  RuntimePart* first_ = nullptr;
};

// Gives back what it holds when the epoch ends, and is of no use from then on. Threads: whoever uses
// what a part holds, or destroys the part, is in a Context::Use for that time.
class RuntimePart {
 public:
  RuntimePart() = default;
  RuntimePart(const RuntimePart&) = delete;
  RuntimePart& operator=(const RuntimePart&) = delete;
  virtual ~RuntimePart() { leave_runtime(); }

  // Tells whether the epoch that it was part of has ended.
  bool is_lost() const { return lost_.load(std::memory_order_relaxed); }

 protected:
  // Becomes a part of the context's epoch. May be called again.
  void join_runtime();
  void leave_runtime() noexcept;
  // Gives back what it holds.
  virtual void runtime_ends() noexcept = 0;

 private:
  friend class RuntimeParts;
  RuntimePart *before_ = nullptr, *after_ = nullptr;  // in the table
  bool joined_ = false;
  std::atomic<bool> lost_ = false;
};

}  // namespace tinyshard
