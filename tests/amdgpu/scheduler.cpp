// Queues tasks and draws the next.
#include "tests/amdgpu/scheduler.h"

#include <algorithm>
#include <utility>

namespace amdgpu_emulator {

Scheduler::~Scheduler() { drop(); }

std::shared_ptr<Signal> Scheduler::add(std::function<void()> work,
                                       const std::vector<std::shared_ptr<Signal>>& waits) {
  auto task = std::make_unique<Task>();
  task->work = std::move(work);
  for (const auto& signal : waits) {
    if (signal != nullptr && !signal->done) {
      signal->waiters.push_back(task.get());
      ++task->missing;
    }
  }
  if (task->missing == 0) {
    ready_.push_back(task.get());
  }
  all_.push_back(task.get());
  return task.release()->finished;
}

void Scheduler::finish(Task* task) {
  const std::unique_ptr<Task> owned(task);
  task->finished->done = true;
  task->finished->when = std::chrono::steady_clock::now();
  for (Task* waiter : task->finished->waiters) {
    if (--waiter->missing == 0) {
      ready_.push_back(waiter);
    }
  }
  task->finished->waiters.clear();
  std::erase(all_, task);
}

bool Scheduler::run_one() {
  if (ready_.empty()) {
    return false;
  }
  std::swap(ready_[random_() % ready_.size()], ready_.back());
  Task* task = ready_.back();
  ready_.pop_back();
  try {
    task->work();
  } catch (...) {
    finish(task);
    throw;
  }
  finish(task);
  return true;
}

void Scheduler::drop() {
  for (Task* task : all_) {
    task->finished->done = true;
    task->finished->waiters.clear();
    delete task;
  }
  all_.clear();
  ready_.clear();
}

}  // namespace amdgpu_emulator
