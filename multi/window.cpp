// Where a row is follows from numbers that each device computes of its own place. With k rows per
// part, part s counts from lo = max(k s, low) to hi = min(k s + k, high), and what it has for the
// window of device t is
//
//   [max(lo, start_t), min(hi, start_t + rows)),  start_t = step * t + start
//
// Its send buffer holds these runs of rows for t = 0, 1, ..., without its own. The rows that a
// device receives come in the order of their senders, which is their order in the window: all of
// them but its own, of which some come before and some behind.
#include "multi/window.h"

#include <algorithm>

#include "core/base/error.h"
#include "multi/collective.h"
#include "multi/device_number.h"

namespace tinyshard {
namespace {

struct Span {
  int64_t low, high;
  int64_t size() const { return std::max<int64_t>(high - low, 0); }
};

int64_t down(int64_t a, int64_t by) { return a >= 0 ? a / by : -1 - (-1 - a) / by; }

class Exchange {
 public:
  Exchange(const LocalValue& value, int dim, const Window& wanted)
      : value_(value),
        x_(value.local),
        dim_(dim),
        w_(wanted),
        axis_(axis_of(value, dim)),
        devices_(value.mesh->axes()[size_t(axis_)].size),
        part_(x_.shape()[size_t(dim)]),
        here_(DeviceNumber::coordinate(*value.mesh, axis_)),
        low_(max(here_ * part_, w_.low)),
        high_(min(here_ * part_ + part_, w_.high)),
        start_(here_ * w_.step + w_.start) {
    plan();
  }

  UOp run() {
    const UOp own = keeps_ ? kept() : UOp();
    if (transfers_.empty()) return own ? own : zeros();
    const UOp other = received(sent());
    return own ? where(mine(), own, other) : other;
  }

 private:
  // Returns which rows of part s are in the window of device t.
  Span meeting(int64_t s, int64_t t) const {
    const int64_t start = w_.step * t + w_.start;
    return {std::max({s * part_, start, w_.low}),
            std::min({s * part_ + part_, start + w_.rows, w_.high})};
  }

  // The first device whose window ends behind the first row of part s, or starts before its end.
  int64_t first_receiver(int64_t s) const {
    const int64_t low = std::max(s * part_, w_.low), high = std::min(s * part_ + part_, w_.high);
    return std::max<int64_t>(0, w_.step > 0 ? down(low - w_.start - w_.rows, w_.step) + 1
                                            : down(w_.start - high, -w_.step) + 1);
  }
  DeviceNumber first_receiver() const {
    return max(0, w_.step > 0 ? (low_ - w_.start - w_.rows).divided_down(w_.step) + 1
                              : (DeviceNumber(w_.start) - high_).divided_down(-w_.step) + 1);
  }

  void plan() {
    std::vector<int64_t> sent(size_t(devices_), 0), got(size_t(devices_), 0);
    for (int64_t t = 0; t < devices_; ++t) {
      const int64_t start = w_.step * t + w_.start;
      const Span all{std::max(start, w_.low), std::min(start + w_.rows, w_.high)};
      reaches_over_ = reaches_over_ || start + w_.rows > w_.high;
      if (all.size() == 0) continue;
      for (int64_t s = all.low / part_; s <= (all.high - 1) / part_; ++s) {
        const int64_t rows = meeting(s, t).size();
        pieces_ = std::max(pieces_, t - first_receiver(s) + 1);
        if (s == t) {
          keeps_ = true;
          continue;
        }
        nearest_ = std::min(nearest_, t - s);
        farthest_ = std::max(farthest_, t - s);
        sent[size_t(s)] += rows;
        got[size_t(t)] += rows;
        transfers_.push_back({s, t, rows});
      }
    }
    sent_ = std::ranges::max(sent);
    received_ = std::ranges::max(got);
    std::ranges::sort(transfers_, {}, [](const Transfer& t) { return std::pair(t.from, t.to); });
  }

  // Where device t's rows of this part are in it, and how many. t may be no device's number.
  struct Piece {
    DeviceNumber first, rows;
  };
  Piece piece(const DeviceNumber& t) const {
    const DeviceNumber start = t * w_.step + w_.start;
    const DeviceNumber first = max(low_, start), rows = min(high_, start + w_.rows) - first;
    const UOp none = binary(Op::Or, binary(Op::CmpEq, t.node(), here_.node()),
                            binary(Op::Or, t < 0, DeviceNumber(devices_ - 1) < t));
    return {first - here_ * part_, DeviceNumber::choose(none, 0, max(rows, 0))};
  }

