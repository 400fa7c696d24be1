// Boxes: f32[8] on three ranks is [0, 3), [3, 6), [6, 8); rank 0 has a copy of [6, 8), rank 1 of [0, 3),
// rank 2 of [3, 6). Rank 1 dies, and the two that are left want [0, 4) and [4, 8). The first has [0, 3)
// and gets [3, 4) from the copy of the other, which has [4, 8) of its own and of its copy.
#include "core/nn/elastic.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"
#include "core/exec/state.h"
#include "core/nn/agreement.h"
#include "core/nn/match_names.h"
#include "core/nn/write_over.h"

namespace tinyshard::nn {
namespace {

constexpr int kNewcomer = -1;  // in the place of the rank that a rank was
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

// The least of each of all ranks' numbers.
Message least_of_all(Message mine) {
  return Context::get().ranks() == 1 ? mine : exchange(mine, ReduceOp::Min, kMost);
}

// The different boxes that the devices of a rank hold, in the order of the mesh.
std::vector<LocalBox> boxes_of(const Sharding& where, DimSpan shape, int rank) {
  std::vector<LocalBox> boxes;
  const auto& devices = where.mesh.devices();
  for (size_t p = 0; p < devices.size(); ++p) {
    if (devices[p].rank != rank && devices[p].rank != DeviceRef::kHere) continue;
    LocalBox box = local_box(where, shape, int64_t(p));
    if (product(box.size) > 0 && std::ranges::find(boxes, box) == boxes.end())
      boxes.push_back(std::move(box));
  }
  return boxes;
}

size_t bytes_of(const std::vector<LocalBox>& boxes, DType dtype) {
  size_t bytes = 0;
  for (const LocalBox& box : boxes) bytes += size_t(product(box.size)) * itemsize(dtype);
  return bytes;
}

// Where a box begins among others that lie behind each other; npos where it is not one of them.
constexpr size_t kNoOffset = SIZE_MAX;
size_t offset_of(const LocalBox& box, const std::vector<LocalBox>& boxes, DType dtype) {
  size_t at = 0;
  for (const LocalBox& other : boxes) {
    if (other == box) return at;
    at += size_t(product(other.size)) * itemsize(dtype);
  }
  return kNoOffset;
}

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

// The first participant of each rank.
std::vector<int> first_participants(const Communicator& world, int ranks) {
  std::vector<int> first(size_t(ranks), -1);
  for (int p = world.size(); p-- > 0;) first[size_t(world.rank_of(p))] = p;
  return first;
}

// A number of each rank, by rank.
std::vector<int> numbers_of_all(int mine) {
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  const size_t local = world.local().size(), all = size_t(world.size());
  std::vector<int64_t> own(local, mine), gathered(local * all);
  std::vector<CommBuffer> send, recv;
  for (size_t i = 0; i < local; ++i) {
    send.push_back({&own[i]});
    recv.push_back({&gathered[i * all]});
  }
  world.all_gather(send, recv, 1, DType::I64).wait();
  std::vector<int> numbers;
  for (int p : first_participants(world, Context::get().ranks()))
    numbers.push_back(int(gathered[size_t(p)]));
  return numbers;
}

}  // namespace

bool Elastic::Snapshot::is_divided() const {
  return std::ranges::any_of(values, [](const auto& value) { return !value.second.whole; });
}

Elastic::Snapshot Elastic::copy(const StateDict& tensors, const Progress& progress) {
  Snapshot snapshot{.progress = progress,
                    .number = 0,
                    .rank = Context::get().rank(),
                    .ranks = Context::get().ranks(),
                    .values = {},
                    .random = random_state()};
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) {
    const Sharding where = tensor.sharding();
    if (std::ranges::any_of(where.placements, &Placement::is_partial))
      fail(fmt::format("{} is {}: a sum that is still to come is no state; shard() it first", name,
                       where.to_string()));
    all.push_back(tensor);
  }
  Tensor::realize(all);
  const Context::Turn turn;
  std::vector<BoxReader::Box> parts;
  std::vector<std::byte*> places;  // of these
  for (const auto& [name, tensor] : tensors) {
    Storage& storage = *Storage::of(**stored_node(tensor.state()->value));
    storage.check_usable();
    Value value{.dtype = tensor.dtype(), .shape = tensor.shape(), .boxes = {}};
    for (int rank = 0; rank < snapshot.ranks; ++rank)
      value.boxes.push_back(boxes_of(storage.sharding, value.shape, rank));
    const LocalBox whole{Dims(value.shape.size()), value.shape};
    value.whole = product(value.shape) == 0 ||
                  std::ranges::all_of(value.boxes, [&](const std::vector<LocalBox>& boxes) {
                    return offset_of(whole, boxes, value.dtype) != kNoOffset;
                  });
    const std::vector<LocalBox>& own = value.boxes[size_t(snapshot.rank)];
    value.own.resize(bytes_of(own, value.dtype));
    for (const PartToFill& part : parts_to_fill(storage)) {
      if (part.bytes() == 0) continue;
      const Dims& size = part.box.size;
      parts.push_back(
          {storage.devices()[part.device],
           storage.memory_to_copy()[part.device],
           {size, {Dims(size.size()), size}, storage.local_shape(), itemsize(value.dtype)}});
      places.push_back(value.own.data() + offset_of(part.box, own, value.dtype));
    }
    snapshot.values.emplace(name, std::move(value));
  }
  BoxReader reader(std::move(parts));
  run_file_jobs(places.size(), [&](size_t i) {
    reader.read(i, 0, reader.bytes(i), [&](size_t at, std::span<const std::byte> bytes) {
      std::memcpy(places[i] + at, bytes.data(), bytes.size());
    });
    return int64_t(reader.bytes(i));
  });
  return snapshot;
}

