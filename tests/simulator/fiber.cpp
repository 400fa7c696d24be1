// ucontext begins a fiber. After that jumps switch, which unlike swapcontext make no system call;
// sanitizers, who follow stacks by what they intercept, are given swapcontext throughout. Two things belong to a thread and have to be a fiber's: the exceptions
// that it is handling (a fiber may pause in a catch block), and what the sanitizers know of stacks.
#include "tests/simulator/fiber.h"

#include <csetjmp>
#include <cstdint>
#include <cxxabi.h>
#include <ucontext.h>
#include <utility>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMULATOR_JUMPS 1
#endif

namespace simulator {
namespace {

// Deep enough for a checkpoint's JSON, or an error's text and its unwinding, under a sanitizer.
constexpr size_t kStackBytes = 1 << 20;

// The C++ runtime's state of a thread's exceptions (the Itanium ABI, 2.2.2).
struct Exceptions {
  void* caught = nullptr;
  unsigned int uncaught = 0;

  void swap_with_thread() {
    auto* const now = reinterpret_cast<Exceptions*>(abi::__cxa_get_globals());
    std::swap(caught, now->caught);
    std::swap(uncaught, now->uncaught);
  }
};

using Stack = std::unique_ptr<std::byte[]>;
std::vector<Stack>& unused_stacks() {
  static thread_local std::vector<Stack> stacks;
  return stacks;
}

}  // namespace

struct Fiber::State {
  std::function<void()> body;
  Stack stack;
  ucontext_t own{}, outside{};
  Exceptions exceptions;
  bool ended = false;
#if defined(SIMULATOR_JUMPS)
  jmp_buf own_place{}, outside_place{};
  bool begun = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void *fake_own = nullptr, *fake_outside = nullptr;
  const void* outside_stack = nullptr;
  size_t outside_bytes = 0;
#endif
#if defined(__SANITIZE_THREAD__)
  void *tsan_own = __tsan_create_fiber(0), *tsan_outside = nullptr;
#endif

  void arrived_inside() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake_own, &outside_stack, &outside_bytes);
#endif
  }

  void leave() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(ended ? nullptr : &fake_own, outside_stack, outside_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(tsan_outside, 0);
#endif
#if defined(SIMULATOR_JUMPS)
    if (_setjmp(own_place) == 0) _longjmp(outside_place, 1);
#else
    swapcontext(&own, &outside);
#endif
    arrived_inside();
  }

  void run() {
    arrived_inside();
    body();
    ended = true;
    leave();
  }

  // makecontext hands over ints only.
  static void enter(unsigned int high, unsigned int low) {
    reinterpret_cast<State*>(static_cast<uintptr_t>(high) << 32 | low)->run();
  }
};

Fiber::Fiber(std::function<void()> body) : state_(std::make_unique<State>()) {
  State& state = *state_;
  auto& stacks = unused_stacks();
  if (stacks.empty()) {
    state.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
  } else {
    state.stack = std::move(stacks.back());
    stacks.pop_back();
  }
  state.body = std::move(body);
  getcontext(&state.own);
  state.own.uc_stack.ss_sp = state.stack.get();
  state.own.uc_stack.ss_size = kStackBytes;
  state.own.uc_link = nullptr;
  const auto at = reinterpret_cast<uintptr_t>(&state);
  makecontext(&state.own, reinterpret_cast<void (*)()>(&State::enter), 2,
              static_cast<unsigned int>(at >> 32), static_cast<unsigned int>(at & 0xffffffff));
}

Fiber::~Fiber() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(state_->tsan_own);
#endif
  unused_stacks().push_back(std::move(state_->stack));
}

bool Fiber::ended() const { return state_->ended; }

void Fiber::resume() {
  State& state = *state_;
  state.exceptions.swap_with_thread();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&state.fake_outside, state.stack.get(), kStackBytes);
#endif
#if defined(__SANITIZE_THREAD__)
  state.tsan_outside = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(state.tsan_own, 0);
#endif
#if defined(SIMULATOR_JUMPS)
  if (_setjmp(state.outside_place) == 0) {
    if (state.begun) _longjmp(state.own_place, 1);
    state.begun = true;
    setcontext(&state.own);
  }
#else
  swapcontext(&state.outside, &state.own);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(state.fake_outside, nullptr, nullptr);
#endif
  state.exceptions.swap_with_thread();
}

void Fiber::pause() { state_->leave(); }

}  // namespace simulator
