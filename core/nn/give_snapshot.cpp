// Rank 1 of three that keep f32[8] dies, and the two that are left want [0, 4) and [4, 8). The first has
// [0, 3) and gets [3, 4) from the copy of the other, which has [4, 8) of its own and of its copy.
#include "core/nn/give_snapshot.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"
#include "core/nn/match_names.h"
#include "core/nn/write_over.h"

namespace tinyshard::nn {
namespace {

LocalBox common(const LocalBox& a, const LocalBox& b) {
  LocalBox both = a;
  for (size_t d = 0; d < a.size.size(); ++d) {
    both.begin[d] = std::max(a.begin[d], b.begin[d]);
    const int64_t end = std::min(a.begin[d] + a.size[d], b.begin[d] + b.size[d]);
    both.size[d] = std::max<int64_t>(0, end - both.begin[d]);
  }
  return both;
}

// The rows of `inner`, whose elements lie behind each other, within `outer`.
BoxRows rows_within(const LocalBox& outer, const LocalBox& inner, DType dtype) {
  LocalBox moved = inner;
  for (size_t d = 0; d < moved.begin.size(); ++d) moved.begin[d] -= outer.begin[d];
  return {outer.size, moved, inner.size, itemsize(dtype)};
}

}  // namespace

std::vector<int> first_participants(int ranks) {
  const Communicator& world = Context::get().world();
  std::vector<int> first(size_t(ranks), -1);
  for (int p = world.size(); p-- > 0;) first[size_t(world.rank_of(p))] = p;
  return first;
}

std::string lost_part(const Snapshot& from, const std::vector<int>& left) {
  const auto is_left = [&](int rank) { return std::ranges::find(left, rank) != left.end(); };
  for (const auto& [name, value] : from.values) {
    if (value.whole) continue;
    for (int rank = 0; rank < from.ranks; ++rank) {
      for (const LocalBox& box : value.boxes[size_t(rank)]) {
        bool found = false;
        for (int other = 0; other < from.ranks && !found; ++other)
          found = offset_of(box, value.boxes[size_t(other)], value.dtype) != kNoOffset &&
                  (is_left(other) || (value.is_copied(other) && is_left((other + 1) % from.ranks)));
        if (found) continue;
        const int behind = (rank + 1) % from.ranks;
        return fmt::format(
            "a part of {} is lost: of the {} ranks that committed step {}, rank {}, which held it, "
            "and rank {}, which held its copy, are both gone; load the checkpoint",
            name, from.ranks, from.progress.step, rank, behind);
      }
    }
  }
  return {};
}

// The boxes of the tensor that this rank holds, from those of the ranks that have them.
std::vector<std::vector<std::byte>> SnapshotGiver::divide(const KeptValue& from, const Tensor& into,
                                                          const std::vector<int>& left) {
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  const int rank = Context::get().rank(), ranks = Context::get().ranks();
  const int committed = int(from.boxes.size());
  // Boxes that a rank can give: its own, then the copies.
  const auto offset_at = [&](int giver, const LocalBox& box) {
    const int was = left[size_t(giver)];
    if (was == kNewcomer) return kNoOffset;
    const std::vector<LocalBox>& own = from.boxes[size_t(was)];
    const size_t at = offset_of(box, own, from.dtype);
    if (at != kNoOffset || from.whole) return at;
    const int before = (was + committed - 1) % committed;
    if (!from.is_copied(before)) return kNoOffset;
    const size_t copied = offset_of(box, from.boxes[size_t(before)], from.dtype);
    return copied == kNoOffset ? kNoOffset : bytes_of(own, from.dtype) + copied;
  };
  std::vector<LocalBox> all;
  for (const auto& boxes : from.boxes) {
    for (const LocalBox& box : boxes) {
      if (std::ranges::find(all, box) == all.end()) all.push_back(box);
    }
  }
  const std::vector<int> first = first_participants(ranks);
  const auto places = size_t(world.size());
  std::vector<size_t> counts(places * places);
  const Sharding where = into.sharding();
  const std::vector<LocalBox> wanted = boxes_of(where, from.shape, rank);
  std::vector<std::vector<std::byte>> result;
  for (const LocalBox& box : wanted)
    result.emplace_back(size_t(product(box.size)) * itemsize(from.dtype));

  sent_.assign(world.local().size(), {});
  received_.assign(world.local().size(), {});
  std::vector<std::vector<std::byte>> for_rank(static_cast<size_t>(ranks));
  struct Piece {
    size_t into;
    LocalBox box;
  };
  std::vector<std::vector<Piece>> from_rank(static_cast<size_t>(ranks));
  for (int taker = 0; taker < ranks; ++taker) {
    const std::vector<LocalBox> boxes = boxes_of(where, from.shape, taker);
    for (size_t b = 0; b < boxes.size(); ++b) {
      for (const LocalBox& box : all) {
        const LocalBox part = common(box, boxes[b]);
        const size_t bytes = size_t(product(part.size)) * itemsize(from.dtype);
        if (bytes == 0) continue;
        int giver = taker;
        for (int other = 0; other < ranks && offset_at(giver, box) == kNoOffset; ++other)
          giver = other;
        if (giver != taker)
          counts[size_t(first[size_t(giver)]) * places + size_t(first[size_t(taker)])] += bytes;
        if (taker == rank) from_rank[size_t(giver)].push_back({b, part});
        if (giver != rank) continue;
        size_t at = offset_at(giver, box);
        const std::byte* source = from.own.data() + at;
        if (at >= from.own.size()) source = from.copy.data() + (at - from.own.size());
        std::vector<std::byte>& out = for_rank[size_t(taker)];
        const size_t begin = out.size();
        out.resize(begin + bytes);
        const BoxRows rows = rows_within(box, part, from.dtype);
        for (int64_t r = 0; r < rows.count(); ++r)
          std::memcpy(out.data() + begin + rows[r].in_memory, source + rows[r].in_array,
                      rows.bytes());
      }
    }
  }
  if (std::ranges::any_of(counts, [](size_t count) { return count > 0; })) {
    std::vector<CommBuffer> send, recv;
    for (int taker = 0; taker < ranks; ++taker) {
      if (taker != rank)
        sent_[0].insert(sent_[0].end(), for_rank[size_t(taker)].begin(),
                        for_rank[size_t(taker)].end());
    }
    size_t coming = 0;
    for (int giver = 0; giver < ranks; ++giver)
      coming += counts[size_t(first[size_t(giver)]) * places + size_t(first[size_t(rank)])];
    received_[0].resize(coming);
    for (size_t i = 0; i < sent_.size(); ++i) {
      if (sent_[i].empty()) sent_[i].resize(1);  // a transport refuses null
      if (received_[i].empty()) received_[i].resize(1);
      send.push_back({sent_[i].data()});
      recv.push_back({received_[i].data()});
    }
    world.start({.op = CollectiveOp::AllToAll, .dtype = DType::U8, .counts = counts}, send, recv)
        .wait();
  }
  size_t arrived = 0;
  for (int giver = 0; giver < ranks; ++giver) {
    const std::byte* at =
        giver == rank ? for_rank[size_t(rank)].data() : received_[0].data() + arrived;
    size_t taken = 0;
    for (const Piece& piece : from_rank[size_t(giver)]) {
      const BoxRows rows = rows_within(wanted[piece.into], piece.box, from.dtype);
      for (int64_t r = 0; r < rows.count(); ++r)
        std::memcpy(result[piece.into].data() + rows[r].in_array, at + taken + rows[r].in_memory,
                    rows.bytes());
      taken += size_t(product(piece.box.size)) * itemsize(from.dtype);
    }
    if (giver != rank) arrived += taken;
  }
  sent_.clear();
  received_.clear();
  return result;
}

void SnapshotGiver::write(const Snapshot& from, const StateDict& tensors,
                          const std::vector<int>& left) {
  std::map<std::string, FoundValue> found;
  for (const auto& [name, value] : from.values) found.emplace(name, FoundValue{value.shape});
  const NameMatch match = match_names(tensors, found, {});
  std::vector<Wanted> wanted;
  std::vector<const KeptValue*> values;
  for (const auto& [name, stored] : match.source) {
    const Tensor& tensor = tensors.at(name);
    const KeptValue& value = from.values.at(stored);
    const Sharding where = tensor.sharding();
    if (tensor.dtype() != value.dtype ||
        std::ranges::any_of(where.placements, &Placement::is_partial))
      fail(fmt::format("{} is {} {}, and was committed as {}", name,
                       tinyshard::name(tensor.dtype()), where.to_string(),
                       tinyshard::name(value.dtype)));
    wanted.push_back({tensor, value.dtype});
    values.push_back(&value);
  }
  fill_in_place(
      wanted,
      [&](std::span<const std::pair<Storage*, size_t>> storages, const ByteProgress& moved) {
        std::vector<std::vector<std::vector<std::byte>>> parts;
        std::vector<PartFill> fills;
        parts.reserve(storages.size());
        for (const auto& [storage, index] : storages) {
          const KeptValue& value = *values[index];
          const auto& bytes = parts.emplace_back(divide(value, wanted[index].into, left));
          std::vector<LocalBox> boxes =
              boxes_of(storage->sharding, value.shape, Context::get().rank());
          fills.push_back({storage, [&bytes, boxes = std::move(boxes)](const LocalBox& box,
                                                                       std::span<std::byte> out) {
                             const auto at = std::ranges::find(boxes, box) - boxes.begin();
                             std::memcpy(out.data(), bytes[size_t(at)].data(), out.size());
                           }});
        }
        fill_parts(fills, moved);
      },
      {});
  set_random_state(from.random);
}

}  // namespace tinyshard::nn
