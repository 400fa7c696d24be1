#include "core/exec/file_jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

namespace tinyshard {
namespace {

constexpr size_t kMostThreads = 8;

}  // namespace

void run_file_jobs(size_t count, const std::function<int64_t(size_t)>& run,
                   const std::function<void(int64_t bytes)>& moved) {
  std::atomic<size_t> next{0};
  std::atomic<int64_t> bytes{0};
  std::mutex mutex;
  std::exception_ptr problem;
  auto work = [&](bool tells) {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        bytes += run(i);
        if (tells && moved) moved(bytes.load());
      } catch (...) {
        next = count;
        const std::lock_guard lock(mutex);
        if (!problem) problem = std::current_exception();
      }
    }
  };
  // Two at least: one reads while the other waits for the disk.
  const size_t cores = std::max<size_t>(2, std::thread::hardware_concurrency());
  const size_t threads = std::min({count, cores, kMostThreads});
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    for (size_t i = 1; i < threads; ++i) {
      others.emplace_back(work, false);
      ::pthread_setname_np(others.back().native_handle(), "ts-files");
    }
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do the work.
  }
  work(true);
  for (std::thread& thread : others) thread.join();
  if (problem) std::rethrow_exception(problem);
  if (moved) moved(bytes.load());
}

}  // namespace tinyshard
