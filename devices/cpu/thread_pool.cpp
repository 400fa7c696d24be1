// Each thread owns a range of chunks, as two halves of one atomic number. Of 8 chunks on 3 threads:
//
//   owned by      0 1 2 | 3 4 5 | 6 7
//   thread 2      takes 6, 7 from the front of its own, then 2 from the back of thread 0's
//
// A thread takes a chunk by one exchange, so that the chunk is run once whoever comes first; what the chunks hold does not
// depend on who runs them.
#include "devices/cpu/thread_pool.h"

#include <chrono>
#include <cmath>
#include <fstream>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/core.h>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/signals.h"

namespace tinyshard {
namespace {

// The pool and thread index whose chunk this thread is executing: makes nested calls run inline.
struct Current {
  const ThreadPool* pool = nullptr;
  int thread = 0;
};
thread_local Current current;

class EnterPool {
 public:
  EnterPool(const ThreadPool* pool, int thread) : saved_(current) { current = {pool, thread}; }
  ~EnterPool() { current = saved_; }
  EnterPool(const EnterPool&) = delete;
  EnterPool& operator=(const EnterPool&) = delete;

 private:
  Current saved_;
};

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins until `done` or for about `us` microseconds; the clock is read rarely as it costs as much
// as many polls.
template <class Done>
bool spin_until(Done done, int us) {
  using Clock = std::chrono::steady_clock;
  auto deadline = Clock::time_point{};
  while (true) {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
    auto now = Clock::now();
    if (deadline == Clock::time_point{}) deadline = now + std::chrono::microseconds(us);
    if (now >= deadline) return done();
  }
}

constexpr uint64_t pack(int begin, int end) {
  return (uint64_t{static_cast<uint32_t>(begin)} << 32) | static_cast<uint32_t>(end);
}

// Takes one chunk, or returns -1. Acquire: a successful exchange makes the job's fields visible.
int take(std::atomic<uint64_t>& range, bool front) {
  uint64_t value = range.load(std::memory_order_relaxed);
  while (true) {
    int begin = static_cast<int>(value >> 32), end = static_cast<int>(value & 0xffffffffu);
    if (begin >= end) return -1;
    uint64_t rest = front ? pack(begin + 1, end) : pack(begin, end - 1);
    if (range.compare_exchange_weak(value, rest, std::memory_order_acq_rel,
                                    std::memory_order_relaxed))
      return front ? begin : end - 1;
  }
}

// Keeps the workers of a parent, which a child can neither join nor destroy.
void abandon(std::vector<std::thread>& workers) {
  static auto& kept = *new std::vector<std::vector<std::thread>>;
  kept.push_back(std::exchange(workers, {}));
}

}  // namespace

ThreadPool::ThreadPool(const ThreadPoolOptions& options)
    : threads_(options.threads),
      spin_us_(options.spin_us),
      name_(options.name),
      forks_(times_forked()) {
  if (threads_ < 1 || threads_ > 4096)
    throw UserError(fmt::format("a thread pool has 1 to 4096 threads, not {}", threads_));
  slots_ = std::make_unique<Slot[]>(static_cast<size_t>(threads_));
  start();
}

void ThreadPool::start() {
  const HeldSignals held;  // signals are for the program's own threads
  workers_.reserve(static_cast<size_t>(threads_ - 1));
  try {
    for (int t = 1; t < threads_; ++t) {
      workers_.emplace_back([this, t] { work(t); });
      std::string name = fmt::format("{}/{}", name_, t).substr(0, 15);
      pthread_setname_np(workers_.back().native_handle(), name.c_str());
    }
  } catch (const std::system_error& e) {
    size_t started = workers_.size();
    stop();
    throw DeviceError(
        fmt::format("could not start worker {} of {} ({})", started + 1, threads_ - 1, e.what()));
  }
}

ThreadPool::~ThreadPool() { stop(); }

// Nobody else is here: a child has one thread. The parent's threads cannot be joined, nor may what
// they held when they were left behind be waited for.
void ThreadPool::start_again() {
  abandon(workers_);
  new (&call_mutex_) std::mutex;
  new (&error_mutex_) std::mutex;
  for (int t = 0; t < threads_; ++t) slots_[t].range.store(0);
  epoch_.store(0);
  remaining_.store(0);
  error_ = nullptr;
  forks_.store(times_forked());
  start();
}

void ThreadPool::stop() {
  if (forks_.load() != times_forked()) {  // the workers are the parent's
    abandon(workers_);
    return;
  }
  {
    std::lock_guard lock(call_mutex_);
    stop_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }
  for (auto& worker : workers_) worker.join();
  workers_.clear();
}

void ThreadPool::run(int n_chunks, ChunkFn fn, void* ctx) {
  if (n_chunks <= 0) return;
  if (current.pool == this) return run_inline(n_chunks, fn, ctx, current.thread);
  if (forks_.load(std::memory_order_relaxed) != times_forked()) start_again();

  std::lock_guard lock(call_mutex_);
  EnterPool enter(this, 0);
  if (n_chunks == 1 || threads_ == 1) return run_inline(n_chunks, fn, ctx, 0);

  fn_ = fn;
  ctx_ = ctx;
  remaining_.store(n_chunks, std::memory_order_relaxed);
  for (int t = 0; t < threads_; ++t) {
    auto begin = static_cast<int>(part_begin(n_chunks, threads_, t));
    auto end = static_cast<int>(part_begin(n_chunks, threads_, t + 1));
    slots_[t].range.store(pack(begin, end), std::memory_order_release);
  }
  epoch_.fetch_add(1);
  epoch_.notify_all();

  execute(0);
  auto done = [this] { return remaining_.load(std::memory_order_acquire) == 0; };
  if (!spin_until(done, spin_us_)) {
    for (int left; (left = remaining_.load(std::memory_order_acquire)) != 0;)
      remaining_.wait(left, std::memory_order_acquire);
  }
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void ThreadPool::run_inline(int n_chunks, ChunkFn fn, void* ctx, int thread) {
  std::exception_ptr error;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    try {
      fn(ctx, chunk, thread);
    } catch (...) {
      if (!error) error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
}

void ThreadPool::work(int thread) {
  EnterPool enter(this, thread);
  int seen = 0;
  while (true) {
    auto called = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(called, spin_us_)) epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load(std::memory_order_relaxed)) return;
    execute(thread);
  }
}

// A worker may arrive late, when the call it woke for is over and another is on: it then simply
// takes chunks of that one, since the job's fields are read after a chunk is taken.
void ThreadPool::execute(int thread) {
  for (int chunk; (chunk = take(slots_[thread].range, true)) >= 0;) execute_chunk(chunk, thread);
  for (int i = 1; i < threads_; ++i) {
    auto& other = slots_[(thread + i) % threads_].range;
    for (int chunk; (chunk = take(other, false)) >= 0;) execute_chunk(chunk, thread);
  }
}

void ThreadPool::execute_chunk(int chunk, int thread) {
  try {
    fn_(ctx_, chunk, thread);
  } catch (...) {
    std::lock_guard lock(error_mutex_);
    if (!error_ || chunk < error_chunk_) {
      error_ = std::current_exception();
      error_chunk_ = chunk;
    }
  }
  // The last of the workers' notifications may come after the caller has gone on; harmless, as
  // every wait looks at its value again, and the pool outlives its workers.
  if (remaining_.fetch_sub(1, std::memory_order_acq_rel) == 1 && thread != 0)
    remaining_.notify_one();
}

namespace {

// CPU quota in cores of one control group folder; no limit gives infinity.
double quota_in(const std::string& folder) {
  constexpr double kNone = INFINITY;
  std::string quota;
  double period = 0;
  if (std::ifstream v2(folder + "/cpu.max"); v2 >> quota >> period)
    return quota == "max" || period <= 0 ? kNone : std::strtod(quota.c_str(), nullptr) / period;
  double us = -1;
  std::ifstream v1_quota(folder + "/cpu.cfs_quota_us"), v1_period(folder + "/cpu.cfs_period_us");
  if (v1_quota >> us && v1_period >> period && us > 0 && period > 0) return us / period;
  return kNone;
}

// The smallest quota from this process's control group up to the root, for both cgroup versions.
double cgroup_quota() {
  double least = INFINITY;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    std::string root = "/sys/fs/cgroup";
    if (!controllers.empty()) {
      if ((',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
      root += "/cpu";
    }
    while (true) {
      least = std::min(least, quota_in(root + path));
      if (path.empty()) break;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return least;
}

}  // namespace

int available_cores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  // A fixed cpu_set_t holds 1024 CPUs; larger machines refuse it, so the set grows until it fits.
  for (int size = CPU_SETSIZE; size <= (1 << 20); size *= 2) {
    std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(size),
                                                         [](cpu_set_t* s) { CPU_FREE(s); });
    if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(size), set.get()) == 0) {
      cores = CPU_COUNT_S(CPU_ALLOC_SIZE(size), set.get());
      break;
    }
  }
  double quota = cgroup_quota();
  if (quota < cores) cores = static_cast<int>(std::ceil(quota));
  return std::max(cores, 1);
}

int default_thread_count(int local_ranks, int override_threads) {
  if (override_threads > 0) return override_threads;
  return std::max(available_cores() / std::max(local_ranks, 1), 1);
}

}  // namespace tinyshard
