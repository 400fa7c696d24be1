#include "multi/grown.h"

#include "core/rewrite/pattern.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

int64_t bytes_of_value(const UOp& x) { return x->numel() * int64_t(itemsize(x.dtype())); }

// Computed element by element from what it is made of.
bool grows(const UOp& x) {
  return is_elementwise(x.op()) || is_movement(x.op()) || x.op() == Op::Detach ||
         x.op() == Op::Identity;
}

}  // namespace

UOp grown_on(const UOp& local, const Mesh& mesh) {
  constexpr size_t kMostNodes = 256;  // of a draw there are about 30
  const int64_t most = bytes_of_value(local) / mesh.size();
  std::vector<UOp> open{local};
  NodeMap<bool> seen;
  NodeMap<UOp> there;  // what is brought over
  int64_t total = 0;
  while (!open.empty()) {
    const UOp x = open.back();
    open.pop_back();
    if (seen.contains(x)) continue;
    seen[x] = true;
    if (x.op() == Op::Iota || is_const(x)) continue;
    if (grows(x)) {
      open.insert(open.end(), x->src().begin(), x->src().end());
    } else {
      total += bytes_of_value(x);
      there[x] = UOp::make(Op::CopyIn, x.dtype(), {x}, {}, mesh.payload());
    }
    if (total > most || seen.size() > kMostNodes) return UOp();
  }
  return substitute(local, there);
}

}  // namespace tinyshard
