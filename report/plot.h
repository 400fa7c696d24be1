// Line charts as SVG: readable on light and dark pages, small (at most a few points a pixel), the
// same bytes for the same data.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

namespace tinyshard {

struct ChartOptions {
  std::string title = {};
  std::string x_label = {}, y_label = {};
  bool log_x = false, log_y = false;  // values that have no logarithm are left out
  // Share of the width, such as 0.03: each line is the mean of a window this wide, over its faint
  // original.
  double smooth = 0;
  int width = 860, height = 480;
};

class LineChart {
 public:
  explicit LineChart(ChartOptions options) : options_(std::move(options)) {}

  // A line through (x[i], y[i]); values that are not finite leave a gap. UserError if the sizes
  // differ.
  LineChart& add(std::string name, std::vector<double> x, std::vector<double> y);
  // Adds a line over 0, 1, 2...
  LineChart& add(std::string name, std::vector<double> y);

  std::string svg() const;
  // Whole or not at all at `path`; IoError otherwise.
  void save(const std::filesystem::path& path) const;

 private:
  struct Series {
    std::string name;
    std::vector<double> x, y;
  };
  ChartOptions options_;
  std::vector<Series> series_;
};

}  // namespace tinyshard
