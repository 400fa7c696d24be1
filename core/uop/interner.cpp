// Interning and reference counts. A node lives in one piece of memory: header, sources, argument,
// shape.
//
// Which nodes there are is known by their newest source. Its users are few and were mostly made one
// after the other, so to look for one takes no memory that has not just been used:
//
//   %8 = mul %6 %7        users %9
//   %9 = add %8 %3        users none;  sub %8 %3 is not there, as %8 has no such user
//
// A node without sources, and one more user than a few of a source, are in a table by their hash.
//
// All of that is split in shards by the number of the newest source, each with its own lock, so that
// threads that build graphs at the same time seldom meet.
#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>  // lock_guard
#include <new>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/spin_lock.h"
#include "core/uop/node_pool.h"
#include "core/uop/shape.h"
#include "core/uop/uop.h"

namespace tinyshard {
namespace {

// Behind all else, an Assign has the place of what is below its chain of Assigns: a source of the
// first of them, which the chain keeps.
const UOp** below_assigns(const Node* assign) {
  const int64_t* end = assign->shape().data() + assign->rank;
  return reinterpret_cast<const UOp**>(const_cast<int64_t*>(end));
}

size_t bytes_of(Op op, size_t sources, size_t ints) {
  size_t bytes = sizeof(Node) + sources * sizeof(UOp) + ints * sizeof(int64_t);
  return op == Op::Assign ? bytes + sizeof(const UOp*) : bytes;
}

// Null for none.
const Node* newest_of(std::span<const UOp> src) {
  const Node* newest = nullptr;
  for (const UOp& s : src) {
    if (s && (!newest || s->id > newest->id)) newest = s.get();
  }
  return newest;
}

// Nodes by their hash: linear probing.
class NodeTable {
 public:
  // The first node of that hash that `is_it` accepts; null for none.
  template <class IsIt>
  const Node* find(uint64_t hash, const IsIt& is_it) const {
    const size_t mask = slots_.size() - 1;
    for (size_t i = hash & mask; slots_[i].node; i = (i + 1) & mask) {
      if (slots_[i].hash == hash && is_it(*slots_[i].node)) return slots_[i].node;
    }
    return nullptr;
  }
  void insert(const Node* node) {
    if (++count_ * 2 > slots_.size()) {
      std::vector<Slot> larger(slots_.size() * 2);
      for (const Slot& slot : slots_) {
        if (slot.node) place(larger, slot);
      }
      slots_.swap(larger);
    }
    place(slots_, {node->hash, node});
  }
  // With backward shift: no tombstones.
  void erase(const Node* node) {
    const size_t mask = slots_.size() - 1;
    size_t i = node->hash & mask;
    while (slots_[i].node != node) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; slots_[j].node; j = (j + 1) & mask) {
      const size_t home = slots_[j].hash & mask;
      if (((j - home) & mask) >= ((j - i) & mask)) {
        slots_[i] = slots_[j];
        i = j;
      }
    }
    slots_[i] = {};
    --count_;
  }

 private:
  // The hash stands beside the node, so that a look at a slot fetches no other node's memory.
  struct Slot {
    uint64_t hash = 0;
    const Node* node = nullptr;
  };
  static void place(std::vector<Slot>& slots, const Slot& slot) {
    const size_t mask = slots.size() - 1;
    size_t i = slot.hash & mask;
    while (slots[i].node) i = (i + 1) & mask;
    slots[i] = slot;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  size_t count_ = 0;
};

}  // namespace

class Interner {
 public:
  UOp intern(Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
             std::shared_ptr<const void> payload) {
    uint64_t hash = combine(uint64_t(op) << 8 | uint64_t(dtype), src.size() << 32 | arg.size());
    for (const UOp& s : src) hash = combine(hash, s ? s->id : 0);  // create() refuses null
    for (int64_t a : arg) hash = combine(hash, uint64_t(a));
    const Node* newest = newest_of(src);
    auto is_it = [&](const Node& node) {
      return equal(node, op, dtype, src, arg, payload.get()) && try_retain(node);
    };
    Shard& shard = shard_of(newest, hash);
    std::lock_guard held(shard.lock);
    for (const Node* user = newest ? newest->users.first : nullptr; user; user = user->users.next) {
      if (user->hash == hash && is_it(*user)) return UOp(user);
    }
    if (!newest || newest->users.in_table > 0) {
      if (const Node* node = shard.table.find(hash, is_it)) return UOp(node);
    }
    const Node* node = create(op, dtype, src, arg, std::move(payload), hash);
    add(shard, newest, node);
    return UOp(node);
  }

