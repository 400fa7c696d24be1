// Targets and answers as vendor.cpp gives them, with the numbers that data sheets tell.
#include "devices/hip/planned_gpu.h"

#include <utility>

#include "devices/hip/gpu_target.h"
#include "devices/hip/library_calls.h"

namespace tinyshard::hip {
namespace {

PlannedDevice planned(std::string kind, std::string_view architecture, int units) {
  Target target = gpu_target(architecture);
  target.multiprocessors = units;
  return {.kind = std::move(kind),
          .target = std::move(target),
          .profile = gpu_profile(),
          .supports = library_supports,
          .provider = nullptr,
          .worth_copying = {}};
}

}  // namespace

PlannedDevice planned_mi300x() { return planned("NULL_MI300X", "gfx942", 304); }
PlannedDevice planned_rx7900() { return planned("NULL_RX7900", "gfx1100", 96); }

}  // namespace tinyshard::hip
