// True if a sanitizer watches the tests: measurements of time or memory have other bounds then, and tests that repeat
// themselves to be sure of values repeat themselves less.
#pragma once

namespace tinyshard::test {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The thread sanitizer ends a child of fork() that starts threads.
#if defined(__SANITIZE_THREAD__)
inline constexpr bool kForksCompute = false;
#else
inline constexpr bool kForksCompute = true;
#endif

}  // namespace tinyshard::test
