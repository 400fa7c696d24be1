// A UOp is one immutable node of the graph: op, element type, sources and a list of integers as
// its argument. Nodes are interned: equal nodes are the same pointer, so graph equality is pointer
// equality. Tensors, schedules and kernels are all made of UOps.
//
// Arguments by op:
//   Const {bits, dims...}        Buffer {id, dims...}          Iota {n}: 0..n-1 as i64
//   Reshape, Expand {dims...}    Permute {order...}            Pad, Shrink {lo0, hi0, lo1, hi1...}
//   Flip {axes...}               ShardSlice {axis, mesh axis, parts}: this device's part of `axis`
//   Composite(operands...) {number}: its row is the payload, see core/uop/composite.h
//   Reduce {ReduceOp, axes...}: reduced axes become 1         Range {id, size, RangeKind}
//   Gather(x, index) {axis[, Sorting]}: out[.., i, ..] = x[.., index[.., i, ..], ..] with index's
//     shape; Sorting: the axis is the last one, and the index the Sort of sort_keys(x)
//   ScatterAdd(index, src[, base]) {axis, size[, ReduceOp[, writes]]}: the adjoint of Gather, added
//     to zeros or a base (from passes only) of its shape and its or a narrower type; else see
//     ScatterArg
//   Sort(keys) {k}: of each row of unsigned keys, along the last dim, the i32 places of the k
//     smallest in order, of equal keys the earlier one first
//   Decompose(x) {Factor, full}: a factor of each matrix x[.., m, n] of floats, see DecomposeArg
//   Dot(a, b) {batch axes}: a[batch.., m, k] * b[batch.., k, n] -> [batch.., m, n]
//   Dot(a, b, operands...) {batch axes, number}: with a region of what follows it, its payload; made by
//     the passes only, see core/uop/product_region.h
//   Conv*: see ConvArg            Attention*: see AttentionArg
//   Collective {CollectiveOp, ReduceOp, mesh axis, parts, before, after, ...}: whether the first dim
//     counts the parts before and after; a device has one where not. The rest: multi/collective.h
//   Redistribute {mesh id, placements...}, rounded to its type before it travels
//   DeviceCoordinate {mesh axis, size}
//   Identity {number}: the value of its source under a name of its own: see under_names()
//   Param {slot}       Load(param, index[, valid])       Store(param, index, value[, valid])
//   Fold(value, ranges...) {ReduceOp}                           Pad fills with zero
//
// Threads: making and dropping nodes is safe from any thread.
#pragma once
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/origin.h"
#include "core/dtype/dtype.h"
#include "core/uop/op.h"

namespace tinyshard {

using Dims = std::vector<int64_t>;
using DimSpan = std::span<const int64_t>;
int64_t product(DimSpan dims);
std::string to_string(DimSpan dims);  // "[2, 3]"

class UOp;

// The members that walks read come last, beside the sources that follow a node in memory.
struct Node {
  // The interner's: nodes of which this is the newest source, and this node among those of its own.
  struct Users {
    const Node *first = nullptr, *next = nullptr;
    uint32_t in_table = 0;
    uint8_t chained = 0;
    bool is_chained = false;
  };
  mutable Users users;
  // Storage of a Buffer, mesh of a Redistribute or Collective, region of a Dot, row of a Composite.
  std::shared_ptr<const void> payload;
  int64_t low, high;  // bounds of an Index value, both inclusive; meaningless for other types
  uint64_t hash;
  uint64_t id;  // increases with creation; never reused
  Op op;
  DType dtype;
  uint16_t sources, arguments, rank;
  mutable std::atomic<uint32_t> references;
  // The origin of the first that made the node; no part of its identity; set_about() alone sets it.
  mutable std::atomic<OriginId> origin;

  std::span<const UOp> src() const;
  DimSpan arg() const;
  DimSpan shape() const;
  int64_t numel() const { return product(shape()); }
};

// A counted reference to a Node; null by default.
class UOp {
 public:
  UOp() = default;
  UOp(const UOp& other) : node_(other.node_) { retain(); }
  UOp(UOp&& other) noexcept : node_(other.node_) { other.node_ = nullptr; }
  UOp& operator=(UOp other) noexcept {
    std::swap(node_, other.node_);
    return *this;
  }
  ~UOp() {
    if (node_ && node_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) release(node_);
  }

