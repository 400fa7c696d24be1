// Parts of storages as boxes of files, or of whoever reads them, for the devices that hold them:
// bulk_copies.h moves the bytes.
#include "core/exec/read_boxes.h"

#include <algorithm>
#include <memory>

#include "core/base/call.h"
#include "core/exec/box_rows.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/context.h"

namespace tinyshard {

size_t PartToFill::bytes() const { return size_t(product(box.size)) * itemsize(storage->dtype()); }

std::vector<PartToFill> parts_to_fill(Storage& storage) {
  std::vector<PartToFill> parts;
  const std::vector<int> positions = Context::get().local_positions(storage.sharding.mesh);
  for (size_t i = 0; i < positions.size(); ++i) {
    if (!storage.devices()[i]->executes()) continue;
    LocalBox box = local_box(storage.sharding, storage.shape(), positions[i]);
    const auto same = std::ranges::find(parts, box, &PartToFill::box);
    if (same != parts.end()) {
      same->replicas.push_back(i);
    } else {
      parts.push_back({&storage, i, std::move(box), {}});
    }
  }
  return parts;
}

namespace {

// All devices that hold the part, with room for its rows: `rows` say where they come from.
BoxIn box_of(const PartToFill& part, BoxRows rows) {
  Storage& storage = *part.storage;
  BoxIn box{.rows = std::move(rows), .room = storage.local_bytes(), .targets = {}};
  box.targets.push_back({storage.devices()[part.device], storage.memory()[part.device]});
  for (size_t d : part.replicas) box.targets.push_back({storage.devices()[d], storage.memory()[d]});
  return box;
}

}  // namespace

void read_boxes(std::span<const FileFill> fills, const ByteProgress& progress) {
  std::vector<BoxIn> boxes;
  for (const FileFill& fill : fills) {
    Storage& storage = *fill.storage;
    for (const PartToFill& part : parts_to_fill(storage)) {
      boxes.push_back(box_of(part, BoxRows(storage.shape(), part.box, storage.local_shape(),
                                           itemsize(storage.dtype()))));
      boxes.back().file = &fill.region;
      boxes.back().origin = origin_of_call();
    }
  }
  copy_in(boxes, progress);
}

void fill_parts(std::span<const PartFill> fills, const ByteProgress& progress) {
  struct Fill {
    const PartFill* from;
    PartToFill part;
    BoxIn box;  // of the elements of the part, row-major
  };
  int64_t total = 0;
  std::vector<Fill> parts;
  CopyQueues queues;
  for (const PartFill& fill : fills) {
    Storage& storage = *fill.storage;
    for (PartToFill& part : parts_to_fill(storage)) {
      const Dims& size = part.box.size;
      BoxIn box = box_of(part, BoxRows(size, {Dims(size.size()), size}, storage.local_shape(),
                                       itemsize(storage.dtype())));
      prepare_targets(box);
      total += int64_t(part.bytes());
      parts.push_back({&fill, std::move(part), std::move(box)});
    }
  }
  for (const Fill& fill : parts) {
    for (const BoxIn::Target& target : fill.box.targets) queues.add(*target.device);
  }
  auto fill = [&](size_t i) {
    auto& [from, part, box] = parts[i];
    const size_t bytes = part.bytes();
    if (bytes == 0) return int64_t{0};
    const auto& [device, memory] = box.targets[0];
    auto* host = static_cast<std::byte*>(device->host_pointer(memory));
    if (host && bytes == box.room) {
      from->read(part.box, {host, bytes});
      box.host = host;
      box.targets.erase(box.targets.begin());
      copy_in(box, queues);
      return int64_t(bytes);
    }
    const auto packed = std::make_unique_for_overwrite<std::byte[]>(bytes);
    from->read(part.box, {packed.get(), bytes});
    box.host = packed.get();
    copy_in(box, queues);
    return int64_t(bytes);
  };
  run_file_jobs(parts.size(), fill, [&](int64_t bytes) {
    if (progress) progress(bytes, total);
  });
  queues.end();
}

}  // namespace tinyshard
