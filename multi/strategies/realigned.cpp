// A reshape keeps the order of elements, so a group of dims is one line of them, and a part of the
// first dim of a group is a run of that line. What is split elsewhere becomes runs first:
//
//   [2, 8] split along the 8 over 4 devices, to [16]: device 0 has elements 0 1 and 8 9 of the line,
//   device 1 has 2 3 and 10 11, and so on; of runs of 4, device 0 wants 0 to 3. In the order of its
//   elements, device 0 sends two to device 0 and two to device 2; so does device 1. Device 0
//   receives two from device 0 and two from device 1, in the order of the line: nothing is packed.
//
// Runs of other lengths are a window of the line. The way back from runs to an inner dim is the same
// exchange with senders and receivers swapped.
#include "multi/strategies/realigned.h"

#include <algorithm>
#include <numeric>

#include "multi/collective.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

// Dims [first, last) of the source become [to_first, to_last) of the result.
struct Group {
  int first, last, to_first, to_last;
};

// The group of `dim`. Dims of size 1 may be left over on either side: those of the source are a
// group of their own with no dims of the result, those of the result belong to the last group.
Group group_of(DimSpan from, DimSpan to, int dim) {
  const int all = int(to.size());
  int f = 0, t = 0;
  for (;;) {
    Group g{f, f + 1, t, std::min(t + 1, all)};
    int64_t source = from[size_t(f)], result = t < all ? to[size_t(t)] : 1;
    while (source != result) {
      if (source < result || g.to_last >= all)
        source *= from[size_t(g.last++)];
      else
        result *= to[size_t(g.to_last++)];
    }
    if (dim < g.last) {
      if (g.last == int(from.size())) g.to_last = all;
      return g;
    }
    f = g.last, t = g.to_last;
  }
}

// A node names its transfers, and has room for so many.
constexpr int64_t kMostTransfers = 16'384;

// The transfers that turn parts of the inner dim of [outer, rows] into runs of the line, or back:
// `outer` divides the devices, which divide the rows.
std::vector<Transfer> between_runs(int64_t devices, int64_t outer, int64_t rows, bool back) {
  const int64_t each = rows / devices, along = devices / outer;
  std::vector<Transfer> transfers;
  for (int64_t part = 0; part < devices; ++part) {
    for (int64_t o = 0; o < outer; ++o) {
      const int64_t run = o * along + part / outer;
      transfers.push_back(back ? Transfer{run, part, each} : Transfer{part, run, each});
    }
  }
  std::ranges::sort(transfers, {}, [](const Transfer& t) { return std::pair(t.from, t.to); });
  return transfers;
}

class Realignment {
 public:
  Realignment(const LocalValue& value, DimSpan global, DimSpan to, int dim)
      : value_(value),
        axis_(axis_of(value, dim)),
        devices_(value.mesh->axes()[size_t(axis_)].size),
        group_(group_of(global, to, dim)) {
    const DimSpan local = value.local.shape();
    const size_t first = size_t(group_.first), last = size_t(group_.last), d = size_t(dim);
    before_ = product(local.first(first)), behind_ = product(local.subspan(last));
    outer_ = product(global.subspan(first, d - first));
    rows_ = global[d], part_ = local[d];
    inner_ = product(global.subspan(d + 1, last - d - 1));
    line_ = outer_ * rows_ * inner_;
    to_.assign(to.begin() + group_.to_first, to.begin() + group_.to_last);
  }

  const Group& group() const { return group_; }
  int axis() const { return axis_; }

  // The result's part as [before, elements of the group, behind], and which of its dims is split.
  std::optional<std::pair<UOp, int>> run() {
    if (to_.empty()) return std::nullopt;
    size_t first = 0;
    while (first + 1 < to_.size() && to_[first] == 1) ++first;
    if (to_[first] >= devices_) {
      const int64_t each = (to_[first] + devices_ - 1) / devices_;
      return std::pair{runs_of(runs(), each * (line_ / to_[first])), int(first)};
    }
    int64_t outer = 1;
    for (size_t i = 0; i < to_.size(); outer *= to_[i++]) {
      if (to_[i] % devices_ != 0 || devices_ % outer != 0 || devices_ * outer > kMostTransfers)
        continue;
      const int64_t row = line_ / outer / to_[i];
      const UOp all = runs_of(runs(), line_ / devices_);
      return std::pair{exchanged(all, row, between_runs(devices_, outer, to_[i], true)), int(i)};
    }
    return std::nullopt;
  }