  // The rows for receiver 0, 1, ...: runs of them, as few as do for every device.
  UOp sent() const {
    std::vector<DeviceNumber> receivers;
    if (farthest_ - nearest_ < pieces_) {
      for (int64_t by = nearest_; by <= farthest_; ++by) {
        if (by != 0) receivers.push_back(here_ + by);
      }
    } else {
      for (int64_t i = 0; i < pieces_; ++i) receivers.push_back(first_receiver() + i);
    }
    UOp all;
    DeviceNumber before = 0;
    for (const DeviceNumber& t : receivers) {
      const Piece run = piece(t);
      const UOp rows = rows_from(x_, dim_, run.first - before, sent_);
      all = all ? where(rows_before(rows.shape(), dim_, before), all, rows) : rows;
      before = before + run.rows;
    }
    return all;
  }

  UOp received(const UOp& sent) const {
    Dims order{dim_}, back;
    for (int i = 0; i < int(x_.shape().size()); ++i) {
      if (i != dim_) order.push_back(i);
      back.push_back(i < dim_ ? i + 1 : i == dim_ ? 0 : i);
    }
    const UOp arrived = permute(
        exchange(permute(sent, order), *value_.mesh, axis_, transfers_, received_, value_.origin),
        back);
    // skipped: rows of the window before the first one that counts. own: rows that the device has
    // itself, behind those from devices below it.
    const DeviceNumber skipped = max(DeviceNumber(w_.low) - start_, 0);
    const DeviceNumber own = max(min(high_, start_ + w_.rows) - max(low_, start_), 0);
    const bool from_below = farthest_ > 0, from_above = nearest_ < 0;
    UOp all;
    if (from_below) all = rows_from(arrived, dim_, DeviceNumber(0) - skipped, w_.rows);
    if (from_above) {
      const UOp behind = rows_from(arrived, dim_, DeviceNumber(0) - skipped - own, w_.rows);
      all = all ? where(rows_before(behind.shape(), dim_, low_ - start_), all, behind) : behind;
    }
    if (reaches_over_) {
      const UOp counts = rows_before(all.shape(), dim_, DeviceNumber(w_.high) - start_);
      all = where(counts, all, zeros());
    }
    return all;
  }

  // Returns a mask of the rows of the window that are in this device's part, and count.
  UOp mine() const {
    const Dims shape = result_shape();
    return binary(Op::And, unary(Op::Not, rows_before(shape, dim_, low_ - start_)),
                  rows_before(shape, dim_, high_ - start_));
  }

  UOp kept() const {
    UOp own = w_.step == part_ ? rows_of(x_, dim_, w_.start, w_.rows, 0, part_)
                               : rows_from(x_, dim_, start_ - here_ * part_, w_.rows);
    const bool all_count = w_.low <= 0 && w_.high >= part_ * devices_;
    return all_count || !transfers_.empty() ? own : where(mine(), own, zeros());
  }

  Dims result_shape() const {
    Dims shape(x_.shape().begin(), x_.shape().end());
    shape[size_t(dim_)] = w_.rows;
    return shape;
  }
  UOp zeros() const { return const_int(x_.dtype(), 0, result_shape()); }

