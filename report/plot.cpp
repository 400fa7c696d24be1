// A column of pixels is drawn with four points at most: the first, lowest,
// highest and last that fall on it. Smoothing takes means from running sums.
// Colours are classes with a value for light and one for dark pages, and
// numbers are rounded to tenths of a pixel, so equal data give equal bytes.
#include "report/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "core/base/error.h"
#include "io/atomic_file.h"
#include "report/axis.h"

namespace tinyshard {
namespace {

// Told apart by people who see few colours, too: a colour for light pages and one for dark pages.
struct Colour {
  const char *light, *dark;
};
constexpr Colour kColours[] = {{"#2563eb", "#6ea8fe"}, {"#d9480f", "#ff9f68"},
                               {"#0b8457", "#4fd1a1"}, {"#a3246e", "#f291c7"},
                               {"#6d4fc4", "#b9a4ff"}, {"#5c6770", "#b3bcc4"}};
constexpr size_t kColourCount = std::size(kColours);

constexpr double kDigitWidth = 7, kLetterWidth = 6.9;  // of the 12 px font, for layout

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        // XML has no place for control characters.
        out += byte < 0x20 || byte == 0x7f ? ' ' : c;
    }
  }
  return out;
}

// XML must be UTF-8: a byte that is not becomes a question mark.
std::string utf8(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : (lead & 0xf0) == 0xe0       ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    bool good = length != 0 && i + length <= text.size();
    for (size_t k = 1; good && k < length; ++k) good = (text[i + k] & 0xc0) == 0x80;
    if (good && length == 3) {
      const auto second = static_cast<unsigned char>(text[i + 1]),
                 third = static_cast<unsigned char>(text[i + 2]);
      // Overlong forms, surrogates and U+FFFE, U+FFFF are no characters.
      good = !(lead == 0xe0 && second < 0xa0) && !(lead == 0xed && second >= 0xa0) &&
             !(lead == 0xef && second == 0xbf && third >= 0xbe);
    }
    if (good && length == 4) {
      const auto second = static_cast<unsigned char>(text[i + 1]);
      good = !(lead == 0xf0 && second < 0x90) && !(lead == 0xf4 && second >= 0x90);
    }
    out += good ? std::string(text.substr(i, length)) : "?";
    i += good ? length : 1;
  }
  return out;
}

// Where colours begin again, lines are dashed.
const char* dash_of(size_t series) {
  return series < kColourCount ? "" : " stroke-dasharray=\"7 5\"";
}

std::string label_of(std::string_view text) { return escaped(utf8(text)); }

