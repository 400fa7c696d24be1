// A parameter can begin elsewhere if the kernel only reads it, no other name has its memory, and no
// index into it is itself read from memory, as such an index is held against the buffer's size. The
// least index that occurs, rounded down to 64 bytes, becomes the offset.
#include "core/codegen/offsets.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "core/rewrite/pattern.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"

namespace tinyshard {
namespace {

constexpr int64_t kAlignment = 64;  // bytes, of every buffer

// The elements of a parameter that some load may touch.
struct Read {
  int64_t low = std::numeric_limits<int64_t>::max(), high = -1;
  bool movable = true;
};

// index - by, written as if the constant in it had been another one from the start.
UOp moved(const UOp& index, int64_t by) {
  if (is_const(index)) return index_const(const_bits(*index) - by);
  const bool has_constant = index.op() == Op::Add && is_const(index.src(1));
  const UOp& rest = has_constant ? index.src(0) : index;
  const int64_t constant = (has_constant ? const_bits(*index.src(1)) : 0) - by;
  return constant == 0 ? rest : binary(Op::Add, rest, index_const(constant));
}

std::vector<Read> reads_of(const KernelSource& kernel, std::span<const UOp> nodes) {
  std::vector<Read> reads(kernel.params.size());
  for (const ParamInfo& param : kernel.params) {
    Read& own = reads[size_t(&param - kernel.params.data())];
    own.movable = own.movable && !param.written && param.alias < 0;
    if (param.alias >= 0) reads[size_t(param.alias)].movable = false;
  }
  NodeMap<bool> has_load(nodes.size());
  for (const UOp& x : nodes) {
    has_load[x] = x.op() == Op::Load ||
                  std::ranges::any_of(x->src(), [&](const UOp& s) { return has_load.at(s); });
    if (x.op() != Op::Load) continue;
    Read& read = reads[size_t(slot_of(*x))];
    // An index that is read itself, and reads zeros out of range.
    if (has_load.at(x.src(1))) read.movable = false;
    read.low = std::min(read.low, x.src(1)->low);
    read.high = std::max(read.high, x.src(1)->high);
  }
  return reads;
}

}  // namespace

void begin_at_slices(KernelSource& kernel) {
  const std::vector<UOp> nodes = toposort(std::span(&kernel.sink, 1));
  const std::vector<Read> reads = reads_of(kernel, nodes);
  for (size_t slot = 0; slot < reads.size(); ++slot) {
    const Read& read = reads[slot];
    if (!read.movable || read.low < 0 || read.low > read.high) continue;
    ParamInfo& param = kernel.params[slot];
    const auto size = int64_t(itemsize(param.dtype));
    const int64_t begin = read.low * size / kAlignment * kAlignment / size;
    param.offset = begin * size;
    param.numel = std::min(param.numel, read.high + 1) - begin;
  }
  if (std::ranges::all_of(kernel.params, [](const ParamInfo& p) { return p.offset == 0; })) return;
  auto move_load = [&](const UOp& x) {
    if (x.op() != Op::Load) return UOp();
    const ParamInfo& param = kernel.params[size_t(slot_of(*x))];
    if (param.offset == 0) return UOp();
    std::vector<UOp> sources(x->src().begin(), x->src().end());
    sources[1] = moved(sources[1], param.offset / int64_t(itemsize(param.dtype)));
    return x.with_src(sources);
  };
  kernel.sink = rewrite_once(std::span(&kernel.sink, 1), move_load)[0];
}

}  // namespace tinyshard