  const LocalValue& value_;
  const UOp& x_;
  int dim_;
  Window w_;
  int axis_;
  int64_t devices_, part_;
  DeviceNumber here_, low_, high_, start_;
  std::vector<Transfer> transfers_;
  bool keeps_ = false, reaches_over_ = false;
  int64_t sent_ = 0, received_ = 0, pieces_ = 0;
  int64_t nearest_ = INT64_MAX, farthest_ = INT64_MIN;  // of receivers, from their senders
};

}  // namespace

int axis_of(const LocalValue& v, int dim) {
  for (size_t a = 0; a < v.place.size(); ++a) {
    if (v.place[a].is_shard() && v.place[a].dim == dim) return int(a);
  }
  return -1;
}

UOp rows_of(const UOp& x, int dim, int64_t start, int64_t rows, int64_t low, int64_t high) {
  low = std::max(low, start), high = std::min(high, start + rows);
  if (low >= high) {
    Dims shape(x.shape().begin(), x.shape().end());
    shape[size_t(dim)] = rows;
    return const_int(x.dtype(), 0, shape);
  }
  Dims kept, around;
  for (int64_t size : x.shape())
    kept.insert(kept.end(), {0, size}), around.insert(around.end(), {0, 0});
  const size_t at = 2 * size_t(dim);
  kept[at] = low, kept[at + 1] = high;
  around[at] = low - start, around[at + 1] = start + rows - high;
  return pad(shrink(x, kept), around);
}

UOp window(const LocalValue& value, int dim, const Window& wanted) {
  check_internal(axis_of(value, dim) >= 0 && wanted.step != 0, "a window is of a sharded dim");
  Window w = wanted;
  w.low = std::max<int64_t>(w.low, 0);
  if (value.local->numel() == 0 || w.rows == 0 || w.low >= w.high)
    return rows_of(value.local, dim, 0, w.rows, 0, 0);
  return Exchange(value, dim, w).run();
}

namespace {

// Cut where parts begin, the terms are runs of rows that all devices have for the one so many places
// behind them: a window of each run moves it there. Windows begin as far from each other as parts.
UOp added_in_step(const LocalValue& terms, int dim, const Window& w) {
  const UOp& x = terms.local;
  const int64_t part = w.step, end = w.start + w.rows;
  UOp sum;
  for (int64_t by = down(w.start, part); by * part < end; ++by) {
    const int64_t low = std::max(w.start, by * part), high = std::min(end, (by + 1) * part);
    const int64_t rows = high - low;
    LocalValue run = terms;
    run.local = rows_of(x, dim, low - w.start, rows, 0, w.rows);
    const int64_t devices = terms.mesh->axes()[size_t(axis_of(terms, dim))].size;
    if (by != 0) run.local = window(run, dim, {rows, -by * rows, rows, 0, rows * devices});
    const UOp placed = rows_of(run.local, dim, by * part - low, part, 0, rows);
    sum = sum ? binary(Op::Add, sum, placed) : placed;
  }
  return sum;
}

// Where windows are nearer to each other than parts, or farther, how many rows a device has for
// another one differs from device to device:
//
//   parts of 8, windows of 11 that begin every 7
//     device 1 has terms of rows 7 to 17: 7 is in the part of device 0, 16 and 17 in that of 2
//     device 2 has terms of rows 14 to 24: 14 and 15 are in the part of device 1, 24 in that of 3
//
// Each sends its rows but those of its own part, which lie in the order of their receivers. They
// arrive in the order of senders, and each run is added where it belongs.
class Addition {
 public:
  Addition(const LocalValue& terms, int dim, const Window& w, int64_t part)
      : terms_(terms),
        x_(terms.local),
        dim_(dim),
        axis_(axis_of(terms, dim)),
        w_(w),
        part_(part),
        devices_(terms.mesh->axes()[size_t(axis_)].size),
        here_(DeviceNumber::coordinate(*terms.mesh, axis_)) {}

  UOp run() const {
    std::vector<Transfer> transfers;
    std::vector<int64_t> sent(size_t(devices_), 0), got = sent;
    int64_t nearest = 0, farthest = 0;  // of receivers, from their senders
    for (int64_t t = 0; t < devices_; ++t) {
      const Span all = counted(t);
      for (int64_t u = all.low / part_; u < devices_ && u * part_ < all.high; ++u) {
        const int64_t rows = terms_for(t, u).size();
        if (u == t || rows == 0) continue;
        transfers.push_back({t, u, rows});
        sent[size_t(t)] += rows, got[size_t(u)] += rows;
        nearest = std::min(nearest, u - t), farthest = std::max(farthest, u - t);
      }
    }
    UOp sum = rows_from(x_, dim_, here_ * part_ - start(here_), part_);
    if (transfers.empty()) return sum;
    const UOp arrived = exchanged(transfers, std::ranges::max(sent), std::ranges::max(got));
    DeviceNumber before = 0;  // rows of senders before this one
    for (int64_t by = farthest; by >= nearest; --by) {
      if (by == 0) continue;
      const DeviceNumber from = here_ - by;
      const DeviceNumber first = max(low(from), here_ * part_);
      const UOp none = binary(Op::Or, from < 0, DeviceNumber(devices_ - 1) < from);
      const DeviceNumber rows =
          DeviceNumber::choose(none, 0, max(min(high(from), here_ * part_ + part_) - first, 0));
      const DeviceNumber place = first - here_ * part_;
      const UOp run = rows_from(arrived, dim_, before - place, part_);
      const UOp inside = binary(Op::And, unary(Op::Not, rows_before(run.shape(), dim_, place)),
                                rows_before(run.shape(), dim_, place + rows));
      sum = binary(Op::Add, sum, where(inside, run, const_int(run.dtype(), 0, run.shape())));
      before = before + rows;
    }
    return sum;
  }