  // Interns a node: op, type, sources, argument and payload are its identity. Throws InternalError
  // when sources, argument or types break the op's rules.
  static UOp make(Op op, DType dtype, std::span<const UOp> src, DimSpan arg = {},
                  std::shared_ptr<const void> payload = nullptr);
  class Borrowed;
  static UOp make(Op op, DType dtype, std::initializer_list<Borrowed> src, DimSpan arg = {},
                  std::shared_ptr<const void> payload = nullptr);

  const Node* operator->() const { return node_; }
  const Node& operator*() const { return *node_; }
  const Node* get() const { return node_; }
  explicit operator bool() const { return node_ != nullptr; }
  bool operator==(const UOp& other) const { return node_ == other.node_; }

  Op op() const { return node_->op; }
  DType dtype() const { return node_->dtype; }
  const UOp& src(size_t i) const { return node_->src()[i]; }
  DimSpan shape() const { return node_->shape(); }

  // The same op and argument over other sources; the node itself when they are the same.
  UOp with_src(std::span<const UOp> src) const;

 private:
  friend class Interner;
  explicit UOp(const Node* node) : node_(node) {}
  void retain() const {
    if (node_) node_->references.fetch_add(1, std::memory_order_relaxed);
  }
  static void release(const Node* node);

  const Node* node_ = nullptr;
};

// A source in a list of sources, where the caller keeps the node meanwhile: a copy would count a
// reference up and down again, and these counts are most of what making a node takes.
class UOp::Borrowed {
 public:
  Borrowed(const UOp& x) : uop_(x.node_) {}  // NOLINT(google-explicit-constructor)
  ~Borrowed() {}                             // NOLINT(modernize-use-equals-default): drops nothing

