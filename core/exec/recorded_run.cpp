// Runs of recordings. If nothing goes from device to device in the middle of a run, it is one
// recording per device. Otherwise the run is cut into segments (segments.h), of which all but the
// sends and the shortest ones are recordings: one launch for what a stage of a pipeline does with a
// micro-batch, whatever it consists of.
#include <algorithm>
#include <utility>

#include "core/exec/context.h"
#include "core/exec/executable.h"
#include "core/exec/replay.h"
#include "core/schedule/hazards.h"

namespace tinyshard {

// A recording holds what one device does: values that go from device to device, or through the
// host, are in none.
bool Executable::can_hold(const Step& step) const {
  const bool copy = step.item->kind == Item::Kind::Copy;
  auto stays = [&](const Launch& l) {
    const auto local = size_t(&l - step.launches.data());
    return l.device->can_record() &&
           (!copy || (step.item->places.empty() && &source_of(*step.item, local) == l.device));
  };
  return std::ranges::all_of(step.launches, stays) &&
         std::ranges::all_of(step.groups, [](const Group& g) {
           return !g.through_host && g.communicator->on_devices();
         });
}

bool Executable::can_record() const {
  if (steps_.size() - leading_ < Replay::kFewestItems) return false;
  return std::all_of(steps_.begin() + long(leading_), steps_.end(),
                     [&](const Step& step) { return can_hold(step); });
}

// Where the whole is no recording, and all devices record.
void Executable::make_segments() {
  if (can_record_ || devices_.size() < 2 ||
      !std::ranges::all_of(devices_, [](const Device* d) { return d->can_record(); }))
    return;
  Context& context = Context::get();
  std::vector<Device*> known = devices_;  // and those that copies read from
  auto number = [&](Device* device) {
    const auto found = std::ranges::find(known, device);
    if (found == known.end()) known.push_back(device);
    return int(std::ranges::find(known, device) - known.begin());
  };
  std::vector<StepToCut> steps;
  for (size_t s = leading_; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    StepToCut& cut = steps.emplace_back();
    for (const Launch& launch : step.launches) cut.devices.push_back(number(launch.device));
    if (step.item->kind == Item::Kind::Copy) {
      const Mesh& from = schedule_.buffers[size_t(step.item->buffers[0])].mesh;
      for (int p : context.local_positions(from))
        cut.devices.push_back(number(&context.device(from.devices()[size_t(p)])));
    }
    std::ranges::sort(cut.devices);
    cut.devices.erase(std::ranges::unique(cut.devices).begin(), cut.devices.end());
    cut.recorded = can_hold(step);
  }
  std::vector<Segment> segments = cut_into_segments(steps, Replay::kFewestItems);
  if (std::ranges::none_of(segments, &Segment::recorded)) return;
  segment_of_.assign(steps_.size(), -1);
  for (Segment& segment : segments) {
    for (int& s : segment.steps) segment_of_[size_t(s += int(leading_))] = int(segments_.size());
    ToldSegment& told = segments_.emplace_back();
    for (int d : segment.devices) told.on.push_back(known[size_t(d)]);
    std::ranges::sort(told.on);
    static_cast<Segment&>(told) = std::move(segment);
  }
}

void Executable::drop_recordings() {
  replay_.reset();
  for (ToldSegment& segment : segments_) segment.replay.reset();
}

void Executable::pointers_changed(const Binding& binding) {
  if (binding.leads) return;
  const int segment = segments_.empty() ? -1 : segment_of_[size_t(binding.step)];
  if (segment >= 0 && !segments_[size_t(segment)].recorded) return;
  Replay& replay = segment >= 0 ? segments_[size_t(segment)].replay : replay_;
  if (binding.launched)
    replay.changed(binding.list);
  else
    replay.reset();
}

void Executable::run_segment(const Segment& segment, std::span<const std::vector<int>> orders) {
  const std::vector<bool> urgent = urgent_steps(orders);
  for (size_t i = 0; i < segment.steps.size(); ++i) {
    Step& step = steps_[size_t(segment.steps[i])];
    if (!orders.empty()) {
      for (Launch& launch : step.launches) launch.device->record_step(orders[i], urgent[i]);
    }
    run_item(step);
  }
  for (int s : segment.steps) wait_for(steps_[size_t(s)]);
}

void Executable::run_recorded() {
  if (segments_.empty()) {
    return replay_.run(devices_, [this] {
      const ItemTimes::Pause pause(times_);
      run_items(std::span(steps_).subspan(leading_), orders(behind_leading()));
    });
  }
  in_segments_ = true;
  try {
    run_segments();
  } catch (...) {
    in_segments_ = false;
    throw;
  }
  in_segments_ = false;
}

void Executable::run_segments() {
  for (ToldSegment& segment : segments_) {
    if (!segment.recorded) {
      run_segment(segment, {});
      continue;
    }
    segment.replay.run(segment.on, [&] {
      const ItemTimes::Pause pause(times_);
      run_segment(segment, orders(segment.steps));
    });
    times_.skip();
  }
}

}  // namespace tinyshard