  // The most rows that a device sends.
  static int64_t rows_sent(int64_t part, int64_t devices, const Window& w) {
    int64_t most = 0;
    for (int64_t t = 0; t < devices; ++t) {
      const int64_t low = std::max(w.step * t + w.start, w.low),
                    high = std::min(w.step * t + w.start + w.rows, w.high);
      const Span own{std::max(low, part * t), std::min(high, part * t + part)};
      most = std::max(most, Span{low, high}.size() - own.size());
    }
    return most;
  }

 private:
  // Rows of device t's window that count.
  Span counted(int64_t t) const {
    const int64_t start = w_.step * t + w_.start;
    return {std::max(start, w_.low), std::min(start + w_.rows, w_.high)};
  }
  Span terms_for(int64_t t, int64_t u) const {
    const Span all = counted(t);
    return {std::max(all.low, part_ * u), std::min(all.high, part_ * u + part_)};
  }
  DeviceNumber start(const DeviceNumber& t) const { return t * w_.step + w_.start; }
  DeviceNumber low(const DeviceNumber& t) const { return max(start(t), w_.low); }
  DeviceNumber high(const DeviceNumber& t) const { return min(start(t) + w_.rows, w_.high); }

  UOp exchanged(const std::vector<Transfer>& transfers, int64_t sent, int64_t received) const {
    // The rows of its window before its own part, and those behind it, are what a device sends.
    const DeviceNumber first = low(here_), end = max(high(here_), first);
    const DeviceNumber own = max(min(here_ * part_, end), first);
    const DeviceNumber behind = max(min(here_ * part_ + part_, end), first);
    const DeviceNumber before = own - first;
    const UOp lower = rows_from(x_, dim_, first - start(here_), sent);
    const UOp upper = rows_from(x_, dim_, behind - start(here_) - before, sent);
    const UOp rows = where(rows_before(lower.shape(), dim_, before), lower, upper);
    Dims order{dim_}, back;
    for (int i = 0; i < int(x_.shape().size()); ++i) {
      if (i != dim_) order.push_back(i);
      back.push_back(i < dim_ ? i + 1 : i == dim_ ? 0 : i);
    }
    return permute(
        exchange(permute(rows, order), *terms_.mesh, axis_, transfers, received, terms_.origin),
        back);
  }

  const LocalValue& terms_;
  const UOp& x_;
  int dim_, axis_;
  Window w_;
  int64_t part_, devices_;
  DeviceNumber here_;
};

Window within_parts(Window w, int64_t part, int64_t devices) {
  w.low = std::max<int64_t>(w.low, 0), w.high = std::min(w.high, part * devices);
  return w;
}

}  // namespace

UOp window_added(const LocalValue& terms, int dim, const Window& w, int64_t part) {
  check_internal(part > 0 && terms.local.shape()[size_t(dim)] == w.rows,
                 "terms of the rows of a window");
  if (w.step == part) return added_in_step(terms, dim, w);
  const int64_t devices = terms.mesh->axes()[size_t(axis_of(terms, dim))].size;
  return Addition(terms, dim, within_parts(w, part, devices), part).run();
}

int64_t rows_added(int64_t part, int64_t devices, const Window& w) {
  return Addition::rows_sent(part, devices, within_parts(w, part, devices));
}

int64_t rows_sent(int64_t part, int64_t devices, const Window& w) {
  std::vector<int64_t> sent(size_t(devices), 0);
  for (int64_t t = 0; t < devices; ++t) {
    const int64_t start = w.step * t + w.start;
    const Span all{std::max({start, w.low, int64_t{0}}),
                   std::min({start + w.rows, w.high, part * devices})};
    if (all.size() == 0) continue;
    for (int64_t s = all.low / part; s <= (all.high - 1) / part; ++s) {
      if (s != t)
        sent[size_t(s)] += std::min(all.high, s * part + part) - std::max(all.low, s * part);
    }
  }
  return std::ranges::max(sent);
}

Reading reading(int64_t rows, int64_t shift, int64_t reach, int64_t stride) {
  // Windows shorter than their step may leave out the first rows; the window before begins there.
  const int64_t first =
      std::min(rounded_up(shift - reach, stride), rounded_down(shift, stride)) / stride;
  const int64_t last = rounded_down(shift + rows - 1, stride) / stride;
  return {first, last - first + 1, shift - first * stride, (last - first) * stride + reach + 1};
}

}  // namespace tinyshard