// Gives the rank behind a copy of what is divided, and returns when all ranks have come so far: whether
// others wait to join.
bool Elastic::keep(Snapshot now, int64_t number) {
  next_ = std::move(now);
  next_->number = number;
  if (next_->ranks > 1 && next_->is_divided()) {
    const Context::Turn turn;
    Communicator& world = Context::get().world();
    const std::vector<int> first = first_participants(world, next_->ranks);
    const int ranks = next_->ranks, rank = next_->rank;
    const int before = (rank + ranks - 1) % ranks, behind = (rank + 1) % ranks;
    const int own_place = first[size_t(rank)];
    std::vector<Work> works;
    for (auto& [name, value] : next_->values) {
      if (value.whole) continue;
      value.copy.resize(bytes_of(value.boxes[size_t(before)], value.dtype));
      if (!value.own.empty())
        works.push_back(world.send({value.own.data()}, value.own.size(), DType::U8, own_place,
                                   first[size_t(behind)]));
      if (!value.copy.empty())
        works.push_back(world.recv({value.copy.data()}, value.copy.size(), DType::U8,
                                   first[size_t(before)], own_place));
    }
    for (Work& work : works) work.wait();
  }
  committed_ = next_->progress.step;
  commits_.keep(number, std::move(*next_));
  next_.reset();
  const bool asks = Context::get().rank() == 0 && builtins().ranks_wait_to_join();
  const bool some_wait = least_of_all({number, asks ? 0 : 1, 0})[1] == 0;
  commits_.all_have_last();
  lost_.clear();
  return some_wait;
}

// StateLost where a box was only with ranks that are gone. `left`: the rank that each rank was.
void Elastic::find_lost(const Snapshot& from, const std::vector<int>& left) {
  const auto is_left = [&](int rank) { return std::ranges::find(left, rank) != left.end(); };
  for (const auto& [name, value] : from.values) {
    if (value.whole) continue;
    for (int rank = 0; rank < from.ranks; ++rank) {
      for (const LocalBox& box : value.boxes[size_t(rank)]) {
        bool found = false;
        for (int other = 0; other < from.ranks && !found; ++other)
          found = offset_of(box, value.boxes[size_t(other)], value.dtype) != kNoOffset &&
                  (is_left(other) || is_left((other + 1) % from.ranks));
        if (found) continue;
        const int behind = (rank + 1) % from.ranks;
        lost_ = fmt::format(
            "a part of {} is lost: of the {} ranks that committed step {}, rank {}, which held it, "
            "and rank {}, which held its copy, are both gone; load the checkpoint",
            name, from.ranks, from.progress.step, rank, behind);
        CommErrorInfo info;
        info.rank = Context::get().rank();
        info.operation = "restore";
        info.detail = lost_;
        committed_ = -1;
        throw StateLost(info);
      }
    }
  }
}

// The boxes of the tensor that this rank holds, from those of the ranks that have them.
std::vector<std::vector<std::byte>> Elastic::divide(const Value& from, const Tensor& into,
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
    const size_t copied =
        offset_of(box, from.boxes[size_t((was + committed - 1) % committed)], from.dtype);
    return copied == kNoOffset ? kNoOffset : bytes_of(own, from.dtype) + copied;
  };
  std::vector<LocalBox> all;
  for (const auto& boxes : from.boxes) {
    for (const LocalBox& box : boxes) {
      if (std::ranges::find(all, box) == all.end()) all.push_back(box);
    }
  }
  const std::vector<int> first = first_participants(world, ranks);
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

