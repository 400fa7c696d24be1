// A runtime part holds memory, programs or communicators of the runtime, and may outlive it.
#pragma once

namespace tinyshard {

// Gives back what it holds when the runtime ends, and is of no use from then on. Threads: the end
// of the runtime is told by the thread that ends it, while no other thread uses the library.
class RuntimePart {
 public:
  RuntimePart() = default;
  RuntimePart(const RuntimePart&) = delete;
  RuntimePart& operator=(const RuntimePart&) = delete;
  virtual ~RuntimePart() { leave_runtime(); }

  // Whether the runtime that it was part of has ended.
  bool is_lost() const { return lost_; }
  // Tells all that are part of the runtime that it ends.
  static void end_all() noexcept;

 protected:
  // From here on part of the runtime. May be called again.
  void join_runtime();
  void leave_runtime() noexcept;
  // Gives back what it holds.
  virtual void runtime_ends() noexcept = 0;

 private:
  RuntimePart *before_ = nullptr, *after_ = nullptr;  // in the list of all
  bool joined_ = false, lost_ = false;
};

}  // namespace tinyshard
