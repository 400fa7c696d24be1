// Three ways, by what a value is:
//
//   bytes of a file, of the tensor's type     read into the tensor's own storage
//   bytes of a file, of another type          read into a storage beside it, then cast
//   anything else, computed of a file or not  assigned and computed
//
// The second and the third take memory beside the model, and run in groups that bound it.
#include "core/nn/write_over.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/overwrite.h"
#include "core/exec/read_boxes.h"

namespace tinyshard::nn {
namespace {

constexpr size_t kGroupBytes = 64 << 20;  // of one device

size_t local_bytes(const Tensor& x, DType dtype) {
  return size_t(product(x.sharding().local_shape(x.shape()))) * itemsize(dtype);
}

// Calls run(first, last) for neighbours that take kGroupBytes together, or for one that takes more.
template <class Bytes, class Run>
void for_each_group(size_t count, const Bytes& bytes, const Run& run) {
  for (size_t first = 0; first < count;) {
    size_t last = first + 1, sum = bytes(first);
    while (last < count && sum + bytes(last) <= kGroupBytes) sum += bytes(last++);
    run(first, last);
    first = last;
  }
}

}  // namespace

void check_no_capture() {
  if (current_capture())
    fail("values cannot be loaded inside a captured step; load them before it, or assign() them");
}

bool can_be_filled(const Tensor& x) {
  const Sharding where = x.sharding();
  return !current_capture() && !where.has_parts() &&
         std::ranges::none_of(where.placements, &Placement::is_partial);
}

int64_t bytes_to_fill(std::span<const Wanted> wanted) {
  int64_t sum = 0;
  for (const auto& [into, stored] : wanted) sum += int64_t(local_bytes(into, stored));
  return sum;
}

void fill_in_place(std::span<const Wanted> wanted, const FillStorages& fill,
                   const ByteProgress& progress) {
  const Context::Use use;  // no Turn: `progress` is the user's
  const int64_t total = bytes_to_fill(wanted);
  std::vector<size_t> other_type;
  std::vector<StatePtr> states;
  std::vector<std::pair<Storage*, size_t>> filled;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].stored == wanted[i].into.dtype()) {
      states.push_back(wanted[i].into.state());
      filled.emplace_back(nullptr, i);
    } else {
      other_type.push_back(i);
    }
  }
  const std::vector<Storage*> storages = open_to_overwrite(states);
  int64_t done = 0;
  for (size_t i = 0; i < storages.size(); ++i) filled[i].first = storages[i];
  auto fill_and_tell = [&](std::span<const std::pair<Storage*, size_t>> these) {
    fill(these, [&](int64_t bytes, int64_t) {
      if (progress) progress(done + bytes, total);
    });
    for (const auto& [storage, index] : these) done += int64_t(storage->local_bytes());
  };
  fill_and_tell(filled);

  auto bytes = [&](size_t i) {
    return local_bytes(wanted[other_type[i]].into, wanted[other_type[i]].stored);
  };
  for_each_group(other_type.size(), bytes, [&](size_t first, size_t last) {
    std::vector<UOp> buffers;
    std::vector<std::pair<Storage*, size_t>> beside;
    for (size_t i = first; i < last; ++i) {
      const auto& [into, stored] = wanted[other_type[i]];
      buffers.push_back(empty_buffer(into.shape(), stored, into.sharding()));
      beside.emplace_back(Storage::of(*buffers.back()), other_type[i]);
    }
    fill_and_tell(beside);
    std::vector<Tensor> written;
    for (size_t i = first; i < last; ++i) {
      const Tensor& into = wanted[other_type[i]].into;
      into.assign(Tensor(buffers[i - first]).cast(into.dtype()));
      written.push_back(into);
    }
    Tensor::realize(written);
  });
}

void write_over(const std::vector<std::pair<Tensor, Tensor>>& pairs, const ByteProgress& progress) {
  std::vector<Wanted> wanted;
  std::vector<FileRegion> regions;
  std::vector<Tensor> computed, values;       // of these; all of them are old ones
  std::map<const TensorState*, size_t> last;  // pair of a tensor
  for (size_t i = 0; i < pairs.size(); ++i) last[pairs[i].first.state().get()] = i;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [into, value] = pairs[i];
    if (last.at(into.state().get()) != i) continue;
    const FileRegion* region = region_of(value.state()->value);
    if (region && can_be_filled(into)) {
      wanted.push_back({into, value.dtype()});
      regions.push_back(*region);
    } else {
      // The value may be a tensor that is written to itself, as in a swap: a handle of its own keeps
      // what it is now.
      const bool changes = value.state() != into.state() && last.contains(value.state().get());
      values.push_back((changes ? value.detach() : value).shard_like(into).cast(into.dtype()));
      computed.push_back(into);
    }
  }
  for (size_t i = 0; i < computed.size(); ++i) computed[i].assign(values[i]);
  values.clear();
  auto bytes = [&](size_t i) { return local_bytes(computed[i], computed[i].dtype()); };
  const int64_t from_files = bytes_to_fill(wanted);
  int64_t total = from_files;
  for (size_t i = 0; i < computed.size(); ++i) total += int64_t(bytes(i));
  auto tell = [&](int64_t done, int64_t) {
    if (progress) progress(done, total);
  };

  fill_in_place(
      wanted,
      [&](std::span<const std::pair<Storage*, size_t>> storages, const ByteProgress& moved) {
        std::vector<FileFill> fills;
        for (const auto& [storage, index] : storages) fills.push_back({storage, regions[index]});
        read_boxes(fills, moved);
      },
      tell);
  int64_t done = from_files;
  for_each_group(computed.size(), bytes, [&](size_t first, size_t last) {
    Tensor::realize({computed.begin() + ptrdiff_t(first), computed.begin() + ptrdiff_t(last)});
    for (size_t i = first; i < last; ++i) done += int64_t(bytes(i));
    tell(done, total);
  });
}

}  // namespace tinyshard::nn
