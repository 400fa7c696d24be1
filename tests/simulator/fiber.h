// A function with a stack of its own that can pause in the middle: a rank of a simulated job. Code
// that waits for its peers runs in it unchanged, and all ranks of a job share one thread.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>

namespace simulator {

class Fiber {
 public:
  // `body` lets no exception out.
  explicit Fiber(std::function<void()> body);
  // It has run to its end by then.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs the body until it pauses or ends. From outside of any fiber.
  void resume();
  // Back to the caller of resume(). From inside of the body.
  void pause();
  bool ended() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace simulator
