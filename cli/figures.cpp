// The median of two is the better one: of two neighbours the slower is named.
#include "cli/figures.h"

#include <algorithm>

#include <fmt/format.h>

namespace tinyshard::cli {
namespace {

constexpr double kOdd = 0.7;  // of the median of its neighbours
constexpr double kOddUs = 2;  // times the median: short times vary more

constexpr std::array kMeasures{
    Measure{"memory", "GB/s", &Figures::memory, true},
    Measure{"product", "GFLOP/s", &Figures::product, true},
    Measure{"to device", "GB/s", &Figures::to_device, true},
    Measure{"from device", "GB/s", &Figures::from_device, true},
    Measure{"disk write", "GB/s", &Figures::disk_write, true},
    Measure{"disk read", "GB/s", &Figures::disk_read, true},
    Measure{"sum 8 KB", "us", &Figures::small_sum_us, false},
    Measure{"sum 256 MB", "GB/s", &Figures::large_sum, true},
};

bool same_kind(const Figures& a, const Figures& b) {
  const std::string_view x = a.device.data(), y = b.device.data();
  return x.substr(0, x.find(':')) == y.substr(0, y.find(':'));
}

// The median of a figure of all ranks with such a device.
double median_of(std::span<const Figures> all, const Figures& like, const Measure& measure) {
  std::vector<double> values;
  for (const Figures& other : all) {
    if (same_kind(other, like) && other.*measure.value > 0) values.push_back(other.*measure.value);
  }
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[measure.more_is_better ? values.size() / 2 : (values.size() - 1) / 2];
}

}  // namespace

std::span<const Measure> measures() { return kMeasures; }

std::vector<std::string> odd_ones(std::span<const Figures> all,
                                  std::span<const std::string> names) {
  std::vector<std::string> found;
  for (const Measure& measure : kMeasures) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const double own = all[rank].*measure.value;
      const double median = median_of(all, all[rank], measure);
      if (own <= 0 || median <= 0) continue;
      if (measure.more_is_better ? own >= kOdd * median : own <= kOddUs * median) continue;
      found.push_back(fmt::format("{}, {}: {} {:.4g} {}, the median of such devices is {:.4g}",
                                  names[rank], all[rank].device.data(), measure.name, own,
                                  measure.unit, median));
    }
  }
  return found;
}

}  // namespace tinyshard::cli
