// Reads a divided value piece by piece: each device gives the box that it has, and the pieces come together
// in the memory of the host. Two devices with rows 0-1 and 2-3 of four write two halves of one buffer.
#include "core/exec/host_read.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/content_hash.h"
#include "core/base/file_jobs.h"
#include "core/base/hash.h"
#include "core/base/origin.h"
#include "core/exec/box_rows.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"

namespace tinyshard {
namespace {

// Bytes of other parts that a host holds at once.
constexpr size_t kStaged = 2 << 20, kLeastPiece = 4096;
// From so many on, several threads read, each so many at a time.
constexpr size_t kManyThreads = 4 << 20;

// The axes over which the value is divided.
std::vector<int> dividing_axes(const Sharding& where) {
  std::vector<int> axes;
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (where.placements[a].is_shard() && where.mesh.axes()[a].size > 1) axes.push_back(int(a));
  }
  return axes;
}

size_t count_parts(const Mesh& mesh, const std::vector<int>& axes) {
  size_t parts = 1;
  for (int a : axes) parts *= size_t(mesh.axes()[size_t(a)].size);
  return parts;
}

// Tells whether all processes with a device of the mesh hold all parts. The same on all ranks.
bool each_process_has_all(const Sharding& where, const std::vector<int>& axes) {
  std::map<int, std::set<size_t>> held;  // by rank: numbers of parts
  for (int64_t p = 0; p < where.mesh.size(); ++p) {
    const std::vector<int64_t> at = where.mesh.coordinates(p);
    size_t part = 0;
    for (int a : axes)
      part = part * size_t(where.mesh.axes()[size_t(a)].size) + size_t(at[size_t(a)]);
    held[where.mesh.devices()[size_t(p)].rank].insert(part);
  }
  const size_t parts = count_parts(where.mesh, axes);
  return std::ranges::all_of(held, [&](const auto& rank) { return rank.second.size() == parts; });
}

// Copies the bytes of a part's memory from `begin` on, those of `piece`, to where they are in the whole.
void put_piece(const BoxRows& rows, size_t begin, std::span<const std::byte> piece,
               std::span<std::byte> whole) {
  const size_t end = begin + piece.size();
  int64_t low = 0, high = rows.count();  // rows lie in memory in their order
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (rows[middle].in_memory + rows.bytes() <= begin)
      low = middle + 1;
    else
      high = middle;
  }
  for (int64_t r = low; r < rows.count(); ++r) {
    const auto [in_array, in_memory] = rows[r];
    if (in_memory >= end) return;
    const size_t first = std::max<size_t>(in_memory, begin);
    const size_t last = std::min<size_t>(in_memory + rows.bytes(), end);
    std::memcpy(whole.data() + in_array + (first - in_memory), piece.data() + (first - begin),
                last - first);
  }
}

BoxRows rows_of(const Storage& storage, const LocalBox& box) {
  return BoxRows(storage.shape(), box, storage.local_shape(), itemsize(storage.dtype()));
}

void read_part(Storage& storage, const PartToFill& part, std::span<std::byte> to) {
  const BoxRows rows = rows_of(storage, part.box);
  if (rows.count() == 0) return;
  Device& device = *storage.devices()[part.device];
  void* memory = storage.memory_to_copy()[part.device];
  if (rows.count() == 1)
    return device.copy_out(to.data() + rows[0].in_array,
                           static_cast<const std::byte*>(memory) + rows[0].in_memory, rows.bytes());
  device.synchronize();
  if (const void* host = device.host_pointer(memory)) {
    return put_piece(rows, 0, {static_cast<const std::byte*>(host), storage.local_bytes()}, to);
  }
  std::vector<std::byte> staged(std::min(storage.local_bytes(), kStaged));
  for (size_t at = 0; at < storage.local_bytes(); at += staged.size()) {
    const size_t bytes = std::min(staged.size(), storage.local_bytes() - at);
    device.copy_out(staged.data(), static_cast<const std::byte*>(memory) + at, bytes);
    put_piece(rows, at, std::span(staged).first(bytes), to);
  }
}