 private:
  // [before, run, behind]: each device's run of the line.
  UOp runs() const {
    if (outer_ == 1) return reshape(value_.local, Dims{before_, part_ * inner_, behind_});
    if (devices_ % outer_ == 0 && rows_ % devices_ == 0 && devices_ * outer_ <= kMostTransfers) {
      const UOp all = reshape(value_.local, Dims{before_, outer_ * part_ * inner_, behind_});
      return exchanged(all, inner_, between_runs(devices_, outer_, rows_, false));
    }
    // Parts of the outer dims, by an all-to-all.
    LocalValue v{reshape(value_.local, Dims{before_, outer_, part_, inner_, behind_}), value_.mesh,
                 std::vector<Placement>(value_.place.size()), value_.origin};
    std::vector<Placement> wanted = v.place;
    v.place[size_t(axis_)] = Shard(2), wanted[size_t(axis_)] = Shard(1);
    const Mesh mesh = *v.mesh;
    v = redistribute(std::move(v), Dims{before_, outer_, rows_, inner_, behind_}, mesh, wanted);
    return reshape(v.local, Dims{before_, v.local.shape()[1] * rows_ * inner_, behind_});
  }

  // Runs of another length.
  UOp runs_of(const UOp& x, int64_t length) const {
    const int64_t now = x.shape()[1];
    if (now == length) return x;
    const int64_t unit = std::gcd(std::gcd(now, length), line_);
    LocalValue v{reshape(x, Dims{before_, now / unit, unit, behind_}), value_.mesh,
                 std::vector<Placement>(value_.place.size()), value_.origin};
    v.place[size_t(axis_)] = Shard(1);
    const UOp moved = window(v, 1, {length / unit, 0, length / unit, 0, line_ / unit});
    return reshape(moved, Dims{before_, length, behind_});
  }

  // Sends rows of `row` elements of the group; each device has as many as it receives.
  UOp exchanged(const UOp& x, int64_t row, const std::vector<Transfer>& transfers) const {
    const int64_t rows = x.shape()[1] / row;
    const UOp first = permute(reshape(x, Dims{before_, rows, row, behind_}), Dims{1, 0, 2, 3});
    const UOp there = exchange(first, *value_.mesh, axis_, transfers, rows, value_.origin);
    return reshape(permute(there, Dims{1, 0, 2, 3}), Dims{before_, rows * row, behind_});
  }

  const LocalValue& value_;
  int axis_;
  int64_t devices_;
  Group group_;
  int64_t before_, behind_, outer_, rows_, part_, inner_, line_;
  Dims to_;
};

}  // namespace

std::optional<LocalValue> realigned(const LocalValue& value, Dims& global, DimSpan to, int dim) {
  if (product(global) == 0) return std::nullopt;
  Realignment work(value, global, to, dim);
  const Group& g = work.group();
  for (size_t a = 0; a < value.place.size(); ++a) {
    const Placement& p = value.place[a];
    const bool among = p.is_shard() && p.dim >= g.first && p.dim < g.last;
    if (among && int(a) != work.axis()) return std::nullopt;
  }
  auto found = work.run();
  if (!found) return std::nullopt;
  auto& [local, split] = *found;
  LocalValue v{local, value.mesh, value.place, value.origin};
  const int added = (g.to_last - g.to_first) - (g.last - g.first);
  for (Placement& p : v.place) {
    if (p.is_shard() && p.dim >= g.last) p.dim += added;
  }
  v.place[size_t(work.axis())] = Shard(g.first + split);
  Dims shape = global;
  shape.erase(shape.begin() + g.first, shape.begin() + g.last);
  shape.insert(shape.begin() + g.first, to.begin() + g.to_first, to.begin() + g.to_last);
  // A dim of size 1 may come back as it was, split over a mesh axis of one device.
  if (shape == global && v.place == value.place) return std::nullopt;
  global = std::move(shape);
  v.local = reshape(v.local, Sharding{*v.mesh, v.place}.local_shape(global));
  return v;
}

}  // namespace tinyshard
