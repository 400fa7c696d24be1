// Questions about whole graphs: order, text, structure.
#include <fmt/format.h>

#include "core/base/hash.h"
#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "core/uop/uop.h"

namespace tinyshard {

namespace {

// The nodes that a walk has met, by address: to ask for one fetches none of its memory. One KiB of
// memory is one entry with a bit for each place at which a node may begin, so that the table of a
// large graph fits the cache, too.
class Met {
 public:
  // True for the first time.
  bool add(const Node* node) {
    static_assert(sizeof(Node) >= kPlace);
    if ((size_ + 1) * 2 > entries_.size()) grow();
    const auto address = reinterpret_cast<uintptr_t>(node);
    const uintptr_t block = address / (64 * kPlace);
    const uint64_t bit = uint64_t{1} << (address / kPlace % 64);
    Entry& entry = entry_of(entries_, block);
    if (entry.met & bit) return false;
    if (entry.met == 0) {
      entry.block = block;
      ++size_;
    }
    entry.met |= bit;
    return true;
  }

 private:
  static constexpr uintptr_t kPlace = 16;  // what all allocations are aligned to
  struct Entry {
    uintptr_t block = 0;
    uint64_t met = 0;  // 0: no entry
  };

  static Entry& entry_of(std::vector<Entry>& entries, uintptr_t block) {
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
    const size_t mask = entries.size() - 1;
    size_t i = (block * kGolden >> 32) & mask;
    while (entries[i].met != 0 && entries[i].block != block) i = (i + 1) & mask;
    return entries[i];
  }
  void grow() {
    std::vector<Entry> larger(entries_.size() * 2);
    for (const Entry& entry : entries_) {
      if (entry.met != 0) entry_of(larger, entry.block) = entry;
    }
    entries_.swap(larger);
  }

  std::vector<Entry> entries_ = std::vector<Entry>(32);
  size_t size_ = 0;
};

}  // namespace

NodeOrder toposort(std::span<const UOp> roots) {
  NodeOrder order;
  Met met;
  std::vector<std::pair<const UOp*, size_t>> stack;
  for (const UOp& root : roots) {
    if (!met.add(root.get())) continue;
    stack.push_back({&root, 0});
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      auto src = (*node)->src();
      if (next == src.size()) {
        order.push_back(*node);
        stack.pop_back();
        continue;
      }
      const UOp& s = src[next++];
      if (met.add(s.get())) stack.push_back({&s, 0});
    }
  }
  return order;
}

std::string describe(const Node& node) {
  std::string text = fmt::format("{} {}", info(node.op).name, name(node.dtype));
  if (info(node.op).op_class != OpClass::Kernel) text += to_string(node.shape());
  switch (node.op) {
    case Op::Const: {
      const auto value = std::bit_cast<double>(const_bits(node));
      text += !is_float(node.dtype)      ? fmt::format(" {}", const_bits(node))
              : node.dtype == DType::F64 ? fmt::format(" {}", value)
                                         : fmt::format(" {}", static_cast<float>(value));
      break;
    }
    case Op::Buffer:
      text += fmt::format(" #{}", buffer_number(node));
      break;
    case Op::Reduce: {
      text +=
          fmt::format(" {} over {}", name(reduce_arg(node).op), to_string(reduce_arg(node).axes));
      break;
    }
    case Op::Fold:
      text += fmt::format(" {}", name(fold_arg(node).op));
      break;
    case Op::Reshape:
    case Op::Expand:
      break;
    default:
      if (!node.arg().empty()) text += " " + to_string(node.arg());
  }
  return text;
}

std::string print(std::span<const UOp> roots) {
  std::string text;
  NodeMap<size_t> number;
  for (const UOp& x : toposort(roots)) {
    size_t n = number.size();
    number[x] = n;
    text += fmt::format("%{} = {}", n, describe(*x));
    for (const UOp& s : x->src()) text += fmt::format(" %{}", number.at(s));
    text += '\n';
  }
  return text;
}

uint64_t structural_hash(std::span<const UOp> roots) {
  NodeMap<uint64_t> hashes(256);
  uint64_t buffers = 0, result = roots.size();
  for (const UOp& x : toposort(roots)) {
    uint64_t h = combine(uint64_t(x.op()) << 8 | uint64_t(x.dtype()), x->src().size());
    auto arg = x->arg();
    if (x.op() == Op::Buffer || x.op() == Op::Redistribute ||
        x.op() == Op::Identity) {  // numbers differ between processes
      if (x.op() == Op::Buffer) h = combine(h, buffers++);
      arg = arg.subspan(1);
    }
    for (int64_t a : arg) h = combine(h, uint64_t(a));
    for (const UOp& s : x->src()) h = combine(h, hashes.at(s));
    hashes[x] = h;
  }
  for (const UOp& root : roots) result = combine(result, hashes.at(root));
  return result;
}

}  // namespace tinyshard
