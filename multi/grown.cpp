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

// Whether a draw reads a count or a seed that was copied to another device.
bool was_brought(const UOp& draw) {
  std::vector<UOp> open{draw};
  NodeMap<bool> seen;
  while (!open.empty()) {
    const UOp x = open.back();
    open.pop_back();
    if (seen.contains(x)) continue;
    seen[x] = true;
    if (x.op() == Op::CopyIn) return true;
    if (grows(x)) open.insert(open.end(), x->src().begin(), x->src().end());
  }
  return false;
}

constexpr size_t kMostNodes = 256;  // of a draw there are about 30

}  // namespace

UOp grown_on(const UOp& local, const Mesh& mesh) {
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

bool is_unplaced_draw(const UOp& local) {
  std::vector<UOp> open{local};
  NodeMap<bool> seen;
  size_t draws = 0;
  while (!open.empty()) {
    const UOp x = open.back();
    open.pop_back();
    if (seen.contains(x)) continue;
    seen[x] = true;
    if (x.op() == Op::Iota || is_const(x)) continue;
    const bool stays = !grows(x) && x.op() != Op::Contiguous;  // that may lie elsewhere, too
    if (stays || seen.size() > kMostNodes) return false;
    if (x.op() != Op::Threefry) {
      open.insert(open.end(), x->src().begin(), x->src().end());
      continue;
    }
    ++draws;
    if (was_brought(x)) return false;
  }
  return draws > 0;
}

}  // namespace tinyshard
