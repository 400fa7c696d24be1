// Many independent pieces of reading or writing files, done by a few threads at once: a disk
// answers several large requests faster than one, and copying out of the page cache takes a core
// each.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>

namespace tinyshard {

// How far a load or a save is: bytes of this process, done and in all. Called by the thread that
// loads or saves, again and again.
using ByteProgress = std::function<void(int64_t done, int64_t total)>;

// run(i) for each i < count, which returns the bytes that it moved; by the calling thread and
// others. The first exception ends the work and is thrown here.
void run_file_jobs(size_t count, const std::function<int64_t(size_t)>& run,
                   const std::function<void(int64_t bytes)>& moved = {});

// The same of jobs in two halves: each thread starts its next job before it ends the one before, so
// that what a device was asked for in the first half comes meanwhile. After an exception some jobs
// may have started that do not end.
struct FileJob {
  std::function<void(size_t)> start;
  std::function<int64_t(size_t)> end;
};
void run_file_jobs(size_t count, const FileJob& job,
                   const std::function<void(int64_t bytes)>& moved = {});

}  // namespace tinyshard
