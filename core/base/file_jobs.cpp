// Threads take the next job by one counter. The first error moves the counter to the end, so that
// nobody begins another job, and is thrown after all have stopped. The caller works as well, and it
// alone tells of progress; if no more threads can be made, it does the rest.
#include "core/base/file_jobs.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <pthread.h>
#include <thread>
#include <vector>

#include "core/base/signals.h"

namespace tinyshard {
namespace {

constexpr size_t kMostThreads = 16;

}  // namespace

void run_file_jobs(size_t count, const FileJob& job,
                   const std::function<void(int64_t bytes)>& moved) {
  std::atomic<size_t> next{0};
  std::atomic<int64_t> bytes{0};
  std::mutex mutex;
  std::exception_ptr problem;
  auto take = [&] {
    const size_t i = next.fetch_add(1);
    if (i < count && job.start) job.start(i);
    return i;
  };
  auto work = [&](bool tells) {
    try {
      for (size_t i = take(); i < count;) {
        // A job without a first half is taken by a thread that is free for it.
        const size_t ahead = job.start ? take() : count;
        bytes += job.end(i);
        if (tells && moved) moved(bytes.load());
        i = job.start ? ahead : take();
      }
    } catch (...) {
      next = count;
      const std::lock_guard lock(mutex);
      if (!problem) problem = std::current_exception();
    }
  };
  // Two at least: one reads while the other waits for the disk.
  const size_t cores = std::max<size_t>(2, std::thread::hardware_concurrency());
  const size_t threads = std::min({count, cores, kMostThreads});
  std::vector<std::thread> others;
  others.reserve(threads);
  try {
    const HeldSignals held;  // signals are for the program's own threads
    for (size_t i = 1; i < threads; ++i) {
      others.emplace_back(work, false);
      ::pthread_setname_np(others.back().native_handle(), "ts-files");
    }
  } catch (const std::system_error&) {  // NOLINT(bugprone-empty-catch)
    // No more threads are to be had: those that there are do the work.
  }
  work(true);
  for (std::thread& thread : others) thread.join();
  if (problem) std::rethrow_exception(problem);
  if (moved) moved(bytes.load());
}

void run_file_jobs(size_t count, const std::function<int64_t(size_t)>& run,
                   const std::function<void(int64_t bytes)>& moved) {
  run_file_jobs(count, FileJob{{}, run}, moved);
}

}  // namespace tinyshard
