#include "core/schedule/buckets.h"

#include <algorithm>

#include "core/schedule/order.h"

namespace tinyshard {
namespace {

constexpr int64_t kAlignment = 64;

struct Bucket {
  int task;  // that carries the collective
  int buffer;
  int64_t bytes;
};

}  // namespace

void bucket_collectives(std::vector<Task>& tasks, std::vector<VirtualBuffer>& buffers,
                        int64_t bytes) {
  std::vector<int> readers(buffers.size());
  for (const Task& task : tasks) {
    for (int b : task.reads) ++readers[b];
  }
  auto temporary = [&](int b) {
    return !buffers[b].storage && !buffers[b].output && buffers[b].previous < 0 &&
           buffers[b].container < 0;
  };
  Dependencies dependencies(tasks, buffers);
  std::vector<Bucket> open;
  for (int t : execution_order(tasks, buffers, dependencies)) {
    Task& task = tasks[t];
    if (task.draft || task.item.kind != Item::Kind::Collective) continue;
    if (task.item.collective.op != CollectiveOp::AllReduce) continue;
    int in = task.reads[0], out = task.writes[0];
    if (!temporary(in) || !temporary(out) || readers[in] != 1) continue;
    int64_t size = (buffers[in].bytes() + kAlignment - 1) / kAlignment * kAlignment;
    auto fits = [&](const Bucket& bucket) {
      const Item& other = tasks[bucket.task].item;
      return bucket.bytes + size <= bytes && other.mesh == task.item.mesh &&
             other.mesh_axis == task.item.mesh_axis &&
             other.collective.dtype == task.item.collective.dtype &&
             other.collective.reduce == task.item.collective.reduce &&
             !dependencies.reaches(bucket.task, t) && !dependencies.reaches(t, bucket.task);
    };
    auto bucket = std::ranges::find_if(open, fits);
    if (bucket == open.end()) {
      VirtualBuffer memory;
      memory.dtype = buffers[in].dtype;
      memory.mesh = buffers[in].mesh;
      buffers.push_back(memory);
      open.push_back({t, int(buffers.size()) - 1, 0});
      bucket = open.end() - 1;
      task.item.buffers = {bucket->buffer, bucket->buffer};
    } else {
      Task& carrier = tasks[bucket->task];
      carrier.reads.push_back(in);
      carrier.writes.push_back(out);
      carrier.position = std::max(carrier.position, task.position);
      task.gone = true;
      task.reads.clear();
      task.writes.clear();
      dependencies.merge(t, bucket->task);
    }
    for (int b : {in, out}) {
      buffers[b].container = bucket->buffer;
      buffers[b].container_offset = bucket->bytes;
    }
    bucket->bytes += size;
    int64_t count = bucket->bytes / int64_t(itemsize(buffers[in].dtype));
    buffers[bucket->buffer].shape = {count};
    tasks[bucket->task].item.collective.count = size_t(count);
  }
}

}  // namespace tinyshard
