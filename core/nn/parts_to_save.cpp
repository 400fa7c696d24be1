// Example: w [8, 4] is divided by rows over ranks 0 and 1, b [4] is whole on both. Rank 0 writes
// rows 0 to 3 of w, rank 1 rows 4 to 7, and b is written by the one that has fewer bytes so far, of
// equals the lower rank; both know which that is.
#include "core/nn/parts_to_save.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sys/mman.h>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/exec/box_rows.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/file_jobs.h"
#include "core/exec/state.h"

namespace tinyshard::nn {
namespace {

// The different boxes of a value, in order, and who holds each.
struct Holders {
  std::set<int> ranks;
  int own_position = -1;  // in the mesh, of the first device here
};

std::map<std::pair<Dims, Dims>, Holders> holders_of(const Sharding& where, DimSpan shape) {
  std::map<std::pair<Dims, Dims>, Holders> found;
  const Context& context = Context::get();
  const auto& devices = where.mesh.devices();
  const bool replicated = where.is_replicated();
  const LocalBox whole{Dims(shape.size()), Dims(shape.begin(), shape.end())};
  const bool empty = product(shape) == 0;
  for (size_t p = 0; p < devices.size(); ++p) {
    const LocalBox box =
        replicated || empty ? whole : local_box(where, shape, static_cast<int64_t>(p));
    if (!empty && product(box.size) == 0) continue;  // nothing but padding
    Holders& holders = found[{box.begin, box.size}];
    const bool here = devices[p].rank == DeviceRef::kHere || devices[p].rank == context.rank();
    if (here && holders.own_position < 0) holders.own_position = static_cast<int>(p);
    if (devices[p].rank != DeviceRef::kHere) {
      holders.ranks.insert(devices[p].rank);
    } else {
      for (int r = 0; r < context.ranks(); ++r) holders.ranks.insert(r);
    }
  }
  return found;
}

std::shared_ptr<std::byte> fresh_memory(size_t bytes) {
  if (bytes == 0) return nullptr;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    throw DeviceError(fmt::format("no memory for a snapshot of {} bytes", bytes));
  (void)::madvise(memory, bytes, MADV_HUGEPAGE);
  return {static_cast<std::byte*>(memory), [bytes](std::byte* m) { ::munmap(m, bytes); }};
}

}  // namespace

PartsToSave::PartsToSave(const StateDict& tensors) {
  if (current_capture())
    throw UserError("tensors cannot be saved inside a captured step: they have no values there");
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back(tensor);
  Tensor::realize(all);
  for (Tensor& t : all) {
    Sharding where = t.sharding();
    const bool pending = std::ranges::any_of(where.placements, &Placement::is_partial);
    if (!pending && !where.has_parts()) continue;
    // A sum that is still to come is put together; parts that lie side by side go where slices of
    // the value are.
    for (Placement& p : where.placements) p = pending ? Replicate : without_parts(p);
    t = t.shard_like(where);
    t.realize();
  }

  const Context::Turn turn;
  Context& context = Context::get();
  std::vector<uint64_t> load(static_cast<size_t>(context.ranks()));
  for (const auto& [name, tensor] : tensors) {
    const Tensor& t = all[tensors_.size()];
    const size_t number = tensors_.size();
    tensors_.push_back({name, t.dtype(), t.shape()});
    Storage& storage = *Storage::of(**stored_node(t.state()->value));
    storage.check_usable();
    const std::vector<int> positions = context.local_positions(storage.sharding.mesh);
    for (const auto& [box, holders] : holders_of(storage.sharding, storage.shape())) {
      const int writer = *std::ranges::min_element(
          holders.ranks, {}, [&](int r) { return load[static_cast<size_t>(r)]; });
      // + 1: empty tensors and scalars are spread, too
      load[static_cast<size_t>(writer)] +=
          static_cast<uint64_t>(product(box.second)) * itemsize(t.dtype()) + 1;
      if (writer != context.rank()) continue;
      const auto device = std::ranges::find(positions, holders.own_position);
      check_internal(device != positions.end(), "who writes a box holds it");
      add(number, storage, static_cast<size_t>(device - positions.begin()),
          {box.first, box.second});
    }
  }
  kept_ = std::move(all);
}

void PartsToSave::add(size_t number, Storage& storage, size_t device, LocalBox box) {
  const size_t element = itemsize(storage.dtype());
  const size_t bytes = static_cast<size_t>(product(box.size)) * element;
  const BoxRows rows(box.size, {Dims(box.size.size()), box.size}, storage.local_shape(), element);
  if (bytes == 0) {
    parts_.push_back({number, std::move(box), {}});
    return;
  }
  Device& from = *storage.devices()[device];
  void* memory = storage.memory_to_copy()[device];
  const auto* host = static_cast<const std::byte*>(from.host_pointer(memory));
  if (host) from.synchronize();
  if (host && rows.count() == 1) {  // padding, if there is any, lies behind it
    parts_.push_back({number, std::move(box), {host, bytes}});
    return;
  }
  std::vector<std::byte> held;
  if (!host) {
    held.resize(rows.count() == 1 ? bytes : storage.local_bytes());
    from.copy_out(held.data(), memory, held.size());
    host = held.data();
  }
  if (rows.count() == 1) {
    copies_.push_back(std::move(held));
  } else {
    std::vector<std::byte>& packed = copies_.emplace_back(bytes);
    for (int64_t r = 0; r < rows.count(); ++r)
      std::memcpy(packed.data() + rows[r].in_array, host + rows[r].in_memory, rows.bytes());
  }
  parts_.push_back({number, std::move(box), copies_.back()});
}

void PartsToSave::take_snapshot() {
  constexpr size_t kAtOnce = 16 << 20;
  struct Piece {
    const std::byte* from;
    std::byte* to;
    size_t bytes;
  };
  size_t total = 0;
  for (const Part& part : parts_) total += (part.bytes.size() + 63) / 64 * 64;
  snapshot_ = fresh_memory(total);
  std::vector<Piece> pieces;
  std::byte* to = snapshot_.get();
  for (Part& part : parts_) {
    const std::span<const std::byte> bytes = part.bytes;
    for (size_t at = 0; at < bytes.size(); at += kAtOnce)
      pieces.push_back({bytes.data() + at, to + at, std::min(kAtOnce, bytes.size() - at)});
    part.bytes = {to, bytes.size()};
    to += (bytes.size() + 63) / 64 * 64;
  }
  run_file_jobs(pieces.size(), [&](size_t i) {
    std::memcpy(pieces[i].to, pieces[i].from, pieces[i].bytes);
    return static_cast<int64_t>(pieces[i].bytes);
  });
  kept_.clear();
  copies_.clear();
}

}  // namespace tinyshard::nn
