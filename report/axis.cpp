// Steps are 1, 2 or 5 times a power of ten: 0 to 47 in five steps of at
// least 9.4 goes by tens to 50. An axis of logarithms has a mark at each
// decade, and at 2 and 5 times it where there are two decades at most.
#include "report/axis.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace tinyshard {
namespace {

// The label of a mark; `step` says how many digits tell neighbours apart.
std::string tick_label(double value, double step) {
  if (std::fabs(value) < step * 1e-9) return "0";
  const double size = std::fabs(value);
  const double unit = size >= 1e9 ? 1e9 : size >= 1e6 ? 1e6 : size >= 1e4 ? 1e3 : 1;
  const char* suffix = unit == 1e9 ? "G" : unit == 1e6 ? "M" : unit == 1e3 ? "k" : "";
  if (size >= 1e13 || size < 1e-4) {
    std::string text = fmt::format("{:.3g}", value);
    if (const size_t zero = text.find("e-0"); zero != text.npos) text.erase(zero + 2, 1);  // 5e-05
    return text;
  }
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)), 0, 9);
  return fmt::format("{:.{}f}{}", value / unit, digits, suffix);
}

}  // namespace

Axis nice_axis(double low, double high, int count, bool log) {
  Axis axis;
  if (log) {
    int first = static_cast<int>(std::floor(std::log10(low) + 1e-9)),
        last = static_cast<int>(std::ceil(std::log10(high) - 1e-9));
    if (last <= first) last = first + 1;
    const int decades = last - first;
    const int stride = std::max(1, (decades + count - 1) / count);
    const bool fine = decades <= 2;
    for (int decade = first; decade <= last; decade += stride) {
      for (double factor : {1., 2., 5.}) {
        const double value = factor * std::pow(10., decade);
        if ((factor > 1 && !fine) || value > std::pow(10., last) * 1.0001) continue;
        axis.ticks.push_back(value);
        axis.labels.push_back(tick_label(value, std::pow(10., decade)));
      }
    }
    axis.low = std::pow(10., first);
    axis.high = std::pow(10., last);
    if (fine) {  // as tight as the marks allow
      while (axis.ticks.size() > 2 && axis.ticks[1] <= low * 1.0001) {
        axis.ticks.erase(axis.ticks.begin());
        axis.labels.erase(axis.labels.begin());
      }
      while (axis.ticks.size() > 2 && axis.ticks[axis.ticks.size() - 2] >= high * 0.9999) {
        axis.ticks.pop_back();
        axis.labels.pop_back();
      }
      axis.low = axis.ticks.front();
      axis.high = axis.ticks.back();
    }
    return axis;
  }
  // A range of nothing, or too fine for the digits of a double, is widened.
  const double size = std::max(std::fabs(low), std::fabs(high));
  if (!(high - low > std::max(size * 1e-12, 1e-290))) {
    const double room = size < 1e-289 ? 1 : high > low ? size * 1e-11 : size / 10;
    low -= room;
    high += room;
  }
  const double raw = high / count - low / count;  // not (high - low): that may overflow
  const double power = std::pow(10., std::floor(std::log10(raw)));
  double step = 10 * power;
  for (double factor : {5., 2., 1.}) {
    if (factor * power >= raw * 0.999) step = factor * power;
  }
  const double first = std::floor(low / step + 1e-6), last = std::ceil(high / step - 1e-6);
  const int steps = static_cast<int>(std::clamp(last - first, 1., 100.));
  for (int i = 0; i <= steps; ++i) {
    axis.ticks.push_back((first + i) * step);
    axis.labels.push_back(tick_label(axis.ticks.back(), step));
  }
  axis.low = first * step;
  axis.high = axis.ticks.back();
  return axis;
}

}  // namespace tinyshard
