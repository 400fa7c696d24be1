// Copies of a run. Between devices they follow each other in the devices' queues. Those that bring
// large values from files or the host's memory are done beside each other, all that come in a row
// and touch nothing of each other, by the threads of bulk_copies.h: a model of a thousand tensors on
// four devices is one such load.
#include <algorithm>
#include <deque>
#include <iterator>

#include "core/base/call.h"
#include "core/base/origin.h"
#include "core/exec/bulk_copies.h"
#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/transfer.h"
#include "core/schedule/hazards.h"

namespace tinyshard {
namespace {

constexpr int64_t kBulkBytes = 8 << 20;  // less is copied before threads have begun
// A GPU is given this much of the host's memory without a wait for what it was told before: steps go
// on being queued.
constexpr int64_t kQueuedBytes = 16 << 20;

// The part of `shape` that a device of the copy's mesh gets, padding included.
Box part_for(const Item& item, size_t element, const int64_t* coordinates) {
  Box box{item.source_shape, Dims(item.source_shape.size()), item.source_shape, element};
  for (const CopyPart& part : item.parts) {
    const int64_t length = (box.size[part.axis] + part.parts - 1) / part.parts;
    box.begin[part.axis] += coordinates[part.mesh_axis] * length;
    box.size[part.axis] = length;
  }
  return box;
}

// The rows of a box that are inside of its shape.
BoxRows rows_inside(const Box& box) {
  LocalBox inside{box.begin, box.size};
  for (size_t d = 0; d < box.shape.size(); ++d) {
    inside.begin[d] = std::min(box.begin[d], box.shape[d]);
    inside.size[d] = std::clamp<int64_t>(box.shape[d] - box.begin[d], 0, box.size[d]);
  }
  return {box.shape, inside, box.size, box.element};
}

}  // namespace

// Copies what several places have to each device of the target, one after the other.
void Executable::copy_from_places(const Step& step) {
  const Item& item = *step.item;
  const auto [base, offset] = base_of(item.buffers[0]);
  const bool asked = owned_[base] && !owned_[base]->is_placeholder();
  const Box box{item.source_shape, Dims(item.source_shape.size()), item.source_shape,
                itemsize(schedule_.buffers[item.buffers[0]].dtype)};
  const size_t bytes = size_t(product(box.size)) * box.element;
  for (const Launch& launch : step.launches) {
    auto* to = static_cast<char*>(launch.buffers[item.places.size()]);
    for (size_t i = 0; i < item.places.size(); ++i) {
      const auto place = size_t(item.places[i]);
      void* from = launch.buffers[i];
      if (asked) from = static_cast<char*>(owned_[base]->memory_to_copy()[place]) + offset;
      copy_box(box, source_device(item, place), from, *launch.device, to + i * bytes);
    }
  }
}

void Executable::CopyLoad::add(const Executable& of, const Step& step) {
  const Item& item = *step.item;
  const Storage* source = of.owned_[size_t(of.base_of(item.buffers[0]).first)].get();
  const int64_t bytes = of.schedule_.buffers[size_t(item.buffers[1])].bytes();
  if (source && region_of(*source))
    from_files += bytes * int64_t(step.launches.size());
  else
    from_memory += bytes;
}
bool Executable::CopyLoad::is_bulk() const {
  return from_files >= kBulkBytes || from_memory > kQueuedBytes;
}

// Where the source of a copy lies for local device number `local` of the target.
void* Executable::source_pointer(const Step& step, size_t local) {
  const auto [base, offset] = base_of(step.item->buffers[0]);
  if (!owned_[base] || owned_[base]->is_placeholder()) return step.launches[local].buffers[0];
  const auto memory = owned_[base]->memory_to_copy();
  return static_cast<char*>(memory[step.item->place_by_place ? local : 0]) + offset;
}

// Copies the part of a replicated source that belongs to each device of the target.
void Executable::copy(const Step& step) {
  if (step.launches.empty()) return;  // the source may be on other ranks only
  const Item& item = *step.item;
  if (!item.places.empty()) return copy_from_places(step);
  if (bulk_[size_t(&step - steps_.data())] > 0) {
    CopyLoad load;
    load.add(*this, step);
    const std::vector<BoxIn> boxes = load.is_bulk() ? boxes_of(step) : std::vector<BoxIn>();
    if (!boxes.empty()) return copy_in(boxes);
  }
  const size_t element = itemsize(schedule_.buffers[size_t(item.buffers[0])].dtype);
  for (size_t local = 0; local < step.launches.size(); ++local) {
    const Launch& launch = step.launches[local];
    Device& source = source_of(item, local);
    void* from = source_pointer(step, local);
    if (step.ledger && local == 0) note_copied(step, source, from);
    copy_box(part_for(item, element, launch.coordinates), source, from, *launch.device,
             launch.buffers[1]);
  }
}

std::vector<BoxIn> Executable::boxes_of(const Step& step) {
  const Item& item = *step.item;
  const VirtualBuffer& read = schedule_.buffers[size_t(item.buffers[0])];
  const auto [base, offset] = base_of(item.buffers[0]);
  const FileRegion* file = owned_[size_t(base)] ? region_of(*owned_[size_t(base)]) : nullptr;
  // The line that asked for the value to be there; else the one that needs it now.
  OriginId origin = schedule_.buffers[size_t(item.writes[0])].origin;
  if (origin_of(origin).line == 0) origin = origin_of_call();
  std::vector<BoxIn> boxes;
  std::vector<std::pair<Box, const void*>> known;
  for (size_t local = 0; local < step.launches.size(); ++local) {
    const Launch& launch = step.launches[local];
    Device& source = source_of(item, local);
    void* from = source_pointer(step, local);
    const void* host = source.host_pointer(from);
    if (!host) return {};
    if (step.ledger && local == 0) note_copied(step, source, from);
    Box part = part_for(item, itemsize(read.dtype), launch.coordinates);
    const BoxIn::Target target{launch.device, launch.buffers[1]};
    const auto same = std::ranges::find_if(known, [&](const auto& other) {
      return other.second == host && other.first.begin == part.begin &&
             other.first.size == part.size;
    });
    if (same != known.end()) {
      boxes[size_t(same - known.begin())].targets.push_back(target);
      continue;
    }
    boxes.push_back({.file = file,
                     .file_begin = uint64_t(offset),
                     .host = static_cast<const std::byte*>(host),
                     .origin = origin,
                     .rows = rows_inside(part),
                     .room = size_t(product(part.size)) * part.element,
                     .targets = {target}});
    known.emplace_back(std::move(part), host);
  }
  return boxes;
}

// Finds the copies for many threads: of values that somebody holds, to memory that no input stands
// for. Neighbours go together as long as none of them has to come after another.
void Executable::find_bulk_copies() {
  bulk_.assign(steps_.size(), 0);
  auto is_bulk = [&](const Step& step) {
    const Item& item = *step.item;
    if (item.kind != Item::Kind::Copy || step.launches.empty()) return false;
    if (!item.places.empty() || !item.waits.empty()) return false;
    const Storage* from = owned_[size_t(base_of(item.buffers[0]).first)].get();
    const Storage* to = owned_[size_t(base_of(item.buffers[1]).first)].get();
    return from && !from->is_placeholder() && !(to && to->is_placeholder());
  };
  auto access = [&](int buffer, bool written) {
    constexpr uint64_t kArena = 0;
    const auto [base, offset] = base_of(buffer);
    const Storage* storage = owned_[size_t(base)].get();
    const int64_t begin = offset + (storage ? 0 : schedule_.buffers[size_t(base)].arena_offset);
    return Access{storage ? reinterpret_cast<uintptr_t>(storage) : kArena, begin,
                  begin + schedule_.buffers[size_t(buffer)].bytes(), written};
  };
  for (size_t first = 0; first < steps_.size();) {
    size_t last = first;
    std::vector<std::vector<Access>> accesses;
    for (; last < steps_.size() && is_bulk(steps_[last]); ++last) {
      const Item& item = *steps_[last].item;
      accesses.push_back({access(item.buffers[0], false), access(item.buffers[1], true)});
    }
    const std::vector<std::vector<int>> after = hazards(accesses);
    size_t begin = 0;
    for (size_t i = 0; i < after.size(); ++i) {
      if (!after[i].empty() && size_t(after[i].back()) >= begin) begin = i;
      ++bulk_[first + begin];
      if (begin != i) bulk_[first + i] = 1;
    }
    first = std::max(last, first + 1);
  }
}

size_t Executable::run_bulk_copies(std::span<Step> steps) {
  const size_t count = std::min(bulk_[size_t(steps.data() - steps_.data())], steps.size());
  if (count < 2 || items_are_timed()) return 0;
  steps = steps.first(count);
  CopyLoad load;
  for (const Step& step : steps) load.add(*this, step);
  std::deque<ObservedScope> events;
  std::vector<int> items;
  std::vector<BoxIn> boxes;
  for (Step& step : steps) {
    std::vector<BoxIn> of_step = load.is_bulk() ? boxes_of(step) : std::vector<BoxIn>();
    if (of_step.empty()) {
      run_item(step);
      continue;
    }
    items.push_back(int(&step - steps_.data()));
    if (items_are_events()) events.emplace_back([&] { return event_of(step); });
    std::ranges::move(of_step, std::back_inserter(boxes));
  }
  const ItemTimes::Time begun = times_.next();
  if (!boxes.empty()) copy_in(boxes);
  for (const int item : items) times_.end(item, false, begun);  // at once
  while (!events.empty()) events.pop_back();                    // they nest
  return count;
}

}  // namespace tinyshard
