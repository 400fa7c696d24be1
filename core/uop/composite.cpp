// Composites: made, and spelled again.
#include "core/uop/composite.h"

#include <algorithm>
#include <memory>

#include "core/base/error.h"

namespace tinyshard {

UOp composite(const Composite& row, std::initializer_list<UOp::Borrowed> operands) {
  const std::span src(reinterpret_cast<const UOp*>(operands.begin()), operands.size());
  check_internal(int(src.size()) == row.operands, "a composite has the operands of its row");
  for (const UOp& x : src)
    check_internal(x.dtype() == src[0].dtype(), "operands of a composite have one type");
  // Borrowed: nobody counts who refers to the row.
  return UOp::make(Op::Composite, src[0].dtype(), src, Dims{row.number},
                   std::shared_ptr<const void>(std::shared_ptr<const void>(), &row));
}

UOp spelled(const UOp& x) {
  const OriginScope origin(origin_id(x));
  UOp value = composite_row(*x).spell(x->src());
  check_internal(value.dtype() == x.dtype() && std::ranges::equal(value.shape(), x.shape()),
                 "a spelling has the type and shape of its op");
  return value;
}

}  // namespace tinyshard
