// Gradients become ready one after the other, each with an all-reduce of its own. With buckets of
// 1 MiB and gradients of 0.4 MiB:
//
//   kernel g1   all-reduce g1   kernel g2   all-reduce g2   kernel g3   all-reduce g3
//   kernel g1   kernel g2   all-reduce [g1 g2]   kernel g3   all-reduce [g3]
//
// A bucket that fills slowly does not wait long: it is closed when a bucket's worth of other kinds has
// gone by. Else a bucket of small gradients would be ready with the last of them, and with it whatever
// needs the first.
//
// g1 and g2 are members of one buffer, at 0 and 0.4 MiB in it, where their kernels write them and
// their readers find them: nothing is copied.
#include "core/schedule/buckets.h"

#include <algorithm>

#include "core/schedule/execution_order.h"
#include "core/schedule/schedule_state.h"

namespace tinyshard {
namespace {

constexpr int64_t kBucketAlignment = 64;

struct Bucket {
  int task = -1;  // that carries the collective
  int64_t bytes = 0;
  int64_t others = 0;  // bytes of collectives of other kinds since it was begun
  int buffer = -1;     // of all-reduces
};

bool same_kind(const Task& x, const Task& y) {
  const Item &a = *x.item, &b = *y.item;
  return x.turn == y.turn && a.collective.op == b.collective.op &&
         a.collective.dtype == b.collective.dtype && a.collective.reduce == b.collective.reduce &&
         a.mesh == b.mesh && a.mesh_axis == b.mesh_axis;
}

class Bucketing {
 public:
  explicit Bucketing(ScheduleState& state)
      : tasks_(state.tasks),
        buffers_(state.schedule.buffers),
        bytes_(state.options.bucket_bytes),
        dependencies_(*state.dependencies),
        readers_(buffers_.size()) {
    for (const Task& task : tasks_) {
      for (int b : task.reads) ++readers_[size_t(b)];
    }
  }

  void run() {
    for (int t : execution_order(tasks_, buffers_, dependencies_)) {
      const Task& task = tasks_[size_t(t)];
      if (task.kind() != Item::Kind::Collective) continue;
      switch (task.item->collective.op) {
        case CollectiveOp::AllReduce:
          if (is_temporary(t)) share_buffer(bucket_of(t), t);
          break;
        case CollectiveOp::AllGather:
        case CollectiveOp::ReduceScatter:
          run_together(bucket_of(t), t);
          break;
        default:
          break;
      }
    }
  }

 private:
  // Operand and result live inside the schedule only, and nobody else needs the operand.
  bool is_temporary(int t) const {
    auto temporary = [&](int number) {
      const VirtualBuffer& b = buffers_[size_t(number)];
      return !b.storage && !b.output && b.previous < 0 && b.container < 0;
    };
    const Task& task = tasks_[size_t(t)];
    return readers_[size_t(task.reads[0])] == 1 && temporary(task.reads[0]) &&
           temporary(task.writes[0]);
  }

  static int64_t aligned(int64_t bytes) {
    return (bytes + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
  }
  int64_t bytes_of(int t) const {
    const Task& task = tasks_[size_t(t)];
    return std::max(buffers_[size_t(task.reads[0])].bytes(),
                    buffers_[size_t(task.writes[0])].bytes());
  }
  int64_t size_of(int t) const { return aligned(bytes_of(t)); }

  // The latest one of the kind, where t fits in: an earlier one is on its way by then. Otherwise a
  // new one, which stays alone where t is larger than a bucket.
  Bucket& bucket_of(int t) {
    const Task& task = tasks_[size_t(t)];
    for (Bucket& b : latest_) {
      if (!same_kind(tasks_[size_t(b.task)], task)) b.others += size_of(t);
    }
    if (size_of(t) > bytes_) return alone_ = Bucket{t};
    auto latest = std::ranges::find_if(
        latest_, [&](const Bucket& b) { return same_kind(tasks_[size_t(b.task)], task); });
    if (latest == latest_.end()) return latest_.emplace_back(Bucket{t});
    bool fits = latest->bytes + size_of(t) <= bytes_ && latest->others <= bytes_ &&
                !dependencies_.reaches(latest->task, t) && !dependencies_.reaches(t, latest->task);
    if (!fits) *latest = Bucket{t};
    return *latest;
  }

  void move_in(const Bucket& bucket, int t) {
    Task &carrier = tasks_[size_t(bucket.task)], &task = tasks_[size_t(t)];
    carrier.reads.push_back(task.reads[0]);
    carrier.writes.push_back(task.writes[0]);
    carrier.position = std::max(carrier.position, task.position);
    task.gone = true;
    task.reads.clear();
    task.writes.clear();
    dependencies_.merge(t, bucket.task);
  }

  void share_buffer(Bucket& bucket, int t) {
    int in = tasks_[size_t(t)].reads[0], out = tasks_[size_t(t)].writes[0];
    const int64_t end = bucket.bytes + bytes_of(t);  // nothing is sent behind the last member
    Item& item = *tasks_[size_t(bucket.task)].item;
    if (bucket.buffer < 0) {
      VirtualBuffer memory;
      memory.dtype = buffers_[size_t(in)].dtype;
      memory.mesh = buffers_[size_t(in)].mesh;
      buffers_.push_back(memory);
      bucket.buffer = int(buffers_.size()) - 1;
      item.buffers = {bucket.buffer, bucket.buffer};
    }
    if (t != bucket.task) move_in(bucket, t);
    for (int b : {in, out}) {
      buffers_[size_t(b)].container = bucket.buffer;
      buffers_[size_t(b)].container_offset = bucket.bytes;
    }
    bucket.bytes = aligned(end);
    VirtualBuffer& memory = buffers_[size_t(bucket.buffer)];
    int64_t count = end / int64_t(itemsize(memory.dtype));
    memory.shape = {count};
    item.collective.count = size_t(count);
  }

  void run_together(Bucket& bucket, int t) {
    bucket.bytes += size_of(t);
    if (t == bucket.task) return;
    Item &item = *tasks_[size_t(bucket.task)].item, &more = *tasks_[size_t(t)].item;
    if (item.pieces.empty()) item.pieces.push_back(item.collective.count);
    item.pieces.push_back(more.collective.count);
    item.collective.count += more.collective.count;
    item.buffers.insert(item.buffers.end(), more.buffers.begin(), more.buffers.end());
    move_in(bucket, t);
  }

  std::vector<Task>& tasks_;
  std::vector<VirtualBuffer>& buffers_;
  int64_t bytes_;
  Dependencies& dependencies_;
  std::vector<int> readers_;    // of a buffer
  std::vector<Bucket> latest_;  // of each kind
  Bucket alone_;                // of what is larger than a bucket
};

}  // namespace

void bucket_collectives(ScheduleState& state) {
  auto is_collective = [](const Task& t) { return !t.gone && t.kind() == Item::Kind::Collective; };
  if (std::ranges::any_of(state.tasks, is_collective)) Bucketing(state).run();
}

}  // namespace tinyshard
