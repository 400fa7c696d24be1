// Values as nested lists, as numpy shows them.
#include <cmath>
#include <functional>
#include <ostream>

#include <fmt/format.h>

#include "core/tensor/tensor.h"

namespace tinyshard {
namespace {

constexpr int64_t kWhole = 1000;  // larger tensors are abridged
constexpr int64_t kEdge = 3;      // to this many entries at each end of a dim

std::vector<std::string> number_texts(const Tensor& tensor) {
  std::vector<std::string> texts;
  DType dtype = tensor.dtype();
  if (dtype == DType::Bool) {
    for (bool v : tensor.to_vector<bool>()) texts.emplace_back(v ? "true" : "false");
  } else if (dtype == DType::U64) {
    for (uint64_t v : tensor.to_vector<uint64_t>()) texts.push_back(std::to_string(v));
  } else if (!is_float(dtype)) {
    for (int64_t v : tensor.to_vector<int64_t>()) texts.push_back(std::to_string(v));
  } else {
    std::vector<double> values = tensor.to_vector<double>();
    double largest = 0, smallest = INFINITY;
    bool whole = true;
    for (double v : values) {
      if (!std::isfinite(v) || v == 0) continue;
      largest = std::max(largest, std::abs(v)), smallest = std::min(smallest, std::abs(v));
      whole = whole && v == std::trunc(v);
    }
    bool scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e6;
    for (double v : values) {
      texts.push_back(!std::isfinite(v)         ? fmt::format("{}", v)
                      : scientific && !whole    ? fmt::format("{:.4e}", v)
                      : whole && largest < 1e15 ? fmt::format("{:.0f}.", v)
                                                : fmt::format("{:.4f}", v));
    }
  }
  return texts;
}

// The entries of a dim that are shown; -1 stands for those left out.
std::vector<int64_t> shown(int64_t size, bool abridged) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < size; ++i) {
    if (abridged && size > 2 * kEdge && i == kEdge) {
      out.push_back(-1);
      i = size - kEdge;
    }
    out.push_back(i);
  }
  return out;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "no tensor";
  Dims shape = tensor.shape();
  std::vector<std::string> texts = number_texts(tensor);
  bool abridged = tensor.numel() > kWhole;
  size_t width = 0;
  std::function<void(size_t, int64_t, const std::function<void(const std::string&)>&)> each =
      [&](size_t dim, int64_t offset, const std::function<void(const std::string&)>& visit) {
        if (dim == shape.size()) return visit(texts[static_cast<size_t>(offset)]);
        for (int64_t i : shown(shape[dim], abridged)) {
          if (i >= 0) each(dim + 1, offset * shape[dim] + i, visit);
        }
      };
  each(0, 0, [&](const std::string& text) { width = std::max(width, text.size()); });

  std::function<std::string(size_t, int64_t)> rows = [&](size_t dim,
                                                         int64_t offset) -> std::string {
    if (dim == shape.size())
      return fmt::format("{:>{}}", texts[static_cast<size_t>(offset)], width);
    bool last = dim + 1 == shape.size();
    std::string separator = last ? ", " : ",\n" + std::string(dim + 1, ' '), text = "[";
    bool first = true;
    for (int64_t i : shown(shape[dim], abridged)) {
      if (!first) text += separator;
      first = false;
      text += i < 0 ? "..." : rows(dim + 1, offset * shape[dim] + i);
    }
    return text + "]";
  };
  return out << rows(0, 0) << "  " << tensor.describe();
}

}  // namespace tinyshard
