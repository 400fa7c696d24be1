// How a value that is small to bring and large to have is computed where it is wanted: a draw of random numbers is made of a
// seed and a count, so these travel and not the numbers.
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

enum class Visit : uint8_t {
  Into,
  Past,
  Stop
};  // what the node is made of as well; not that; nothing more

// Calls `visit` once with each node that it lets reach from `root`. False where it stopped, or where there are more than
// `most` nodes.
template <class Visitor>
bool walked(const UOp& root, size_t most, const Visitor& visit) {
  std::vector<UOp> open{root};
  NodeMap<bool> seen;
  while (!open.empty()) {
    const UOp x = open.back();
    open.pop_back();
    if (seen.contains(x)) continue;
    seen[x] = true;
    if (seen.size() > most) return false;
    const Visit next = visit(x);
    if (next == Visit::Stop) return false;
    if (next == Visit::Into) open.insert(open.end(), x->src().begin(), x->src().end());
  }
  return true;
}

// Returns whether a draw reads a count or a seed that was copied to another device.
bool was_brought(const UOp& draw) {
  return !walked(draw, SIZE_MAX, [](const UOp& x) {
    return x.op() == Op::CopyIn ? Visit::Stop : grows(x) ? Visit::Into : Visit::Past;
  });
}

constexpr size_t kMostNodes = 256;  // of a draw there are about 30

}  // namespace

UOp grown_on(const UOp& local, const Mesh& mesh) {
  const int64_t most = bytes_of_value(local) / mesh.size();
  NodeMap<UOp> there;  // what is brought over
  int64_t total = 0;
  const bool small = walked(local, kMostNodes, [&](const UOp& x) {
    if (x.op() == Op::Iota || is_const(x)) return Visit::Past;
    if (grows(x)) return Visit::Into;
    there[x] = UOp::make(Op::CopyIn, x.dtype(), {x}, {}, mesh.payload());
    return (total += bytes_of_value(x)) > most ? Visit::Stop : Visit::Past;
  });
  return small ? substitute(local, there) : UOp();
}

UOp past_storages(const UOp& local) {
  NodeMap<UOp> drawn;
  walked(local, kMostNodes, [&](const UOp& x) {
    if (x.op() == Op::Assign && is_unplaced_draw(x.src(1))) drawn[x] = x.src(1);
    return grows(x) || x.op() == Op::Contiguous ? Visit::Into : Visit::Past;
  });
  return drawn.size() > 0 ? substitute(local, drawn) : local;
}

bool is_unplaced_draw(const UOp& local) {
  size_t draws = 0;
  const bool unplaced = walked(local, kMostNodes, [&](const UOp& x) {
    if (x.op() == Op::Iota || is_const(x)) return Visit::Past;
    if (!grows(x) && x.op() != Op::Contiguous) return Visit::Stop;  // it may lie elsewhere, too
    if (x.op() != Op::Threefry) return Visit::Into;
    ++draws;
    return was_brought(x) ? Visit::Stop : Visit::Past;
  });
  return unplaced && draws > 0;
}

}  // namespace tinyshard
