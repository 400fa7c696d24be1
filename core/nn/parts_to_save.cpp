// Example: w [8, 4] is divided by rows over ranks 0 and 1, b [4] is whole on both. Rank 0 writes
// rows 0 to 3 of w, rank 1 rows 4 to 7, and b is written by the one that has fewer bytes so far, of
// equals the lower rank; both know which that is.
#include "core/nn/parts_to_save.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/file_jobs.h"
#include "core/exec/box_rows.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
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
    // Completes pending sums, and puts parts that lie in an order of their own (Shard(dim, sizes))
    // into the order of the value.
    for (Placement& p : where.placements) p = pending ? Replicate : without_parts(p);
    t = t.shard_like(where);
    t.realize();
  }

  const Context::Turn turn;
  Context& context = Context::get();
  std::vector<BoxReader::Box> boxes;
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
      const auto local = static_cast<size_t>(device - positions.begin());
      const auto& [begin, size] = box;
      BoxRows rows(size, {Dims(size.size()), size}, storage.local_shape(), itemsize(t.dtype()));
      parts_.push_back({number, {begin, size}, rows.total()});
      boxes.push_back({storage.devices()[local], storage.memory_to_copy()[local], std::move(rows)});
    }
  }
  kept_ = std::move(all);
  reader_ = std::make_unique<BoxReader>(std::move(boxes));
}

void PartsToSave::read(size_t part, size_t from, size_t to, const BoxReader::Put& put) {
  if (!snapshot_) return reader_->read(part, from, to, put);
  put(from, {in_snapshot_[part] + from, to - from});
}

void PartsToSave::take_snapshot() {
  constexpr size_t kAtOnce = 16 << 20, kAlignment = 64;
  struct Piece {
    size_t part, from, to;
    std::unique_ptr<Event> there = {};
  };
  auto room = [](size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; };
  size_t total = 0;
  for (const Part& part : parts_) total += room(part.bytes);
  const Context::Use use;
  std::shared_ptr<LockedMemory> memory = snapshot_memory(total, reader_->copying_device());
  std::vector<Piece> pieces;
  std::vector<std::byte*> places;
  std::byte* to = memory->data();
  for (size_t p = 0; p < parts_.size(); ++p) {
    const size_t bytes = parts_[p].bytes;
    for (size_t at = 0; at < bytes; at += kAtOnce)
      pieces.push_back({p, at, std::min(at + kAtOnce, bytes)});
    places.push_back(to);
    to += room(bytes);
  }
  const bool locked = memory->is_locked();
  const FileJob job{[&](size_t i) {
                      auto& [part, from, end, there] = pieces[i];
                      if (locked) there = reader_->begin_read(part, from, end, places[part] + from);
                    },
                    [&](size_t i) {
                      auto& [part, from, end, there] = pieces[i];
                      if (there) {
                        reader_->wait(part, *there);
                      } else {
                        reader_->read(part, from, end,
                                      [&](size_t at, std::span<const std::byte> bytes) {
                                        std::memcpy(places[part] + at, bytes.data(), bytes.size());
                                      });
                      }
                      return static_cast<int64_t>(end - from);
                    }};
  try {
    run_file_jobs(pieces.size(), job);
  } catch (...) {
    reader_.reset();  // waits for what is under way to the snapshot
    throw;
  }
  reader_.reset();
  kept_.clear();
  in_snapshot_.assign(places.begin(), places.end());
  snapshot_ = std::move(memory);
}

}  // namespace tinyshard::nn
