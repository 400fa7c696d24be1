// A row that fits a block is sorted by one kernel. Longer rows go back and forth between two places of a
// workspace, once for each byte of the keys, and their order comes from the last step:
//
//   keys of 2 bytes    keys -> a      order of a in the workspace
//                      a    -> b      order of b where the caller wants it
#include "devices/gpu/sort.h"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/uop/args.h"

namespace tinyshard::gpu {
namespace {

int64_t aligned(int64_t bytes) {
  constexpr int64_t kAlignment = 256;
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

SortShape sort_shape(const LibraryCall& call) {
  const DimSpan shape = call.node.src(0).shape();
  return {.key = call.node.src(0).dtype(),
          .rows = product(shape.first(shape.size() - 1)),
          .n = shape.back(),
          .k = sorted_places(*call.node)};
}

class RowSort : public SortProgram {
 public:
  RowSort(Gpu& gpu, const ObjectCode& code, int64_t reserved)
      : SortProgram(gpu), kernel_(gpu, code) {
    if (reserved > 0) workspace_ = gpu.workspace(size_t(reserved), gpu.next_workspace());
  }
  void enqueue(void* const* buffers, const int64_t* coordinates) override {
    kernel_.enqueue(buffers, coordinates);
  }
  bool kernel(void* const* buffers, const int64_t* coordinates, KernelNodeParams* params) override {
    return kernel_.kernel(buffers, coordinates, params);
  }
  char* reserved() const override { return static_cast<char*>(workspace_.get()); }
  const void* scratch() const override { return workspace_.get(); }
  std::string describe() const override { return "radix sort: " + kernel_.describe(); }

 private:
  KernelProgram kernel_;
  std::shared_ptr<void> workspace_;
};

// Bytes from the begin of a workspace.
struct LongSortPlaces {
  std::array<int64_t, 2> keys{}, places{};
  int64_t counts = 0, totals = 0, end = 0;
};

LongSortPlaces places_of(const SortShape& shape, int64_t reserved) {
  const int64_t all = shape.rows * shape.n;
  LongSortPlaces p{.end = aligned(reserved)};
  const auto place = [&](int64_t size) { return std::exchange(p.end, p.end + aligned(size)); };
  for (int64_t& keys : p.keys) keys = place(all * itemsize(shape.key));
  for (int64_t& places : p.places) places = place(all * int64_t(sizeof(int32_t)));
  p.counts = place(shape.rows * SortShape::kDigits * shape.tiles() * int64_t(sizeof(int32_t)));
  p.totals = place(shape.rows * SortShape::kDigits * int64_t(sizeof(int32_t)));
  return p;
}

class LongSort : public SortProgram {
 public:
  LongSort(Gpu& gpu, const SortShape& shape, const SortSteps& steps, int64_t reserved)
      : SortProgram(gpu),
        shape_(shape),
        count_(gpu, steps.count),
        add_(gpu, steps.add),
        move_first_(gpu, steps.move_first),
        move_(gpu, steps.move),
        in_(places_of(shape, reserved)) {
    workspace_ = gpu.workspace(size_t(in_.end), gpu.next_workspace());
  }

  void enqueue(void* const* buffers, const int64_t*) override {
    auto* memory = static_cast<char*>(workspace_.get());
    void *keys = buffers[0], *places = nullptr;
    for (int64_t byte = 0; byte < shape_.bytes; ++byte) {
      const bool last = byte + 1 == shape_.bytes;
      const std::array<int64_t, 2> numbers{8 * byte, last ? shape_.k : shape_.n};
      void* counts = memory + in_.counts;
      void* totals = memory + in_.totals;
      void* moved = memory + in_.keys[size_t(byte % 2)];
      void* order = last ? buffers[1] : memory + in_.places[size_t(byte % 2)];
      const std::array<void*, 6> all{keys, counts, totals, moved, order, places};
      count_.enqueue(all.data(), numbers.data());
      const std::array<void*, 2> added{counts, totals};
      add_.enqueue(added.data(), numbers.data());
      (byte == 0 ? move_first_ : move_).enqueue(all.data(), numbers.data());
      keys = moved;
      places = order;
    }
  }

  char* reserved() const override { return static_cast<char*>(workspace_.get()); }
  void* moved_keys() const override {
    return static_cast<char*>(workspace_.get()) + in_.keys[size_t((shape_.bytes - 1) % 2)];
  }
  const void* scratch() const override { return workspace_.get(); }
  std::string describe() const override { return "radix sort: " + move_.describe(); }

 private:
  const SortShape shape_;
  KernelProgram count_, add_, move_first_, move_;
  const LongSortPlaces in_;
  std::shared_ptr<void> workspace_;
};

}  // namespace

bool sort_supports(const LibraryCall& call, std::string* why) {
  const SortShape s = sort_shape(call);
  const bool fits =
      s.n <= std::numeric_limits<int32_t>::max() &&
      s.rows * std::max(s.tiles(), SortShape::kDigits) <= std::numeric_limits<int32_t>::max();
  const bool known = is_unsigned_int(s.key) && call.also.empty() && call.results.empty() &&
                     is_row_major(call.operands[0]);
  if (known && fits) return true;
  if (why) *why = known ? "more keys than a launch has threads for" : "its keys are no dense rows";
  return false;
}

int64_t sort_workspace_bytes(const LibraryCall& call) {
  const SortShape shape = sort_shape(call);
  return shape.n <= shape.tile() ? 0 : places_of(shape, 0).end;
}

std::unique_ptr<SortProgram> make_sort(Gpu& gpu, const SortShape& shape, const SortCode& code,
                                       int64_t reserved) {
  if (!shape.is_long()) return std::make_unique<RowSort>(gpu, code.row(shape), reserved);
  return std::make_unique<LongSort>(gpu, shape, code.steps(shape), reserved);
}

std::unique_ptr<Program> make_sort(Gpu& gpu, const LibraryCall& call, const SortCode& code) {
  return make_sort(gpu, sort_shape(call), code);
}

}  // namespace tinyshard::gpu