void Elastic::write(const Snapshot& from, const StateDict& tensors, const std::vector<int>& left) {
  std::map<std::string, FoundValue> found;
  for (const auto& [name, value] : from.values) found.emplace(name, FoundValue{value.shape});
  const NameMatch match = match_names(tensors, found, {});
  std::vector<Wanted> wanted;
  std::vector<const Value*> values;
  for (const auto& [name, stored] : match.source) {
    const Tensor& tensor = tensors.at(name);
    const Value& value = from.values.at(stored);
    const Sharding where = tensor.sharding();
    if (tensor.dtype() != value.dtype ||
        std::ranges::any_of(where.placements, &Placement::is_partial))
      fail(fmt::format("{} is {} {}, and was committed as {}", name,
                       tinyshard::name(tensor.dtype()), where.to_string(),
                       tinyshard::name(value.dtype)));
    wanted.push_back({tensor, value.dtype});
    values.push_back(&value);
  }
  find_lost(from, left);
  fill_in_place(
      wanted,
      [&](std::span<const std::pair<Storage*, size_t>> storages, const ByteProgress& moved) {
        std::vector<std::vector<std::vector<std::byte>>> parts;
        std::vector<PartFill> fills;
        parts.reserve(storages.size());
        for (const auto& [storage, index] : storages) {
          const Value& value = *values[index];
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

void Elastic::commit(const StateDict& tensors, const Progress& progress, Caller caller) {
  Call call("commit", caller);
  if (current_capture()) fail("a captured step has no values to keep yet; commit behind it");
  if (progress.step < 0 || progress.step <= committed_)
    fail(
        fmt::format("step {} is not behind the last committed one, {}", progress.step, committed_));
  if (!keep(copy(tensors, progress), commits_.last_step() + 1)) return;
  CommErrorInfo info;
  info.rank = Context::get().rank();
  info.operation = "commit";
  info.detail = fmt::format(
      "no rank failed: step {} is committed, and ranks that were started later wait to join; "
      "Runtime::reform() takes them in",
      progress.step);
  throw RanksJoin(info);
}

namespace {

// Numbers and names as bytes, behind each other.
class Writer {
 public:
  void add(int64_t number) {
    const auto* begin = reinterpret_cast<const std::byte*>(&number);
    bytes.insert(bytes.end(), begin, begin + sizeof(number));
  }
  void add(std::span<const int64_t> numbers) {
    add(int64_t(numbers.size()));
    for (int64_t number : numbers) add(number);
  }
  void add(std::string_view text) {
    add(int64_t(text.size()));
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    bytes.insert(bytes.end(), begin, begin + text.size());
  }
  std::vector<std::byte> bytes;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : left_(bytes) {}
  int64_t number() {
    int64_t number = 0;
    std::memcpy(&number, take(sizeof(number)).data(), sizeof(number));
    return number;
  }
  Dims numbers() {
    const int64_t count = number();
    Dims numbers;
    for (int64_t i = 0; i < count; ++i) numbers.push_back(number());
    return numbers;
  }
  std::string text() {
    const auto bytes = take(size_t(number()));
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  std::span<const std::byte> take(size_t bytes) {
    check_internal(bytes <= left_.size(), "what a rank tells newcomers is whole");
    const auto taken = left_.first(bytes);
    left_ = left_.subspan(bytes);
    return taken;
  }
  std::span<const std::byte> left_;
};

// From one rank to all, who do not know how many there are.
std::vector<std::byte> broadcast(std::vector<std::byte> bytes, int from) {
  const int size = numbers_of_all(int(bytes.size()))[size_t(from)];
  const Context::Turn turn;
  Communicator& world = Context::get().world();
  bytes.resize(size_t(size));
  std::vector<std::vector<std::byte>> into(world.local().size(),
                                           std::vector<std::byte>(bytes.size()));
  std::vector<CommBuffer> send, recv;
  for (auto& memory : into) {
    send.push_back({bytes.data()});
    recv.push_back({memory.data()});
  }
  const std::vector<int> first = first_participants(world, Context::get().ranks());
  world.broadcast(send, recv, bytes.size(), DType::U8, first[size_t(from)]).wait();
  return into[0];
}

}  // namespace

// Tells ranks that joined later what there is: progress, random numbers, and of each tensor type, shape
// and whose the boxes are; not the boxes. The commit for write().
const Elastic::Snapshot* Elastic::spread(const Snapshot* own, int64_t number,
                                         const std::vector<int>& left) {
  const auto teller = std::ranges::find_if(left, [](int was) { return was != kNewcomer; });
  Writer out;
  if (own != nullptr) {
    for (int64_t n :
         {own->progress.step, own->progress.samples, int64_t(own->ranks), int64_t(own->random.seed),
          int64_t(own->random.drawn), int64_t(own->random.trained), int64_t(own->values.size())})
      out.add(n);
    for (const auto& [name, value] : own->values) {
      out.add(name);
      out.add(int64_t(value.dtype));
      out.add(value.shape);
      out.add(int64_t(value.whole));
      for (const std::vector<LocalBox>& boxes : value.boxes) {
        out.add(int64_t(boxes.size()));
        for (const LocalBox& box : boxes) {
          out.add(box.begin);
          out.add(box.size);
        }
      }
    }
  }
  const std::vector<std::byte> bytes = broadcast(std::move(out.bytes), int(teller - left.begin()));
  if (own != nullptr) return own;
  Reader in(bytes);
  told_ = Snapshot{
      .progress = {}, .number = number, .rank = kNewcomer, .ranks = 1, .values = {}, .random = {}};
  Snapshot& told = *told_;
  told.progress.step = in.number();
  told.progress.samples = in.number();
  told.ranks = int(in.number());
  told.random.seed = uint64_t(in.number());
  told.random.drawn = uint64_t(in.number());
  told.random.trained = uint64_t(in.number());
  for (int64_t values = in.number(); values > 0; --values) {
    const std::string name = in.text();
    Value value{.dtype = DType(in.number()), .shape = in.numbers(), .boxes = {}};
    value.whole = in.number() != 0;
    for (int rank = 0; rank < told.ranks; ++rank) {
      std::vector<LocalBox>& boxes = value.boxes.emplace_back();
      for (int64_t n = in.number(); n > 0; --n) {
        LocalBox box;
        box.begin = in.numbers();
        box.size = in.numbers();
        boxes.push_back(std::move(box));
      }
    }
    told.values.emplace(name, std::move(value));
  }
  return &told;
}

// The commit that all ranks go on from; kNothing: there is none. Ranks that came later have none, and
// do not count where another one knows that all of its world had one. Example: ranks 0 and 1 have
// commit 7 and know that all had it, rank 2 has just joined: 7. Rank 0 has commit 0 and does not know
// that of rank 1, which has none and was there: nothing, they begin again.
int64_t Elastic::agree_on_commit() {
  constexpr int64_t kNothing = Commits<Snapshot>::kNothing;
  enum : int64_t { WasThere, CameLater, HasOne };
  const int64_t last = commits_.last_step();
  const bool came_later = !was_there_ && builtins().joined_later();
  const int64_t state = last != kNothing ? HasOne : came_later ? CameLater : WasThere;
  const Message all = least_of_all({last == kNothing ? kMost : last, -commits_.sure(), state});
  const bool some_sure = -all[1] != kNothing;
  if (all[0] == kMost && all[2] == CameLater) {
    CommErrorInfo info;
    info.rank = Context::get().rank();
    info.operation = "restore";
    lost_ =
        "all ranks that could have had a commit are gone, those that are left came later; load the "
        "checkpoint";
    info.detail = lost_;
    throw StateLost(info);
  }
  return all[0] != kMost && (some_sure || all[2] != WasThere) ? all[0] : kNothing;
}

Progress Elastic::restore(const StateDict& tensors, Caller caller) {
  Call call("restore", caller);
  if (current_capture()) fail("a captured step cannot be restored inside of itself");
  if (!lost_.empty()) fail(lost_);
  const int64_t last = commits_.last_step(), number = agree_on_commit();
  const Snapshot* common = commits_.return_to(last == Commits<Snapshot>::kNothing ? last : number);
  if (number == Commits<Snapshot>::kNothing) {
    committed_ = -1;
    was_there_ = true;
    return {};
  }
  if (common == nullptr && last != Commits<Snapshot>::kNothing)
    fail(fmt::format("the ranks share no commit: this one has number {}, another one number {}",
                     last, number));
  // Nobody has a newer one any more, so that the next one with its number is one.
  const std::vector<int> left = numbers_of_all(common ? common->rank : kNewcomer);
  const bool some_new = std::ranges::find(left, kNewcomer) != left.end();
  if (some_new) common = spread(common, number, left);
  committed_ = common->progress.step;
  write(*common, tensors, left);
  const Progress progress = common->progress;
  if (some_new || common->is_divided()) {
    Snapshot now = copy(tensors, progress);
    keep(std::move(now), number + 1);
  }
  told_.reset();
  was_there_ = true;
  return progress;
}

}  // namespace tinyshard::nn
