// Boxes of all values are read by a few threads at once, into memory that is kept from one snapshot
// to the next but one. What is kept in place notes where it lies, and is read when somebody needs it.
#include "core/nn/snapshot.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/file_jobs.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"
#include "core/exec/state.h"

namespace tinyshard::nn {

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

size_t offset_of(const LocalBox& box, const std::vector<LocalBox>& boxes, DType dtype) {
  size_t at = 0;
  for (const LocalBox& other : boxes) {
    if (other == box) return at;
    at += size_t(product(other.size)) * itemsize(dtype);
  }
  return kNoOffset;
}

bool KeptValue::is_copied(int rank) const {
  if (whole) return false;
  return std::ranges::any_of(boxes[size_t(rank)], [&](const LocalBox& box) {
    for (size_t other = 0; other < boxes.size(); ++other) {
      if (int(other) != rank && std::ranges::find(boxes[other], box) != boxes[other].end())
        return false;
    }
    return true;
  });
}

bool Snapshot::is_divided() const {
  return std::ranges::any_of(values, [](const auto& value) { return !value.second.whole; });
}

void Snapshot::copy_now() {
  if (!in_place) return;
  for (auto& [name, value] : values)
    value.own.resize(bytes_of(value.boxes[size_t(rank)], value.dtype));
  run_file_jobs(places.size(), [&](size_t i) {
    const Place& place = places[i];
    std::byte* out = place.into->own.data() + place.at;
    for (int64_t r = 0; r < place.rows.count(); ++r)
      std::memcpy(out + place.rows[r].in_array, place.memory + place.rows[r].in_memory,
                  place.rows.bytes());
    return int64_t(place.rows.total());
  });
  in_place = false;
  places.clear();
  storages.clear();
}

namespace {

void check_no_sum(const std::string& name, const Sharding& where) {
  if (std::ranges::any_of(where.placements, &Placement::is_partial))
    fail(fmt::format("{} is {}: a sum that is still to come is no state; shard() it first", name,
                     where.to_string()));
}

KeptValue described(const Tensor& tensor, const Sharding& where, int ranks) {
  KeptValue value{.dtype = tensor.dtype(), .shape = tensor.shape()};
  for (int rank = 0; rank < ranks; ++rank)
    value.boxes.push_back(boxes_of(where, value.shape, rank));
  const LocalBox whole{Dims(value.shape.size()), value.shape};
  value.whole = product(value.shape) == 0 ||
                std::ranges::all_of(value.boxes, [&](const std::vector<LocalBox>& boxes) {
                  return offset_of(whole, boxes, value.dtype) != kNoOffset;
                });
  return value;
}

// A box that this process holds, where it lies and where it goes to.
struct Source {
  KeptValue* into;
  size_t at;
  BoxReader::Box box;
  bool in_reach;  // of the host, by a device that has done what it was told
};

Source source_of(KeptValue& value, Storage& storage, const PartToFill& part, int rank) {
  const Dims& size = part.box.size;
  Device* device = storage.devices()[part.device];
  return {&value,
          offset_of(part.box, value.boxes[size_t(rank)], value.dtype),
          {device,
           storage.memory()[part.device],
           {size, {Dims(size.size()), size}, storage.local_shape(), itemsize(value.dtype)}},
          device->native_queue(Queue::Compute) == nullptr &&
              device->host_pointer(storage.memory()[part.device]) != nullptr};
}

void read(Snapshot& snapshot, const std::vector<Source>& sources, Snapshot* spare) {
  for (auto& [name, value] : snapshot.values) {
    if (spare) {
      const auto old = spare->values.find(name);
      if (old != spare->values.end()) {
        value.own = std::move(old->second.own);
        value.copy = std::move(old->second.copy);
      }
    }
    value.own.resize(bytes_of(value.boxes[size_t(snapshot.rank)], value.dtype));
  }
  std::vector<BoxReader::Box> boxes;
  for (const Source& source : sources) boxes.push_back(source.box);
  BoxReader reader(std::move(boxes));
  run_file_jobs(sources.size(), [&](size_t i) {
    std::byte* out = sources[i].into->own.data() + sources[i].at;
    reader.read(i, 0, reader.bytes(i), [&](size_t at, std::span<const std::byte> bytes) {
      std::memcpy(out + at, bytes.data(), bytes.size());
    });
    return int64_t(reader.bytes(i));
  });
}

}  // namespace

Snapshot take_snapshot(const StateDict& tensors, const Progress& progress, bool in_place,
                       Snapshot* spare) {
  Snapshot snapshot{.progress = progress,
                    .rank = Context::get().rank(),
                    .ranks = Context::get().ranks(),
                    .random = random_state()};
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) {
    check_no_sum(name, tensor.sharding());
    all.push_back(tensor);
  }
  Tensor::realize(all);
  const Context::Turn turn;
  std::vector<Source> sources;
  for (const auto& [name, tensor] : tensors) {
    const std::shared_ptr<Storage> storage = shared_storage(*stored_node(tensor.state()->value));
    storage->check_usable();
    KeptValue& value =
        snapshot.values.emplace(name, described(tensor, storage->sharding, snapshot.ranks))
            .first->second;
    for (const PartToFill& part : parts_to_fill(*storage)) {
      if (part.bytes() > 0) sources.push_back(source_of(value, *storage, part, snapshot.rank));
    }
    snapshot.storages.push_back(storage);
  }
  snapshot.can_stay = !snapshot.is_divided() &&
                      std::ranges::all_of(sources, [](const Source& s) { return s.in_reach; });
  snapshot.in_place = in_place && snapshot.can_stay;
  if (!snapshot.in_place) {
    read(snapshot, sources, spare);
    return snapshot;
  }
  for (const Source& source : sources) {
    const void* memory = source.box.device->host_pointer(const_cast<void*>(source.box.memory));
    snapshot.places.push_back(
        {source.into, source.at, static_cast<const std::byte*>(memory), source.box.rows});
  }
  return snapshot;
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

}  // namespace

std::vector<std::byte> description_of(const Snapshot& snapshot) {
  Writer out;
  for (int64_t n : {snapshot.progress.step, snapshot.progress.samples, int64_t(snapshot.ranks),
                    int64_t(snapshot.random.seed), int64_t(snapshot.random.drawn),
                    int64_t(snapshot.random.trained), int64_t(snapshot.values.size())})
    out.add(n);
  for (const auto& [name, value] : snapshot.values) {
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
  return std::move(out.bytes);
}

Snapshot described(const std::vector<std::byte>& bytes, int64_t number) {
  Reader in(bytes);
  Snapshot told{.number = number, .rank = kNewcomer};
  told.progress.step = in.number();
  told.progress.samples = in.number();
  told.ranks = int(in.number());
  told.random.seed = uint64_t(in.number());
  told.random.drawn = uint64_t(in.number());
  told.random.trained = uint64_t(in.number());
  for (int64_t values = in.number(); values > 0; --values) {
    const std::string name = in.text();
    KeptValue value{.dtype = DType(in.number()), .shape = in.numbers()};
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
  return told;
}

}  // namespace tinyshard::nn
