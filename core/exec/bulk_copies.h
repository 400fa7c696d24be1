// Many copies between the host and the memories of devices, beside each other: from files or the
// host's memory to devices (copy_in), and from devices to whoever takes the bytes (BoxReader). Boxes
// are cut into stretches of up to 4 MiB, which a few threads move (core/base/file_jobs.h):
//
//   device in reach of the host      read or copied straight into its place
//   device with copies of its own    read into a locked page, which the device takes by itself while
//                                    the thread reads the next one
//
// so that all devices of a process get their bytes at once, and no more than the pages is held.
#pragma once
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/base/file_jobs.h"
#include "core/base/origin.h"
#include "core/exec/box_rows.h"
#include "core/exec/file_buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/host_copies.h"

namespace tinyshard {

// Batches of the devices that have copies of their own, and a lock for each of the others.
class CopyQueues {
 public:
  void add(Device& device);
  void end();
  CopyBatch* batch(Device& device) const;
  std::mutex& mutex(Device& device) { return queues_.at(&device).mutex; }

 private:
  struct Queue {
    std::unique_ptr<CopyBatch> batch;
    std::mutex mutex;
  };
  std::map<Device*, Queue> queues_;
};

// A box of an array in a file or, without one, in memory of the host, for devices that all get the
// same.
struct BoxIn {
  const FileRegion* file = nullptr;
  uint64_t file_begin = 0;  // of the array, in the region
  const std::byte* host = nullptr;
  OriginId origin = 0;  // of who asked for it, for errors
  BoxRows rows;
  size_t room = 0;  // bytes of the memory of each target; those that the box leaves read as zero
  struct Target {
    Device* device;
    void* memory;
  };
  std::vector<Target> targets;
};
// Devices hold all of it for what they are told from now on. Rows of less than 2 KiB that lie close
// together in a file are read with what is between them. IoError names the file and the line.
void copy_in(std::span<const BoxIn> boxes, const ByteProgress& progress = {});
// Brings one box in by this thread alone, on queues that other threads use as well. The copies may
// end later.
void copy_in(const BoxIn& box, CopyQueues& queues);
// Says that the targets' memory will be written to, and clears it where the box does not fill it.
void prepare_targets(const BoxIn& box);

// Boxes that devices hold: `rows` say where each byte of a box lies in the device's memory.
class BoxReader {
 public:
  struct Box {
    Device* device;
    const void* memory;
    BoxRows rows;
  };
  // Reads what the devices hold when all that they were told so far is done.
  explicit BoxReader(std::vector<Box> boxes);

  size_t bytes(size_t box) const { return boxes_[box].rows.total(); }
  // The box as it lies in memory that the host can read; null where that is not so.
  const std::byte* in_reach(size_t box) const;
  using Put = std::function<void(size_t at, std::span<const std::byte>)>;
  // Gives bytes [from, to) of a box in their order, in pieces. By several threads at once.
  void read(size_t box, size_t from, size_t to, const Put& put);
  // Begins to read the same straight to locked memory. Null where that cannot be.
  std::unique_ptr<Event> begin_read(size_t box, size_t from, size_t to, std::byte* out);
  void wait(size_t box, Event& there);
  // The first device that has copies of its own, or null.
  Device* copying_device() const;

 private:
  void read_ahead(const Box& box, CopyBatch& batch, size_t from, size_t to, const Put& put);

  std::vector<Box> boxes_;
  CopyQueues queues_;
};

}  // namespace tinyshard
