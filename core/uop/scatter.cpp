// The walk goes down to an Iota through what keeps the count: a single
// + 1, casts to types wide enough for any count, views that keep the
// dim's size. Anything else, a second + 1 too, is no count from one.
#include "core/uop/scatter.h"

#include <algorithm>

namespace tinyshard {

bool counts_from_one(UOp x, size_t axis) {
  const int64_t size = x.shape()[axis];
  for (int ones = 0;;) {
    switch (x.op()) {
      case Op::Iota:
        return ones == 1 && x->numel() == size;
      case Op::Add: {
        const int side = is_const(x.src(1), 1) ? 0 : 1;
        if (!is_const(x.src(1 - side), 1)) return false;
        ++ones;
        x = x.src(side);
        break;
      }
      case Op::Cast:
        if (!is_int(x.dtype()) || itemsize(x.dtype()) < 4) return false;  // which might wrap
        x = x.src(0);
        break;
      case Op::Expand:
        if (x.src(0).shape()[axis] != size) return false;
        x = x.src(0);
        break;
      case Op::Reshape: {
        if (x->numel() != size) return false;
        x = x.src(0);
        const auto place = std::ranges::find(x.shape(), size);
        if (place == x.shape().end()) return false;
        axis = size_t(place - x.shape().begin());
        break;
      }
      default:
        return false;
    }
  }
}

}  // namespace tinyshard