double text_width(std::string_view text) {
  return kLetterWidth * static_cast<double>(std::count_if(
                            text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string coordinate(double value) {
  std::string text = fmt::format("{:.1f}", value);
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

// The mean of a window of width `window` around each point. At the start the window shrinks on both
// sides, so that a steep fall is not flattened. Gaps stay gaps. Needs ascending x: otherwise y
// comes back as it is.
std::vector<double> smoothed(const std::vector<double>& x, const std::vector<double>& y,
                             double window) {
  if (!std::is_sorted(x.begin(), x.end())) return y;
  std::vector<double> out(y.size(), std::numeric_limits<double>::quiet_NaN());
  std::vector<double> sum = {0};
  std::vector<size_t> count = {0};
  for (double value : y) {
    const bool there = std::isfinite(value);
    sum.push_back(sum.back() + (there ? value : 0));
    count.push_back(count.back() + (there ? 1 : 0));
  }
  size_t first = 0, last = 0;  // the points of the window: [first, last)
  for (size_t i = 0; i < y.size(); ++i) {
    const double half = std::min(window / 2, x[i] - x[0]);
    while (first < i && x[first] < x[i] - half) ++first;
    last = std::max(last, i + 1);
    while (last < y.size() && x[last] <= x[i] + half) ++last;
    if (std::isfinite(y[i])) {
      out[i] = (sum[last] - sum[first]) / static_cast<double>(count[last] - count[first]);
    }
  }
  return out;
}

// True if a value has a place on an axis. Beyond these bounds the arithmetic of axes overflows.
bool can_show(double value, bool log) {
  return std::fabs(value) < 1e300 && (!log || value > 1e-300);
}

struct Scale {
  double low, high, from, to;  // data, pixels
  bool log;
  std::optional<double> operator()(double value) const {
    if (!can_show(value, log)) return std::nullopt;
    const double at =
        log ? (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low))
            : (value - low) / (high - low);
    return from + at * (to - from);
  }
};

// The path of a line. Where many points fall on one column of pixels, the first, the lowest, the
// highest and the last say the same.
std::string path_of(const std::vector<double>& x, const std::vector<double>& y, const Scale& across,
                    const Scale& up) {
  struct Point {
    double x, y;
  };
  std::string path;
  bool pen_down = false;
  auto draw = [&](const Point& p) {
    path += fmt::format("{}{} {}", pen_down ? "L" : "M", coordinate(p.x), coordinate(p.y));
    pen_down = true;
  };
  std::vector<Point> column;
  auto end_column = [&] {
    if (column.size() <= 4) {
      for (const Point& p : column) draw(p);
    } else {
      size_t lowest = 0, highest = 0;
      for (size_t i = 0; i < column.size(); ++i) {
        if (column[i].y < column[lowest].y) lowest = i;
        if (column[i].y > column[highest].y) highest = i;
      }
      std::vector<size_t> kept = {0, lowest, highest, column.size() - 1};
      std::sort(kept.begin(), kept.end());
      kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
      for (size_t i : kept) draw(column[i]);
    }
    column.clear();
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const auto at = across(x[i]), height = up(y[i]);
    if (!at || !height) {
      end_column();
      pen_down = false;
      continue;
    }
    if (!column.empty() && std::floor(column.back().x) != std::floor(*at)) end_column();
    column.push_back({*at, *height});
  }
  end_column();
  return path;
}

}  // namespace

LineChart& LineChart::add(std::string name, std::vector<double> x, std::vector<double> y) {
  if (x.size() != y.size()) {
    throw UserError(fmt::format("plot: series \"{}\" has {} x values and {} y values", name,
                                x.size(), y.size()));
  }
  series_.push_back({std::move(name), std::move(x), std::move(y)});
  return *this;
}

LineChart& LineChart::add(std::string name, std::vector<double> y) {
  std::vector<double> x(y.size());
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<double>(i);
  return add(std::move(name), std::move(x), std::move(y));
}

std::string LineChart::svg() const {
  const ChartOptions& o = options_;
  const bool smooth = o.smooth > 0;
  double x_low = std::numeric_limits<double>::infinity(), x_high = -x_low, y_low = x_low,
         y_high = -x_low;
  for (const Series& s : series_) {
    for (size_t i = 0; i < s.x.size(); ++i) {
      const double x = s.x[i], y = s.y[i];
      if (!can_show(x, o.log_x) || !can_show(y, o.log_y)) continue;
      x_low = std::min(x_low, x), x_high = std::max(x_high, x);
      y_low = std::min(y_low, y), y_high = std::max(y_high, y);
    }
  }
  const bool empty = !(x_low <= x_high);
  if (empty) {
    x_low = y_low = o.log_x || o.log_y ? 1 : 0, x_high = y_high = o.log_x || o.log_y ? 10 : 1;
  }

  const double top = (o.title.empty() ? 18. : 52.) +
                     (series_.size() > 1 || o.title.empty() ? 22 : 0) +
                     (o.y_label.empty() ? 0 : 18);
  const double bottom = o.height - (o.x_label.empty() ? 32. : 50.);
  const Axis y_axis =
      nice_axis(y_low, y_high, std::clamp(static_cast<int>((bottom - top) / 60), 2, 10), o.log_y);
  double label_width = 0;
  for (const std::string& label : y_axis.labels) {
    label_width = std::max(label_width, kDigitWidth * static_cast<double>(label.size()));
  }
  const double left = 24 + label_width, right = o.width - 26.;
  Axis x_axis =
      nice_axis(x_low, x_high, std::clamp(static_cast<int>((right - left) / 90), 2, 12), o.log_x);
  if (x_high > x_low) {  // the line fills the width: marks beyond the data go
    x_axis.low = x_low;
    x_axis.high = x_high;
  }
  const Scale across{x_axis.low, x_axis.high, left, right, o.log_x},
      up{y_axis.low, y_axis.high, bottom, top, o.log_y};

  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\""
      " font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif\" "
      "font-size=\"12\">\n",
      o.width, o.height);
  if (!o.title.empty()) svg += fmt::format("<title>{}</title>\n", label_of(o.title));
  svg +=
      "<style>\n.paper{fill:#fff}.ink{fill:#1f2933}.soft{fill:#66727f}.grid{stroke:#e6e9ed}.axis{"
      "stroke:#9aa5b1}\n";
  for (size_t i = 0; i < std::min(series_.size(), kColourCount); ++i) {
    svg += fmt::format(".s{0}{{stroke:{1}}}.d{0}{{fill:{1}}}", i, kColours[i].light);
  }
  svg +=
      "\n@media (prefers-color-scheme: "
      "dark){\n.paper{fill:#12171d}.ink{fill:#e8ecf1}.soft{fill:#9aa7b4}.grid{stroke:#27303a}.axis{"
      "stroke:#5b6875}\n";
  for (size_t i = 0; i < std::min(series_.size(), kColourCount); ++i) {
    svg += fmt::format(".s{0}{{stroke:{1}}}.d{0}{{fill:{1}}}", i, kColours[i].dark);
  }
  svg += "\n}\n</style>\n";
  svg += fmt::format("<rect class=\"paper\" width=\"{}\" height=\"{}\" rx=\"6\"/>\n", o.width,
                     o.height);

  double head = 0;
  if (!o.title.empty()) {
    head = 32;
    svg += fmt::format(
        "<text class=\"ink\" x=\"24\" y=\"{}\" font-size=\"17\" font-weight=\"600\">{}</text>\n",
        head, label_of(o.title));
  }
  // The legend: one row, as far as it goes.
  if (series_.size() > 1 || (o.title.empty() && !series_.empty() && !series_[0].name.empty())) {
    head += 24;
    double x = 24;
    for (size_t i = 0; i < series_.size(); ++i) {
      const double wide = 24 + text_width(series_[i].name) + 20;
      if (i > 0 && x + wide > o.width) {
        svg += fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\">and {} more</text>\n",
                           coordinate(x), head, series_.size() - i);
        break;
      }
      svg += fmt::format(
          "<path class=\"s{}\" d=\"M{} {}h16\" stroke-width=\"3\"{}/>"
          "<text class=\"ink\" x=\"{}\" y=\"{}\">{}</text>\n",
          i % kColourCount, coordinate(x + 2), coordinate(head - 4), dash_of(i), coordinate(x + 26),
          coordinate(head), label_of(series_[i].name));
      x += wide;
    }
  }
  if (!o.y_label.empty()) {
    svg += fmt::format("<text class=\"soft\" x=\"24\" y=\"{}\">{}</text>\n", coordinate(top - 14),
                       label_of(o.y_label));
  }

  for (size_t i = 0; i < y_axis.ticks.size(); ++i) {
    const auto y = up(y_axis.ticks[i]);
    if (!y) continue;
    svg += fmt::format(
        "<path class=\"{}\" d=\"M{} {}H{}\"/><text class=\"soft\" x=\"{}\" y=\"{}\" "
        "text-anchor=\"end\">{}</text>\n",
        i == 0 ? "axis" : "grid", coordinate(left), coordinate(*y), coordinate(right),
        coordinate(left - 8), coordinate(*y + 4), y_axis.labels[i]);
  }
  for (size_t i = 0; i < x_axis.ticks.size(); ++i) {
    // A mark at the very end may have been rounded to beyond it.
    const double room = 1e-9 * (o.log_x ? x_axis.ticks[i] : x_axis.high - x_axis.low);
    if (x_axis.ticks[i] < x_axis.low - room || x_axis.ticks[i] > x_axis.high + room) continue;
    const auto x = across(x_axis.ticks[i]);
    if (!x) continue;
    svg += fmt::format(
        "<path class=\"axis\" d=\"M{} {}v5\"/><text class=\"soft\" x=\"{}\" y=\"{}\" "
        "text-anchor=\"middle\">{}</text>\n",
        coordinate(*x), coordinate(bottom), coordinate(*x), coordinate(bottom + 19),
        x_axis.labels[i]);
  }
  if (!o.x_label.empty()) {
    svg +=
        fmt::format("<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                    coordinate((left + right) / 2), coordinate(bottom + 38), label_of(o.x_label));
  }
  if (empty) {
    svg += fmt::format(
        "<text class=\"soft\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">no data</text>\n",
        coordinate((left + right) / 2), coordinate((top + bottom) / 2));
  }

  const auto line = [&](size_t i, const std::vector<double>& y, const std::string& style) {
    const std::string path = path_of(series_[i].x, y, across, up);
    if (!path.empty()) {
      svg += fmt::format(
          "<path class=\"s{}\" d=\"{}\" fill=\"none\" stroke-linejoin=\"round\" "
          "stroke-linecap=\"round\"{}/>\n",
          i % kColourCount, path, style);
    }
  };
  if (smooth) {
    for (size_t i = 0; i < series_.size(); ++i) {
      line(i, series_[i].y, " stroke-width=\"1\" stroke-opacity=\"0.25\"");
    }
  }
  for (size_t i = 0; i < series_.size(); ++i) {
    const std::vector<double> y =
        smooth ? smoothed(series_[i].x, series_[i].y, o.smooth * (x_high - x_low)) : series_[i].y;
    line(i, y, std::string(" stroke-width=\"2\"") + dash_of(i));
    // A dot at the end, where the eye looks first.
    for (size_t k = y.size(); k-- > 0;) {
      const auto at = across(series_[i].x[k]), height = up(y[k]);
      if (!at || !height) continue;
      svg += fmt::format("<circle class=\"d{}\" cx=\"{}\" cy=\"{}\" r=\"3.5\"/>\n",
                         i % kColourCount, coordinate(*at), coordinate(*height));
      break;
    }
  }
  return svg + "</svg>\n";
}

void LineChart::save(const std::filesystem::path& path) const { io::write_file(path, svg()); }

}  // namespace tinyshard