 private:
  union {
    UOp uop_;
  };
};
static_assert(sizeof(UOp) == sizeof(const Node*) && sizeof(UOp::Borrowed) == sizeof(UOp));

inline UOp UOp::make(Op op, DType dtype, std::initializer_list<Borrowed> src, DimSpan arg,
                     std::shared_ptr<const void> payload) {
  return make(op, dtype, std::span(reinterpret_cast<const UOp*>(src.begin()), src.size()), arg,
              std::move(payload));
}

inline std::span<const UOp> Node::src() const {
  return {reinterpret_cast<const UOp*>(this + 1), sources};
}
inline DimSpan Node::arg() const {
  return {reinterpret_cast<const int64_t*>(src().data() + sources), arguments};
}
inline DimSpan Node::shape() const { return {arg().data() + arguments, rank}; }

// Returns what is below a chain of Assigns, at once however long it is; x itself where it is none.
const UOp& storage_node(const UOp& x);

// Says what a node is for, beside the line that it comes from.
void set_about(const UOp& x, std::string_view about);
inline OriginId origin_id(const UOp& x) { return x->origin.load(std::memory_order_relaxed); }

// --- constants -----------------------------------------------------------------------------------
// Floats are kept as the bits of a double, integers sign- or zero-extended to 64 bits.
UOp const_float(DType dtype, double value, DimSpan shape = {});
UOp const_int(DType dtype, int64_t value, DimSpan shape = {});
UOp const_like(const UOp& x, double value);       // of x's type and shape
UOp reshaped_const(const UOp& x, DimSpan shape);  // x, a constant, with another shape
UOp index_const(int64_t value);
bool is_const(const UOp& x);
bool is_const(const UOp& x, double value);  // compares as a number, whatever the type
double const_as_double(const UOp& x);
int64_t const_as_int(const UOp& x);

// --- builders that check nothing but the op's own rules ------------------------------------------
UOp unary(Op op, const UOp& x);
UOp binary(Op op, const UOp& a, const UOp& b);
UOp where(const UOp& condition, const UOp& a, const UOp& b);
UOp cast(const UOp& x, DType dtype);
UOp reshape(const UOp& x, DimSpan shape);
UOp swap_last_two(const UOp& x);          // dims
UOp under_views(UOp x);                   // what movement ops and names lead down to; x itself else
UOp expand(const UOp& x, DimSpan shape);  // dims of size 1 repeat; same rank
UOp permute(const UOp& x, DimSpan order);
UOp pad(const UOp& x, DimSpan lo_hi);
UOp shrink(const UOp& x, DimSpan lo_hi);  // [lo, hi) for each dim
UOp flip(const UOp& x, DimSpan axes);
UOp iota_along(DimSpan shape, size_t dim, DType dtype = DType::I64);  // 0, 1, 2.. along one dim
UOp reduce(ReduceOp op, const UOp& x, DimSpan axes);  // reduced axes stay with size 1

// --- names ---------------------------------------------------------------------------------------
// Equal nodes are one pointer, but two tensors of equal values are two things to differentiate by.
// So a tensor's value is an Identity node, whose number no other one has; builders do not look
// through it. Names end before the passes (without_names in core/uop/graph.h), which see equal values
// as one again.
UOp named(const UOp& x);
UOp under_names(UOp x);         // the value itself
int64_t name_of(const UOp& x);  // the number; 0 for a node that is no Identity

// --- kernels -------------------------------------------------------------------------------------
enum class RangeKind : uint8_t { Loop, Fold };
UOp range(int64_t id, int64_t size, RangeKind kind);

// Convolution argument, for Conv(x, w), ConvBackwardData(gradient, w), ConvBackwardWeight(x,
// gradient); x is [n, c, h, w], w is [oc, c / groups, kh, kw]. The last four are the sizes of the
// result that the sources do not determine.
struct ConvArg {
  int64_t stride[2], dilation[2], pad_low[2], pad_high[2], groups;
  int64_t result[4];  // shape of the result
  static constexpr size_t kInts = 13;
};
ConvArg conv_arg(const Node& node);
Dims to_ints(const ConvArg& arg);

// softmax(scale * q k^T) v over the last two dims, with q [.., L, E], k [.., S, E], v [.., S, V] of
// one float type; causal: row i looks at columns up to i. Several results, a node each, so
// that one library call may compute those that are used.
//   Attention(q, k, v): 0 the result [.., L, V]; 1 its statistics [.., L, 1], the log of the sum of
//     exp over a row of scores, in f32 or wider
//   AttentionBackward(q, k, v, result, statistics, gradient of the result): 0 to 2 the gradients of
//     q, k, v
struct AttentionArg {
  int64_t which;
  bool causal;
  double scale;
  bool heads_inside = false;  // the result has its dims -3 and -2 swapped: [.., L, heads, V]
};
AttentionArg attention_arg(const Node& node);
Dims to_ints(const AttentionArg& arg);

// Factors of each matrix [.., m, n], with k = min(m, n). They are nodes of their own, of which one
// library call computes those that are used.
//   x = Q R, with Q [.., m, m] orthogonal and R [.., m, n] a triangle
//   x = U diag(S) V, with U [.., m, k], S [.., k] falling and V [.., k, n]; full: U [.., m, m] and
//     V [.., n, n], both orthogonal
enum class Factor : uint8_t { Q, R, U, S, V };
struct DecomposeArg {
  Factor factor;
  bool full = true;
};
DecomposeArg decompose_arg(const Node& node);
Dims to_ints(const DecomposeArg& arg);

// --- whole graphs --------------------------------------------------------------------------------
// Nodes of a graph, which keeps them: a list of them is good as long as its roots are.
class NodeOrder {
 public:
  void push_back(const UOp& x) { nodes_.push_back(x.get()); }
  size_t size() const { return nodes_.size(); }
  const UOp* begin() const { return reinterpret_cast<const UOp*>(nodes_.data()); }
  const UOp* end() const { return begin() + size(); }
  const UOp& operator[](size_t i) const { return begin()[i]; }
  operator std::span<const UOp>() const { return {begin(), size()}; }
  operator std::vector<UOp>() const { return {begin(), end()}; }

 private:
  std::vector<const Node*> nodes_;  // a UOp is a pointer to its node
};
// Every node reachable from roots, sources before users, in a deterministic order.
NodeOrder toposort(std::span<const UOp> roots);
NodeOrder toposort(std::vector<UOp>&& roots) = delete;  // which would not keep the graph

// Prints a line per node: "%3 = add f32[2, 3] %1 %2".
std::string print(std::span<const UOp> roots);
inline std::string print(const UOp& root) { return print(std::span(&root, 1)); }
std::string describe(const Node& node);  // "add f32[2, 3]"

// A hash of structure alone: buffers count by order of appearance, not by identity; equal across
// processes that built the same graph.
uint64_t structural_hash(std::span<const UOp> roots);

// Number of nodes alive, for tests of leaks.
size_t live_nodes();
// Id of the newest node: whatever is made later has a higher one.
uint64_t newest_node_id();

}  // namespace tinyshard

template <>
struct std::hash<tinyshard::UOp> {
  size_t operator()(const tinyshard::UOp& x) const noexcept { return x ? x->hash : 0; }
};
