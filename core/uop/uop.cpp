// Interning, reference counts and the builders. Nodes live in one allocation: header, sources,
// argument, shape. The table is split in shards, each with its own lock, so that threads that build
// graphs at the same time seldom meet.
#include "core/uop/uop.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>
#include <new>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/dtype/half.h"
#include "core/uop/args.h"
#include "core/uop/shape.h"

namespace tinyshard {

int64_t product(DimSpan dims) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

std::string to_string(DimSpan dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

namespace {

// Behind all else, an Assign has the place of what is below its chain of Assigns: a source of the
// first of them, which the chain keeps.
const UOp** below_assigns(const Node* assign) {
  const int64_t* end = assign->shape().data() + assign->rank;
  return reinterpret_cast<const UOp**>(const_cast<int64_t*>(end));
}

}  // namespace

class Interner {
 public:
  UOp intern(Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
             std::shared_ptr<const void> payload) {
    uint64_t hash = combine(uint64_t(op) << 8 | uint64_t(dtype), src.size() << 32 | arg.size());
    for (const UOp& s : src) hash = combine(hash, s ? s->id : 0);  // create() refuses null
    for (int64_t a : arg) hash = combine(hash, uint64_t(a));
    Shard& shard = shard_of(hash);
    std::lock_guard lock(shard.mutex);
    size_t mask = shard.slots.size() - 1;
    for (size_t i = hash & mask;; i = (i + 1) & mask) {
      auto [known, node] = shard.slots[i];
      if (!node) break;
      if (known == hash && equal(*node, op, dtype, src, arg, payload.get()) && try_retain(node))
        return UOp(node);
    }
    Node* node = create(op, dtype, src, arg, std::move(payload), hash);
    insert(shard, node);
    return UOp(node);
  }

  void release(const Node* first) {
    // Iterative, so that dropping a long chain does not overflow the stack.
    std::vector<Node*> dying;
    for (auto* node = const_cast<Node*>(first); node;) {
      {
        Shard& shard = shard_of(node->hash);
        std::lock_guard lock(shard.mutex);
        erase(shard, node);
      }
      auto* src = const_cast<UOp*>(node->src().data());
      for (size_t i = 0; i < node->sources; ++i) {
        const Node* s = src[i].node_;
        src[i].node_ = nullptr;
        if (s->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
          dying.push_back(const_cast<Node*>(s));
      }
      node->~Node();
      ::operator delete(node);
      node = dying.empty() ? nullptr : dying.back();
      if (node) dying.pop_back();
    }
  }

  size_t live() {
    size_t n = 0;
    for (Shard& shard : shards_) {
      std::lock_guard lock(shard.mutex);
      n += shard.count;
    }
    return n;
  }

  uint64_t newest() const { return next_id_.load() - 1; }

  static Interner& get() {
    static Interner* interner = new Interner;  // outlives every static UOp
    return *interner;
  }

 private:
  // The hash stands beside the node, so that a look at a slot fetches no other node's memory.
  struct Slot {
    uint64_t hash = 0;
    Node* node = nullptr;
  };
  struct Shard {
    std::mutex mutex;
    std::vector<Slot> slots = std::vector<Slot>(1024);
    size_t count = 0;
  };

  Shard& shard_of(uint64_t hash) { return shards_[hash >> 60]; }

  static bool equal(const Node& node, Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
                    const void* payload) {
    return node.op == op && node.dtype == dtype && node.payload.get() == payload &&
           std::ranges::equal(node.src(), src) && std::ranges::equal(node.arg(), arg);
  }

  // A node whose count has reached zero is on its way out: another thread is about to erase it.
  static bool try_retain(Node* node) {
    uint32_t count = node->references.load(std::memory_order_relaxed);
    while (count != 0) {
      if (node->references.compare_exchange_weak(count, count + 1, std::memory_order_relaxed))
        return true;
    }
    return false;
  }

  Node* create(Op op, DType dtype, std::span<const UOp> src, DimSpan arg,
               std::shared_ptr<const void> payload, uint64_t hash) {
    Dims room;
    const DimSpan shape = infer_shape(op, src, arg, room);
    if (!shape.empty()) check_size(shape, dtype);
    Bounds bounds = infer_bounds(op, dtype, src, arg);
    size_t bytes =
        sizeof(Node) + src.size() * sizeof(UOp) + (arg.size() + shape.size()) * sizeof(int64_t);
    if (op == Op::Assign) bytes += sizeof(const UOp*);
    Node* node = new (::operator new(bytes)) Node{op,
                                                  dtype,
                                                  uint16_t(src.size()),
                                                  uint16_t(arg.size()),
                                                  uint16_t(shape.size()),
                                                  1,
                                                  origin_for(src),
                                                  hash,
                                                  next_id_.fetch_add(1, std::memory_order_relaxed),
                                                  bounds.low,
                                                  bounds.high,
                                                  std::move(payload)};
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

  // What a pass makes of a value comes from where the value came from.
  static OriginId origin_for(std::span<const UOp> src) {
    OriginId origin = current_origin();
    for (size_t i = 0; origin == 0 && i < src.size(); ++i) origin = origin_id(src[i]);
    return origin;
  }

  static void place(std::vector<Slot>& slots, const Slot& slot) {
    size_t mask = slots.size() - 1, i = slot.hash & mask;
    while (slots[i].node) i = (i + 1) & mask;
    slots[i] = slot;
  }

  static void insert(Shard& shard, Node* node) {
    if (++shard.count * 2 > shard.slots.size()) {
      std::vector<Slot> larger(shard.slots.size() * 2);
      for (const Slot& slot : shard.slots) {
        if (slot.node) place(larger, slot);
      }
      shard.slots.swap(larger);
    }
    place(shard.slots, {node->hash, node});
  }

  // Linear probing with backward shift: no tombstones.
  static void erase(Shard& shard, Node* node) {
    size_t mask = shard.slots.size() - 1, i = node->hash & mask;
    while (shard.slots[i].node != node) i = (i + 1) & mask;
    for (size_t j = (i + 1) & mask; shard.slots[j].node; j = (j + 1) & mask) {
      size_t home = shard.slots[j].hash & mask;
      if (((j - home) & mask) >= ((j - i) & mask)) {
        shard.slots[i] = shard.slots[j];
        i = j;
      }
    }
    shard.slots[i] = {};
    --shard.count;
  }

  std::array<Shard, 16> shards_;
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

void set_about(const UOp& x, std::string_view about) {
  x->origin.store(with_about(origin_id(x), about), std::memory_order_relaxed);
}

UOp UOp::with_src(std::span<const UOp> src) const {
  if (std::ranges::equal(src, node_->src())) return *this;
  DType dtype = node_->dtype;
  switch (info(node_->op).type_rule) {
    case TypeRule::SameAsFirst:
      dtype = src[0].dtype();
      break;
    case TypeRule::SameAsSecond:
      dtype = src[1].dtype();
      break;
    default:
      break;
  }
  OriginScope scope(origin_id(*this));
  return make(node_->op, dtype, src, node_->arg(), node_->payload);
}

// --- constants -----------------------------------------------------------------------------------

static UOp const_bits(DType dtype, int64_t bits, DimSpan shape) {
  std::array<int64_t, 8> few{bits};
  Dims many;
  if (shape.size() >= few.size()) many.resize(shape.size() + 1, bits);
  const std::span<int64_t> arg =
      many.empty() ? std::span(few).first(shape.size() + 1) : std::span(many);
  std::ranges::copy(shape, arg.begin() + 1);
  return UOp::make(Op::Const, dtype, {}, arg);
}

UOp const_float(DType dtype, double value, DimSpan shape) {
  if (!is_float(dtype)) return const_int(dtype, static_cast<int64_t>(value), shape);
  return const_bits(dtype, std::bit_cast<int64_t>(rounded_to(dtype, value)), shape);
}

UOp const_int(DType dtype, int64_t value, DimSpan shape) {
  if (is_float(dtype)) return const_float(dtype, rounded_integer(dtype, value), shape);
  switch (
      dtype) {  // the bits of a narrow integer are those of its value, so that equal means equal
    case DType::Bool:
      value = value != 0;
      break;
    case DType::I8:
      value = int64_t{static_cast<int8_t>(value)};
      break;
    case DType::U8:
      value = static_cast<uint8_t>(value);
      break;
    case DType::I16:
      value = static_cast<int16_t>(value);
      break;
    case DType::U16:
      value = static_cast<uint16_t>(value);
      break;
    case DType::I32:
      value = static_cast<int32_t>(value);
      break;
    case DType::U32:
      value = static_cast<uint32_t>(value);
      break;
    default:
      break;
  }
  return const_bits(dtype, value, shape);
}

UOp const_like(const UOp& x, double value) { return const_float(x.dtype(), value, x.shape()); }
UOp reshaped_const(const UOp& x, DimSpan shape) {
  return const_bits(x.dtype(), const_bits(*x), shape);
}

UOp index_const(int64_t value) { return const_bits(DType::Index, value, {}); }
bool is_const(const UOp& x) { return x.op() == Op::Const; }
bool is_const(const UOp& x, double value) { return is_const(x) && const_as_double(x) == value; }

double const_as_double(const UOp& x) {
  if (is_float(x.dtype())) return std::bit_cast<double>(const_bits(*x));
  if (x.dtype() == DType::U64) return static_cast<double>(static_cast<uint64_t>(const_bits(*x)));
  return static_cast<double>(const_bits(*x));
}

int64_t const_as_int(const UOp& x) {
  return is_float(x.dtype()) ? static_cast<int64_t>(const_as_double(x)) : const_bits(*x);
}

// --- builders ------------------------------------------------------------------------------------

UOp unary(Op op, const UOp& x) { return UOp::make(op, x.dtype(), {x}); }

UOp binary(Op op, const UOp& a, const UOp& b) {
  check_internal(a.dtype() == b.dtype(), "both sides of a binary op have one element type");
  return UOp::make(op, info(op).type_rule == TypeRule::Bool ? DType::Bool : a.dtype(), {a, b});
}

UOp where(const UOp& condition, const UOp& a, const UOp& b) {
  check_internal(a.dtype() == b.dtype() && condition.dtype() == DType::Bool,
                 "where takes a bool and two values of one type");
  return UOp::make(Op::Where, a.dtype(), {condition, a, b});
}

Epilogue epilogue_of(const UOp& dot) {
  return dot->arguments > 1 ? Epilogue(dot->arg()[1]) : Epilogue::None;
}

UOp cast(const UOp& x, DType dtype) {
  return x.dtype() == dtype ? x : UOp::make(Op::Cast, dtype, {x});
}

static bool same(DimSpan a, DimSpan b) { return std::ranges::equal(a, b); }

UOp reshape(const UOp& x, DimSpan shape) {
  if (same(x.shape(), shape)) return x;
  if (is_const(x)) return reshaped_const(x, shape);
  if (x.op() == Op::Reshape) return reshape(x.src(0), shape);
  return UOp::make(Op::Reshape, x.dtype(), {x}, shape);
}

UOp expand(const UOp& x, DimSpan shape) {
  if (same(x.shape(), shape)) return x;
  if (is_const(x)) return reshaped_const(x, shape);
  if (x.op() == Op::Expand) return expand(x.src(0), shape);
  return UOp::make(Op::Expand, x.dtype(), {x}, shape);
}

UOp permute(const UOp& x, DimSpan order) {
  bool identity = true;
  for (size_t i = 0; i < order.size(); ++i) identity = identity && order[i] == int64_t(i);
  if (identity) return x;
  if (x.op() == Op::Permute) {
    Dims combined;
    for (int64_t axis : order) combined.push_back(x->arg()[size_t(axis)]);
    return permute(x.src(0), combined);
  }
  UOp out = UOp::make(Op::Permute, x.dtype(), {x}, order);
  return is_const(x) ? reshaped_const(x, out.shape()) : out;
}

UOp swap_last_two(const UOp& x) {
  Dims order(x.shape().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int64_t(i);
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  return permute(x, order);
}

UOp under_views(UOp x) {
  while (is_movement(x.op()) || x.op() == Op::Identity) x = x.src(0);
  return x;
}

UOp pad(const UOp& x, DimSpan lo_hi) {
  if (std::ranges::all_of(lo_hi, [](int64_t v) { return v == 0; })) return x;
  return UOp::make(Op::Pad, x.dtype(), {x}, lo_hi);
}

UOp shrink(const UOp& x, DimSpan lo_hi) {
  bool whole = true;
  for (size_t i = 0; i < x.shape().size(); ++i)
    whole = whole && lo_hi[2 * i] == 0 && lo_hi[2 * i + 1] == x.shape()[i];
  if (whole) return x;
  UOp out = UOp::make(Op::Shrink, x.dtype(), {x}, lo_hi);
  return is_const(x) ? reshaped_const(x, out.shape()) : out;
}

UOp flip(const UOp& x, DimSpan axes) {
  if (axes.empty() || is_const(x)) return x;
  return UOp::make(Op::Flip, x.dtype(), {x}, axes);
}

UOp reduce(ReduceOp op, const UOp& x, DimSpan axes) {
  Dims arg{int64_t(op)};
  arg.insert(arg.end(), axes.begin(), axes.end());
  std::sort(arg.begin() + 1, arg.end());
  return axes.empty() ? x : UOp::make(Op::Reduce, x.dtype(), {x}, arg);
}

UOp range(int64_t id, int64_t size, RangeKind kind) {
  return UOp::make(Op::Range, DType::Index, {}, Dims{id, size, int64_t(kind)});
}

ConvArg conv_arg(const Node& node) {
  ConvArg arg;
  std::memcpy(&arg, node.arg().data(), sizeof(arg));
  return arg;
}

Dims to_ints(const ConvArg& arg) {
  static_assert(sizeof(ConvArg) == ConvArg::kInts * sizeof(int64_t));
  Dims ints(ConvArg::kInts);
  std::memcpy(ints.data(), &arg, sizeof(arg));
  return ints;
}

AttentionArg attention_arg(const Node& node) {
  DimSpan ints = node.arg();
  return {ints[0], ints[1] != 0, std::bit_cast<double>(ints[2]), ints[3] != 0};
}

Dims to_ints(const AttentionArg& arg) {
  return {arg.which, arg.causal, std::bit_cast<int64_t>(arg.scale), arg.heads_inside};
}

}  // namespace tinyshard