// Reads all parts, from all devices beside each other.
void read_parts_at_once(Storage& storage, std::span<const PartToFill> parts,
                        std::span<std::byte> to) {
  struct Piece {
    size_t part, from, to;
  };
  const size_t element = itemsize(storage.dtype());
  std::vector<BoxReader::Box> boxes;
  std::vector<BoxRows> places;  // of each box in the whole
  std::vector<Piece> pieces;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto& [holder, device, box, replicas] = parts[p];
    const Dims& size = box.size;
    boxes.push_back({storage.devices()[device], storage.memory_to_copy()[device],
                     BoxRows(size, {Dims(size.size()), size}, storage.local_shape(), element)});
    places.emplace_back(storage.shape(), box, size, element);
    for (size_t at = 0; at < parts[p].bytes(); at += kManyThreads)
      pieces.push_back({p, at, std::min(at + kManyThreads, parts[p].bytes())});
  }
  BoxReader reader(std::move(boxes));
  run_file_jobs(pieces.size(), [&](size_t i) {
    const auto& [p, from, end] = pieces[i];
    reader.read(p, from, end, [&](size_t at, std::span<const std::byte> bytes) {
      const BoxRows::Stretch stretch{at, at + bytes.size(), at, at + bytes.size()};
      places[p].for_each_row(stretch, [&](uint64_t in_whole, uint64_t in_part, size_t n) {
        std::memcpy(to.data() + in_whole, bytes.data() + (in_part - at), n);
      });
    });
    return int64_t(end - from);
  });
}

// Pieces of all parts, at the same place of each, as all hosts get them.
class GatheredPieces {
 public:
  explicit GatheredPieces(Storage& storage, const std::vector<int>& axes) : storage_(storage) {
    Context& context = Context::get();
    const Mesh& mesh = storage.sharding.mesh;
    const uint64_t what =
        combine(hash_bytes(std::as_bytes(std::span(storage.shape()))),
                combine(uint64_t(storage.dtype()), uint64_t(storage.local_bytes())));
    identity_ = {.what = what, .label = "a value that is read"};
    const Origin& line = origin_of(origin_of_call());
    for (size_t i = axes.size(); i-- > 0;) {  // parts of the last axis are neighbours
      const std::string& name = mesh.axes()[size_t(axes[i])].name;
      site_.push_back(std::make_shared<CollectiveSite>(
          CollectiveSite{name, "a value that is read", line.source()}));
      std::vector<Group>& along = groups_.emplace_back();
      for (AxisGroup& group : context.groups_along(mesh, axes[i])) {
        Communicator& talks = context.communicator(mesh, axes[i], group.positions[0]);
        along.push_back({std::move(group.local), &talks});
      }
    }
  }

  // Returns `bytes` bytes from `at` on of each part, one part behind the other.
  std::vector<std::byte> at(size_t at, size_t bytes) {
    std::vector<std::vector<std::byte>> held;  // by each local device
    for (size_t d = 0; d < storage_.devices().size(); ++d) {
      const auto* memory = static_cast<const std::byte*>(storage_.memory_to_copy()[d]);
      held.emplace_back(bytes);
      storage_.devices()[d]->copy_out(held[d].data(), memory + at, bytes);
    }
    for (size_t a = 0; a < groups_.size(); ++a) {
      for (const Group& group : groups_[a]) gather(group, held, site_[a]);
    }
    return std::move(held[0]);
  }

 private:
  struct Group {
    std::vector<size_t> local;  // devices of this process
    Communicator* communicator;
  };

  void gather(const Group& group, std::vector<std::vector<std::byte>>& held,
              const std::shared_ptr<const CollectiveSite>& site) const {
    const size_t each = held[group.local[0]].size();
    std::vector<std::vector<std::byte>> all;
    std::vector<CommBuffer> send, recv;
    for (size_t d : group.local) {
      all.emplace_back(each * size_t(group.communicator->size()));
      send.push_back({held[d].data()});
      recv.push_back({all.back().data()});
    }
    group.communicator
        ->start({.op = CollectiveOp::AllGather,
                 .dtype = DType::U8,
                 .count = each,
                 .identity = &identity_,
                 .site = site},
                send, recv)
        .wait();
    for (size_t i = 0; i < group.local.size(); ++i) held[group.local[i]] = std::move(all[i]);
  }

