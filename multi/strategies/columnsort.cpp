// All steps are nodes of the graph. A column is sorted by a Sort of its keys and Gathers in that
// order; the two all-to-alls are changes of the split of a value of three dims; ends of columns
// meet in a window (multi/window.h). Rows that s does not divide are padded with a value of the
// last key, and where places count the padding has places behind all others. The orders of all
// steps are the route on which a gradient goes back.
#include "multi/strategies/columnsort.h"

#include <algorithm>
#include <array>
#include <utility>

#include "core/base/error.h"
#include "multi/device_number.h"
#include "multi/window.h"

namespace tinyshard {
namespace {

// A device's column: values, from which it makes the keys, and their places, null if places do not
// matter.
struct Column {
  UOp values, places;
};

class ColumnSort {
 public:
  ColumnSort(const LocalValue& like, DimSpan global, int axis, ColumnKeys keys)
      : like_(like),
        global_(global),
        axis_(axis),
        last_(int(global.size()) - 1),
        columns_(columns_of(global.back(), like.mesh->axes()[size_t(axis)].size)),
        here_(DeviceNumber::coordinate(*like.mesh, axis)),
        keys_(std::move(keys)) {}

  SortedColumns run(bool with_places) const {
    check_internal(columns_.suffice() && is_const(keys_.last), "a row that columns can sort");
    ColumnRoute route;
    Column x = filled(with_places);
    // Sorting by key alone keeps the order of places wherever they rise: on a device they do, and
    // so do those that it is dealt, one device after the other. Padding comes behind all of them,
    // so with padding the place is compared, too.
    route.first = order_by_key(x);
    x = each(by(x, route.first), [&](const UOp& v) { return deal(v); });
    route.dealt = is_padded() ? order_by_key_and_place(x) : order_by_key(x);
    x = each(by(x, route.dealt), [&](const UOp& v) { return in_blocks(v); });
    route.blocks = order_by_key_and_place(x);
    x = by(x, route.blocks);
    route.crossed = crossing(x);
    x = each(x, [&](const UOp& v) { return across_ends(v, route.crossed); });
    route.ends = order_by_key_and_place(mixed(x));
    x = each(x, [&](const UOp& v) { return with_mixed(v, route.ends); });
    x = each(x, [&](const UOp& v) { return as_they_lay(v); });
    return {x.values, x.places, route};
  }

  // Undoes the steps of run(), the last one first. Elements that crossed over cross back by the
  // same exchange.
  UOp put_back(const ColumnRoute& route) const {
    UOp x = in_columns(like_.local);
    x = across_ends(with_mixed(x, inverse(route.ends)), route.crossed);
    x = out_of_blocks(by(x, inverse(route.blocks)));
    x = collected(by(x, inverse(route.dealt)));
    return rows_of(by(x, inverse(route.first)), last_, 0, columns_.part, 0, columns_.rows);
  }

 private:
  template <class F>
  static Column each(const Column& x, F f) {
    return {f(x.values), x.places ? f(x.places) : UOp()};
  }

  bool is_padded() const { return columns_.rows * columns_.devices > columns_.length; }

  Dims with_last(const UOp& x, std::initializer_list<int64_t> sizes) const {
    Dims shape(x.shape().begin(), x.shape().begin() + last_);
    shape.insert(shape.end(), sizes);
    return shape;
  }
  LocalValue lying(UOp x) const { return {std::move(x), like_.mesh, like_.place, like_.origin}; }

  // --- the first and the last step ---------------------------------------------------------------

  Column filled(bool with_places) const {
    const UOp x = rows_of(like_.local, last_, 0, columns_.rows, 0, columns_.part);
    UOp places;
    if (with_places) {
      const Dims one(x.shape().size(), 1);
      const UOp first = expand(reshape((here_ * columns_.part).node(), one), x.shape());
      places = binary(Op::Add, iota_along(x.shape(), size_t(last_)), first);
      places = cast(places, DType::I32);
    }
    if (!is_padded()) return {x, places};
    const DeviceNumber end =
        min(DeviceNumber(columns_.length) - here_ * columns_.part, columns_.part);
    const UOp real = rows_before(x.shape(), last_, end);
    const UOp behind = const_int(DType::I32, columns_.length, x.shape());
    return {where(real, x, reshaped_const(keys_.last, x.shape())),
            places ? where(real, places, behind) : places};
  }

