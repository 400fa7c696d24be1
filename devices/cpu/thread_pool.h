// The CPU device's threads. One pool per process serves every CPU:n; kernels, library calls and
// copies all run on it, so no second team of threads ever competes for the cores.
// A call splits work into numbered chunks and returns when all are done. Which chunk holds which
// part of the work never depends on timing, so results are the same bits on every run; only the
// thread that executes a chunk may vary (an idle thread takes a chunk whose owner has not begun).
// Workers spin briefly after a call, then sleep until the next one. A child of fork() starts
// workers of its own at its first call.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace tinyshard {

struct ThreadPoolOptions {
  int threads = 1;              // the caller of run() is one of them
  int spin_us = 80;             // a worker stays awake this long after its last chunk
  std::string name = "ts-cpu";  // worker t is named "ts-cpu/t" (15 characters at most)
};

class ThreadPool {
 public:
  // Executes chunk `chunk` on thread `thread` (0 <= thread < threads(), 0 is the caller). At any
  // moment at most one chunk runs per thread index, so per-thread scratch may be indexed by it.
  using ChunkFn = void (*)(void* ctx, int chunk, int thread);

  explicit ThreadPool(int threads) : ThreadPool(ThreadPoolOptions{.threads = threads}) {}
  explicit ThreadPool(const ThreadPoolOptions& options);
  ~ThreadPool();  // waits for a running call, then joins the workers
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Runs fn(ctx, c, t) for every c in [0, n_chunks) and returns when all are done. Thread t first
  // takes the t-th contiguous part of the chunks. No heap allocation. From inside a chunk of this
  // pool the call runs inline on the same thread. Calls from several threads run one after another.
  // If chunks throw, the others still run, and the exception of the lowest one is rethrown.
  void run(int n_chunks, ChunkFn fn, void* ctx);

  // body(begin, end, thread) over min(threads(), n / grain) contiguous parts of [0, n); the parts
  // depend on n, grain and threads() only.
  template <class Body>
  void parallel_for(int64_t n, Body&& body, int64_t grain = 1) {
    if (n <= 0) return;
    struct Context {
      std::remove_reference_t<Body>* body;
      int64_t n, parts;
    } context{&body, n, std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, threads())};
    auto call = [](void* ctx, int chunk, int thread) {
      auto& c = *static_cast<Context*>(ctx);
      (*c.body)(part_begin(c.n, c.parts, chunk), part_begin(c.n, c.parts, chunk + 1), thread);
    };
    run(static_cast<int>(context.parts), call, &context);
  }

  // First element of part `part` when [0, n) is cut into `parts` contiguous parts.
  static int64_t part_begin(int64_t n, int64_t parts, int64_t part) {
    return n / parts * part + std::min(part, n % parts);
  }

 private:
  // Chunks [begin, end) that thread t owns and nobody has begun, packed so that one exchange takes
  // a chunk: the owner from the front, an idle thread from the back.
  struct alignas(64) Slot {
    std::atomic<uint64_t> range{0};
  };

  void work(int thread);
  void start();
  void stop();
  void start_again();  // in a child of fork(), where the workers are the parent's
  void execute(int thread);
  void execute_chunk(int chunk, int thread);
  void run_inline(int n_chunks, ChunkFn fn, void* ctx, int thread);

  // Job of the current call. Written before the slots are published, read after a chunk is claimed.
  ChunkFn fn_ = nullptr;
  void* ctx_ = nullptr;
  std::mutex call_mutex_;  // one call at a time

  std::unique_ptr<Slot[]> slots_;
  const int threads_;
  const int spin_us_;
  const std::string name_;
  std::atomic<int> forks_;                     // before the workers were started
  alignas(64) std::atomic<int> epoch_{0};      // grows with each call; workers wait on it
  alignas(64) std::atomic<int> remaining_{0};  // chunks not finished; the caller waits on it
  std::atomic<bool> stop_{false};

  std::mutex error_mutex_;
  std::exception_ptr error_;  // of the lowest chunk that threw in this call
  int error_chunk_ = 0;
  std::vector<std::thread> workers_;
};

// Threads for a process: `override_threads` if positive (TS_THREADS), else the cores that this
// process may use (affinity mask and cgroup quota) divided by the ranks that share them, at
// least 1. Ranks that mpirun bound to cores of their own share nothing: pass 1 for those.
int default_thread_count(int local_ranks = 1, int override_threads = 0);
// Cores that this process may use: affinity mask, capped by the cgroup CPU quota rounded up.
int available_cores();

}  // namespace tinyshard