  Storage& storage_;
  RunIdentity identity_;
  std::vector<std::vector<Group>> groups_;                   // by axis, the last one first
  std::vector<std::shared_ptr<const CollectiveSite>> site_;  // the same
};

void gather_whole(Storage& storage, const std::vector<int>& axes, std::span<std::byte> to) {
  const Sharding& where = storage.sharding;
  const size_t parts = count_parts(where.mesh, axes);
  std::vector<BoxRows> rows;  // of each part, in the order of the pieces
  for (size_t part = 0; part < parts; ++part) {
    size_t rest = part;
    int64_t position = 0;
    std::vector<int64_t> at(where.mesh.axes().size());
    for (size_t i = axes.size(); i-- > 0;) {
      const auto size = size_t(where.mesh.axes()[size_t(axes[i])].size);
      at[size_t(axes[i])] = int64_t(rest % size);
      rest /= size;
    }
    for (size_t a = 0; a < at.size(); ++a) position = position * where.mesh.axes()[a].size + at[a];
    rows.push_back(rows_of(storage, local_box(where, storage.shape(), position)));
  }
  const size_t bytes = storage.local_bytes();
  // The piece is the same on all ranks.
  const size_t piece = std::max(kStaged / parts, kLeastPiece);
  GatheredPieces pieces(storage, axes);
  for (size_t at = 0; at < bytes; at += piece) {
    const size_t n = std::min(piece, bytes - at);
    const std::vector<std::byte> all = pieces.at(at, n);
    for (size_t part = 0; part < parts; ++part)
      put_piece(rows[part], at, std::span(all).subspan(part * n, n), to);
  }
}

// Parts on their way, each whole; they are put together when they are asked for.
class PendingParts final : public PendingCopy {
 public:
  PendingParts(Storage& storage, std::vector<PartToFill> parts) {
    for (const PartToFill& part : parts) {
      rows_.push_back(rows_of(storage, part.box));
      copies_.push_back(storage.devices()[part.device]->begin_copy_out(
          storage.memory_to_copy()[part.device], storage.local_bytes()));
    }
    bytes_ = size_t(product(storage.shape())) * itemsize(storage.dtype());
  }
  bool arrived() override {
    return std::ranges::all_of(copies_, [](const auto& copy) { return copy->arrived(); });
  }
  std::span<const std::byte> wait() override {
    if (whole_.empty()) whole_.resize(bytes_);
    for (size_t i = 0; i < copies_.size(); ++i) put_piece(rows_[i], 0, copies_[i]->wait(), whole_);
    copies_.clear();
    return whole_;
  }

 private:
  std::vector<BoxRows> rows_;
  std::vector<std::unique_ptr<PendingCopy>> copies_;
  std::vector<std::byte> whole_;
  size_t bytes_;
};

}  // namespace

void read_whole(Storage& storage, std::span<std::byte> to) {
  if (to.empty()) return;
  const std::vector<int> axes = dividing_axes(storage.sharding);
  Device& first = *storage.devices()[0];
  if (axes.empty() || !first.executes())  // the latter fails
    return first.copy_out(to.data(), storage.memory_to_copy()[0], to.size());
  if (!each_process_has_all(storage.sharding, axes)) return gather_whole(storage, axes, to);
  const std::vector<PartToFill> parts = parts_to_fill(storage);
  if (to.size() >= kManyThreads) return read_parts_at_once(storage, parts, to);
  for (const PartToFill& part : parts) read_part(storage, part, to);
}

std::unique_ptr<PendingCopy> begin_read_whole(Storage& storage) {
  const std::vector<int> axes = dividing_axes(storage.sharding);
  Device& first = *storage.devices()[0];
  if (axes.empty() || !first.executes())
    return first.begin_copy_out(storage.memory_to_copy()[0], storage.local_bytes());
  const bool here = each_process_has_all(storage.sharding, axes);
  const bool in_reach = first.host_pointer(storage.memory()[0]) != nullptr;
  if (here && !in_reach) return std::make_unique<PendingParts>(storage, parts_to_fill(storage));
  std::vector<std::byte> whole(size_t(product(storage.shape())) * itemsize(storage.dtype()));
  read_whole(storage, whole);
  return std::make_unique<DoneCopy>(std::move(whole));
}

}  // namespace tinyshard
