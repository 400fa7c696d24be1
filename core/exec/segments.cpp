// A segment is open for as long as its devices do nothing together with others. Open segments have no
// device in common.
#include "core/exec/segments.h"

#include <algorithm>
#include <utility>

namespace tinyshard {
namespace {

bool meet(std::span<const int> one, std::span<const int> other) {
  return std::ranges::any_of(one,
                             [&](int device) { return std::ranges::binary_search(other, device); });
}

}  // namespace

std::vector<Segment> cut_into_segments(std::span<const StepToCut> steps, size_t fewest) {
  std::vector<Segment> done, open;
  auto close = [&](Segment& segment) {
    segment.recorded = segment.recorded && segment.steps.size() >= fewest;
    done.push_back(std::move(segment));
  };
  for (int s = 0; s < int(steps.size()); ++s) {
    const StepToCut& step = steps[size_t(s)];
    const auto same = std::ranges::find(open, step.devices, &Segment::devices);
    if (step.recorded && same != open.end()) {
      same->steps.push_back(s);
      continue;
    }
    for (Segment& segment : open) {
      if (meet(segment.devices, step.devices)) close(segment);
    }
    std::erase_if(open, [](const Segment& segment) { return segment.steps.empty(); });
    Segment mine{{s}, step.devices, step.recorded};
    if (step.recorded)
      open.push_back(std::move(mine));
    else
      done.push_back(std::move(mine));
  }
  std::ranges::for_each(open, close);
  return done;
}

}  // namespace tinyshard