  UOp as_they_lay(const UOp& x) const {
    const int64_t part = columns_.part, rows = columns_.rows;
    if (rows == part) return x;
    return window(lying(x), last_, {part, 0, part, 0, rows * columns_.devices});
  }
  UOp in_columns(const UOp& x) const {
    const int64_t rows = columns_.rows;
    if (rows == columns_.part) return x;
    return window(lying(x), last_, {rows, 0, rows, 0, columns_.length});
  }

  // --- sorting on a device -----------------------------------------------------------------------

  UOp keys_of(const Column& x) const {
    UOp keys = keys_.of(x.values);
    if (!x.places || !is_padded()) return keys;
    const UOp real = binary(Op::CmpLt, x.places, const_like(x.places, double(columns_.length)));
    return where(real, keys, unary(Op::Not, const_like(keys, 0)));
  }

  static UOp order_of(const UOp& keys) {
    return UOp::make(Op::Sort, DType::I32, {keys}, Dims{keys.shape().back()});
  }
  static UOp by(const UOp& x, const UOp& order) {
    return UOp::make(Op::Gather, x.dtype(), {x, order}, Dims{int64_t(x.shape().size()) - 1});
  }
  static Column by(const Column& x, const UOp& order) {
    return each(x, [&](const UOp& v) { return by(v, order); });
  }

  static UOp inverse(const UOp& order) { return order_of(cast(order, DType::U32)); }

  UOp order_by_key(const Column& x) const { return order_of(keys_of(x)); }

  UOp order_by_key_and_place(const Column& x) const {
    if (!x.places) return order_by_key(x);
    const UOp keys = keys_of(x);
    if (itemsize(keys.dtype()) <= sizeof(uint32_t)) {
      const UOp bits = const_int(DType::U64, 32, keys.shape());
      const UOp upper = binary(Op::Shl, cast(keys, DType::U64), bits);
      return order_of(binary(Op::Or, upper, cast(x.places, DType::U64)));
    }
    const UOp rising = order_of(cast(x.places, DType::U32));
    return by(rising, order_of(by(keys, rising)));
  }

  // A mask: true where the element of a comes before that of b.
  UOp comes_before(const Column& a, const Column& b) const {
    const UOp key_a = keys_of(a), key_b = keys_of(b);
    UOp less = binary(Op::CmpLt, key_a, key_b);
    if (!a.places) return less;
    const UOp earlier = binary(Op::CmpLt, a.places, b.places);
    return binary(Op::Or, less, binary(Op::And, binary(Op::CmpEq, key_a, key_b), earlier));
  }

  // --- between devices ---------------------------------------------------------------------------

  // An all-to-all of a value of three dims, the first of them of all devices. Each device has one
  // place of dim `from` of them, and one of dim `to` afterwards.
  UOp exchanged(const UOp& x, int64_t n, int64_t m, int from, int to) const {
    const std::array<int64_t, 3> sizes{columns_.devices, n, m};
    std::array<int64_t, 3> here = sizes;
    here[size_t(from)] = 1;
    Dims whole(global_.begin(), global_.end());
    whole.pop_back();
    whole.insert(whole.end(), sizes.begin(), sizes.end());
    LocalValue v = lying(reshape(x, with_last(x, {here[0], here[1], here[2]})));
    v.place[size_t(axis_)] = Shard(last_ + from);
    std::vector<Placement> place = like_.place;
    place[size_t(axis_)] = Shard(last_ + to);
    return reshape(redistribute(std::move(v), whole, *like_.mesh, place).local, x.shape());
  }
  UOp deal(const UOp& x) const {
    return exchanged(x, columns_.rows / columns_.devices, columns_.devices, 0, 2);
  }
  UOp collected(const UOp& x) const {  // undoes deal()
    return exchanged(x, columns_.rows / columns_.devices, columns_.devices, 2, 0);
  }
  UOp in_blocks(const UOp& x) const {
    return exchanged(x, columns_.devices, columns_.rows / columns_.devices, 0, 1);
  }
  UOp out_of_blocks(const UOp& x) const {
    return exchanged(x, columns_.devices, columns_.rows / columns_.devices, 1, 0);
  }

  // Each device has four windows: the end of the column before it, its own beginning, its own end,
  // and the beginning of the one behind it. The first two are pairs, and the other two.
  UOp pairs(const UOp& x) const {
    const int64_t h = columns_.window, s = columns_.devices;
    const UOp four = window(lying(ends_of(x, h)), last_, {2 * h, -h, 4 * h, 0, 2 * h * s});
    return reshape(four, with_last(four, {2, 2, h}));
  }
  UOp other(const UOp& x) const { return flip(x, Dims{last_ + 1, last_ + 2}); }

