// Values as nested lists, as numpy shows them. A long tensor is abridged, and of one that is too
// large to compute as a whole only the corners that are shown are computed.
#include <cmath>
#include <functional>
#include <ostream>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/tensor/tensor.h"

namespace tinyshard {
namespace {

constexpr int64_t kWhole = 1000;           // larger tensors are abridged
constexpr int64_t kEdge = 3;               // to this many entries at each end of a dim;
constexpr int64_t kShown = 10000;          // outer dims to one, while more than this are left
constexpr size_t kRead = size_t{1} << 26;  // bytes that are computed and read as a whole

// The entries of a dim that are shown: the first ones and the last ones.
struct Ends {
  int64_t first, last, size;
  int64_t count() const { return first + last; }
  // Where the i-th of those shown lies in the dim.
  int64_t place(int64_t i) const { return i < first ? i : size - count() + i; }
};

std::vector<Ends> ends_of(const Dims& shape, bool abridged) {
  std::vector<Ends> ends;
  for (int64_t size : shape) {
    bool all = !abridged || size <= 2 * kEdge;
    ends.push_back(all ? Ends{size, 0, size} : Ends{kEdge, kEdge, size});
  }
  auto shown = [&] {  // brackets around nothing count, too
    int64_t n = 1;
    for (const Ends& e : ends) n = std::min(n, kShown + 1) * std::max<int64_t>(1, e.count());
    return n;
  };
  for (size_t i = 0; abridged && i < ends.size() && shown() > kShown; ++i)
    ends[i].first = std::min<int64_t>(1, ends[i].size), ends[i].last = 0;
  return ends;
}

// Calls visit(place in the whole tensor) for what is shown, row-major.
void for_each_shown(const std::vector<Ends>& ends, const std::function<void(int64_t)>& visit) {
  std::function<void(size_t, int64_t)> each = [&](size_t dim, int64_t offset) {
    if (dim == ends.size()) return visit(offset);
    for (int64_t i = 0; i < ends[dim].count(); ++i)
      each(dim + 1, offset * ends[dim].size + ends[dim].place(i));
  };
  each(0, 0);
}

// The shown values, row-major, computed as one tensor for each combination of ends of the dims.
template <class T>
std::vector<T> corners(const Tensor& tensor, const std::vector<Ends>& ends) {
  std::vector<std::vector<Index>> picks(1);
  for (const Ends& e : ends) {
    std::vector<std::vector<Index>> next;
    for (const auto& pick : picks) {
      next.push_back(pick);
      next.back().emplace_back(Slice(0, e.first));
      if (e.last == 0) continue;
      next.push_back(pick);
      next.back().emplace_back(Slice(e.size - e.last, e.size));
    }
    picks = std::move(next);
  }
  std::vector<Tensor> pieces;
  for (const auto& pick : picks) pieces.push_back(tensor.at(pick));
  Tensor::realize(pieces);
  int64_t shown = 1;
  for (const Ends& e : ends) shown *= e.count();
  std::vector<T> out(static_cast<size_t>(shown));
  for (size_t p = 0; p < pieces.size(); ++p) {
    const Dims shape = pieces[p].shape();
    const std::vector<T> values = pieces[p].to_vector<T>();
    for (size_t i = 0; i < values.size(); ++i) {
      int64_t rest = static_cast<int64_t>(i), stride = 1, place = 0;
      for (size_t d = shape.size(); d-- > 0;) {
        bool tail = *picks[p][d].slice.start > 0;
        place += (rest % shape[d] + (tail ? ends[d].first : 0)) * stride;
        rest /= shape[d], stride *= ends[d].count();
      }
      out[static_cast<size_t>(place)] = values[i];
    }
  }
  return out;
}

template <class T>
std::vector<T> shown_values(const Tensor& tensor, const std::vector<Ends>& ends) {
  if (tensor.nbytes() > kRead) return corners<T>(tensor, ends);
  std::vector<T> all = tensor.to_vector<T>(), out;
  for_each_shown(ends, [&](int64_t i) { out.push_back(all[static_cast<size_t>(i)]); });
  return out;
}

std::vector<std::string> number_texts(const Tensor& tensor, const std::vector<Ends>& ends) {
  std::vector<std::string> texts;
  DType dtype = tensor.dtype();
  if (dtype == DType::Bool) {
    for (bool v : shown_values<uint8_t>(tensor, ends)) texts.emplace_back(v ? "true" : "false");
  } else if (dtype == DType::U64) {
    for (uint64_t v : shown_values<uint64_t>(tensor, ends)) texts.push_back(std::to_string(v));
  } else if (!is_float(dtype)) {
    for (int64_t v : shown_values<int64_t>(tensor, ends)) texts.push_back(std::to_string(v));
  } else {
    std::vector<double> values = shown_values<double>(tensor, ends);
    double largest = 0, smallest = INFINITY;
    bool whole = true;
    for (double v : values) {
      if (!std::isfinite(v) || v == 0) continue;
      largest = std::max(largest, std::abs(v)), smallest = std::min(smallest, std::abs(v));
      whole = whole && v == std::trunc(v);
    }
    bool scientific = largest >= 1e8 || smallest < 1e-4 || largest / smallest > 1e6;
    for (double v : values) {
      texts.push_back(std::isnan(v)             ? "nan"  // of either sign
                      : !std::isfinite(v)       ? fmt::format("{}", v)
                      : scientific && !whole    ? fmt::format("{:.4e}", v)
                      : whole && largest < 1e15 ? fmt::format("{:.0f}.", v)
                                                : fmt::format("{:.4f}", v));
    }
  }
  return texts;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Printed& printed) {
  const Tensor& tensor = printed.tensor;
  if (!tensor.defined()) return out << "no tensor";
  // The standard library prints into a temporary stream by an operator of its own, in <ostream>.
  const std::string_view file = printed.caller.file_name();
  const bool by_library = file.find('.', file.find_last_of('/') + 1) == std::string_view::npos;
  Call call("operator<<", by_library ? std::source_location() : printed.caller);
  std::vector<Ends> ends = ends_of(tensor.shape(), tensor.numel() > kWhole || tensor.numel() == 0);
  std::vector<std::string> texts = number_texts(tensor, ends);
  size_t width = 0, next = 0;
  for (const std::string& text : texts) width = std::max(width, text.size());
  std::function<std::string(size_t)> rows = [&](size_t dim) -> std::string {
    if (dim == ends.size()) return fmt::format("{:>{}}", texts[next++], width);
    bool last = dim + 1 == ends.size();
    std::string separator = last ? ", " : ",\n" + std::string(dim + 1, ' '), text = "[";
    const Ends& e = ends[dim];
    for (int64_t i = 0; i < e.count(); ++i) {
      if (i > 0) text += separator;
      if (i == e.first && e.count() < e.size) text += "..." + separator;
      text += rows(dim + 1);
    }
    if (e.last == 0 && e.count() < e.size) text += separator + "...";
    return text + "]";
  };
  return out << rows(0) << "  " << tensor.describe();
}

}  // namespace tinyshard