  void release(const Node* first) {
    // A loop and no recursion, so that dropping a long chain does not overflow the stack. A node
    // that dies has no users any more, so the field of its first user links it to the next node
    // that is to die.
    for (const Node* dying = first; dying;) {
      auto* node = const_cast<Node*>(dying);
      dying = node->users.first;
      const Node* newest = newest_of(node->src());
      const size_t bytes =
          bytes_of(node->op, node->sources, size_t(node->arguments) + size_t(node->rank));
      std::shared_ptr<const void> payload;  // goes when the shard is free again
      Shard& shard = shard_of(newest, node->hash);
      std::lock_guard held(shard.lock);
      remove(shard, newest, node);
      payload = std::move(node->payload);
      for (const UOp& source : node->src()) {
        const Node* s = source.node_;
        if (s->references.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
        s->users.first = dying;
        dying = s;
      }
      node->~Node();
      pools_.give(node, bytes);
    }
  }

  size_t live() {
    size_t n = 0;
    for (Shard& shard : shards_) {
      std::lock_guard held(shard.lock);
      n += shard.live;
    }
    return n;
  }

  uint64_t newest() const { return next_id_.load() - 1; }

  static Interner& get() {
    static Interner* interner = new Interner;  // outlives every static UOp
    return *interner;
  }

 private:
  struct Shard {
    SpinLock lock;
    NodeTable table;
    size_t live = 0;
  };
  // So many users of a source are looked through one after the other.
  static constexpr uint32_t kMostChained = 8;

  Shard& shard_of(const Node* newest, uint64_t hash) {
    return shards_[newest ? newest->id % shards_.size() : hash >> 60];
  }

  static bool equal(const Node& node, Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
                    const void* payload) {
    return node.op == op && node.dtype == dtype && node.payload.get() == payload &&
           std::ranges::equal(node.src(), src) && std::ranges::equal(node.arg(), arg);
  }

  // A node whose count has reached zero is on its way out: another thread is about to erase it.
  static bool try_retain(const Node& node) {
    uint32_t count = node.references.load(std::memory_order_relaxed);
    while (count != 0) {
      if (node.references.compare_exchange_weak(count, count + 1, std::memory_order_relaxed))
        return true;
    }
    return false;
  }

  const Node* create(Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
                     std::shared_ptr<const void> payload, uint64_t hash) {
    Dims room;
    const DimSpan shape = infer_shape(op, dtype, src, arg, payload.get(), room);
    const bool known = !src.empty() && shape.data() == src[0].shape().data() &&
                       itemsize(dtype) <= itemsize(src[0].dtype());  // checked when it was made
    if (!shape.empty() && !known) check_size(shape, dtype);
    Bounds bounds = infer_bounds(op, dtype, src, arg);
    void* memory = pools_.take(bytes_of(op, src.size(), arg.size() + shape.size()));
    auto* node = new (memory) Node;
    node->payload = std::move(payload);
    node->low = bounds.low;
    node->high = bounds.high;
    node->hash = hash;
    node->id = next_id_.fetch_add(1, std::memory_order_relaxed);
    node->op = op;
    node->dtype = dtype;
    node->sources = uint16_t(src.size());
    node->arguments = uint16_t(arg.size());
    node->rank = uint16_t(shape.size());
    node->references.store(1, std::memory_order_relaxed);
    node->origin.store(origin_for(src), std::memory_order_relaxed);
    auto* sources = reinterpret_cast<UOp*>(node + 1);
    for (size_t i = 0; i < src.size(); ++i) new (sources + i) UOp(src[i]);
    auto* ints = reinterpret_cast<int64_t*>(sources + src.size());
    std::copy(arg.begin(), arg.end(), ints);
    std::copy(shape.begin(), shape.end(), ints + arg.size());
    if (op == Op::Assign) {
      const bool chain = sources[0].op() == Op::Assign;
      *below_assigns(node) = chain ? *below_assigns(sources[0].get()) : sources;
    }
    return node;
  }

  // A node that a pass makes of a value comes from where the value came from.
  static OriginId origin_for(std::span<const UOp> src) {
    OriginId origin = current_origin();
    for (size_t i = 0; origin == 0 && i < src.size(); ++i) origin = origin_id(src[i]);
    return origin;
  }

  static void add(Shard& shard, const Node* newest, const Node* node) {
    ++shard.live;
    if (newest && newest->users.chained < kMostChained) {
      ++newest->users.chained;
      node->users.next = std::exchange(newest->users.first, node);
      node->users.is_chained = true;
      return;
    }
    shard.table.insert(node);
    if (newest) ++newest->users.in_table;
  }
  static void remove(Shard& shard, const Node* newest, const Node* node) {
    --shard.live;
    if (node->users.is_chained) {
      const Node** link = &newest->users.first;
      while (*link != node) link = &(*link)->users.next;
      *link = node->users.next;
      --newest->users.chained;
      return;
    }
    shard.table.erase(node);
    if (newest) --newest->users.in_table;
  }

  std::array<Shard, 16> shards_;
  NodePools pools_;
  std::atomic<uint64_t> next_id_{1};
};

void UOp::release(const Node* node) { Interner::get().release(node); }
size_t live_nodes() { return Interner::get().live(); }
uint64_t newest_node_id() { return Interner::get().newest(); }

UOp UOp::make(Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
              std::shared_ptr<const void> payload) {
  return Interner::get().intern(op, dtype, src, arg, std::move(payload));
}

const UOp& storage_node(const UOp& x) {
  return x.op() == Op::Assign ? **below_assigns(x.get()) : x;
}

}  // namespace tinyshard