  // Returns which pairs of elements change places.
  UOp crossing(const Column& x) const {
    const Column paired = each(x, [&](const UOp& v) { return pairs(v); });
    const UOp before = comes_before(paired, each(paired, [&](const UOp& v) { return other(v); }));
    const UOp which = iota_along(before.shape(), size_t(last_) + 1);
    return where(binary(Op::CmpEq, which, const_like(which, 0)), other(before), before);
  }

  // Returns a column in which these pairs have changed places. The first device has no column
  // before it, the last one none behind it.
  UOp across_ends(const UOp& x, const UOp& crossed) const {
    const int64_t h = columns_.window, r = columns_.rows;
    const DeviceNumber begins = DeviceNumber::choose(here_ < 1, 0, h);
    const DeviceNumber ends = DeviceNumber::choose(here_ < columns_.devices - 1, r - h, r);
    const UOp paired = pairs(x);
    const UOp four = reshape(where(crossed, other(paired), paired), with_last(x, {4 * h}));
    return with_ends(x, rows_of(four, last_, h, 2 * h, 0, 4 * h), begins, ends);
  }

  // The last step sorts both ends of a column, or all of it where they meet.
  bool ends_meet() const { return 2 * columns_.mixed > columns_.rows; }
  UOp mixed(const UOp& x) const {
    const int64_t e = columns_.mixed;
    return ends_meet() ? x : reshape(ends_of(x, e), with_last(x, {2, e}));
  }
  Column mixed(const Column& x) const {
    return each(x, [&](const UOp& v) { return mixed(v); });
  }
  UOp with_mixed(const UOp& x, const UOp& order) const {
    const int64_t e = columns_.mixed;
    UOp ends = by(mixed(x), order);
    if (ends_meet()) return ends;
    return with_ends(x, reshape(ends, with_last(x, {2 * e})), e, columns_.rows - e);
  }

  // The first and the last `size` elements of a column.
  UOp ends_of(const UOp& x, int64_t size) const {
    const int64_t r = columns_.rows;
    const UOp first = pad_last(rows_of(x, last_, 0, size, 0, r), 0, size);
    const UOp end = pad_last(rows_of(x, last_, r - size, size, 0, r), size, 0);
    return where(rows_before(first.shape(), last_, size), first, end);
  }
  // A column with such a line in place of its elements before `begins`, and of those from `ends` on.
  UOp with_ends(const UOp& x, const UOp& line, const DeviceNumber& begins,
                const DeviceNumber& ends) const {
    const int64_t size = line.shape().back() / 2, r = columns_.rows;
    const UOp first = pad_last(rows_of(line, last_, 0, size, 0, 2 * size), 0, r - size);
    const UOp end = pad_last(rows_of(line, last_, size, size, 0, 2 * size), r - size, 0);
    return where(rows_before(x.shape(), last_, begins), first,
                 where(rows_before(x.shape(), last_, ends), x, end));
  }

  UOp pad_last(const UOp& x, int64_t before, int64_t behind) const {
    Dims around(2 * x.shape().size());
    around[2 * size_t(last_)] = before, around[2 * size_t(last_) + 1] = behind;
    return pad(x, around);
  }

  const LocalValue& like_;
  DimSpan global_;
  int axis_, last_;
  Columns columns_;
  DeviceNumber here_;
  const ColumnKeys keys_;
};

}  // namespace

Columns columns_of(int64_t length, int64_t devices) {
  const int64_t part = (length + devices - 1) / devices;
  return {length,
          devices,
          part,
          rounded_up(part, devices),
          devices * devices / 4,
          (devices - 1) * (devices - 1)};
}

int64_t Columns::to_neighbours() const {
  const int64_t ends = 2 * window;
  if (rows == part) return ends;
  return ends + rows_sent(rows, devices, {part, 0, part, 0, rows * devices});
}

SortedColumns sorted_columns(const LocalValue& values, DimSpan global, int axis,
                             const ColumnKeys& keys, bool with_places) {
  return ColumnSort(values, global, axis, keys).run(with_places);
}

UOp columns_put_back(const LocalValue& sorted, DimSpan global, int axis, const ColumnRoute& route) {
  return ColumnSort(sorted, global, axis, {}).put_back(route);
}

}  // namespace tinyshard
