// An update is found at its Assign, from the storage's old value up:
//
//   %5 = assign %0 (%0 - %4 * %3)     %3 = dot a b, read once;  %4 one number, repeated
//   %5 = assign %0 (dot a b %0 s)     s = [-%4, 1]: the factors of the product and of the old value
//
// The product writes where the old value lies, so all others who read that must have done so: each of
// them has to be something that a or b is computed from (Updates::reads_last).
#include "devices/gpu/updates.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "devices/gpu/product_regions.h"

namespace tinyshard::gpu {
namespace {

// old + factor * a @ b, or old - factor * a @ b.
struct Update {
  UOp old, a, b;
  UOp factor;  // of one element; null for 1
  bool negative = false;
};

// The f32 that x repeats; null when it is not one value.
UOp one_value(UOp x) {
  while (x.op() == Op::Expand || x.op() == Op::Reshape) x = x.src(0);
  if (x.dtype() != DType::F32) return {};
  if (is_const(x)) return reshaped_const(x, {});
  return x->numel() == 1 ? x : UOp();
}

UOp product_of(const Update& u) {
  auto product = [&](std::span<const UOp> operands) {
    return product_with(Epilogue::Update, u.old.dtype(), u.a, u.b, 0, operands);
  };
  UOp old = reshape(u.old, Dims{u.a.shape()[0], u.b.shape()[1]});
  if (!u.factor && !u.negative) return product(std::array{old});
  UOp factor = u.factor ? reshape(u.factor, Dims{1}) : const_float(DType::F32, 1, Dims{1});
  if (u.negative) factor = unary(Op::Neg, factor);
  UOp place = UOp::make(Op::Iota, DType::I64, {}, Dims{2});
  UOp first = binary(Op::CmpEq, place, const_like(place, 0));
  UOp both = expand(factor, Dims{2});
  return product(std::array{old, where(first, both, const_like(both, 1))});
}

class Updates {
 public:
  explicit Updates(const RegionQuery& query)
      : order_(query.graph().order()), roots_(query.graph().roots()), uses_(query.uses()) {}

  // Returns the update that an Assign does, if it is one by a product that nobody else reads.
  std::optional<Update> of(const UOp& assign) const {
    if (assign.dtype() != DType::F32) return std::nullopt;
    UOp sum = sum_of(assign);
    if ((sum.op() != Op::Add && sum.op() != Op::Sub) || !read_once(sum)) return std::nullopt;
    for (int side : {0, 1}) {
      if (side == 1 && sum.op() == Op::Sub) break;
      UOp old = sum.src(side);
      while (old.op() == Op::Reshape) old = old.src(0);
      if (!(old == assign.src(0))) continue;
      Update u{old, {}, {}, {}, sum.op() == Op::Sub};
      // A factor that lies in the storage itself would change while it is read.
      if (add_product(sum.src(1 - side), u) && !(under_views(u.a) == old) &&
          !(under_views(u.b) == old))
        return u;
    }
    return std::nullopt;
  }

  // Returns whether all readers of the old value, but the update, end before the product begins.
  bool reads_last(const Update& u, const UOp& assign) {
    if (users_.size() == 0) find_users();
    NodeMap<bool> before;
    std::vector<UOp> todo{u.a, u.b};
    while (!todo.empty()) {
      UOp x = std::move(todo.back());
      todo.pop_back();
      if (before.contains(x)) continue;
      before[x] = true;
      for (const UOp& s : x->src()) todo.push_back(s);
    }
    UOp sum = sum_of(assign);
    todo = {u.old};
    while (!todo.empty()) {
      UOp x = std::move(todo.back());
      todo.pop_back();
      for (const UOp& user : users_.at(x)) {
        if (user == assign || user == sum || before.contains(user)) continue;
        if (!is_movement(user.op()) || user == x) return false;
        todo.push_back(user);
      }
    }
    return true;
  }

 private:
  void find_users() {
    for (const UOp& x : order_) {
      users_[x];
      for (const UOp& s : x->src()) users_.at(s).push_back(x);
    }
    for (const UOp& root : roots_) users_.at(root).push_back(root);  // stands for who asked for it
  }

  bool read_once(const UOp& x) const { return uses_.at(x) == 1; }
  UOp reshaped(UOp x) const {  // by nodes that nobody else reads
    while (x.op() == Op::Reshape && read_once(x)) x = x.src(0);
    return x;
  }
  UOp sum_of(const UOp& assign) const { return reshaped(assign.src(1)); }

  bool add_product(const UOp& added, Update& u) const {
    UOp x = reshaped(added);
    if (x.op() == Op::Mul && read_once(x)) {
      for (int side : {0, 1}) {
        u.factor = one_value(x.src(side));
        if (u.factor && add_plain_product(x.src(1 - side), u)) return true;
      }
    }
    u.factor = UOp();
    return add_plain_product(x, u);
  }
  // A product that is rounded to a narrower type before it is added stays as it is.
  bool add_plain_product(const UOp& added, Update& u) const {
    UOp x = reshaped(added);
    if (x.op() != Op::Dot || x->sources != 2 || dot_batch(*x) != 0 || !is_float(x.dtype()) ||
        !read_once(x))
      return false;
    u.a = x.src(0);
    u.b = x.src(1);
    return true;
  }

  std::span<const UOp> order_, roots_;
  const NodeMap<int>& uses_;
  NodeMap<std::vector<UOp>> users_;  // once somebody asked for them
};

}  // namespace

std::vector<Replacement> find_updates(const RegionQuery& query) {
  const NodeOrder& order = query.graph().order();
  auto assigns = [](const UOp& x) { return x.op() == Op::Assign; };
  if (std::ranges::none_of(order, assigns)) return {};
  Updates updates(query);
  std::vector<Replacement> found;
  for (const UOp& x : order) {
    if (x.op() != Op::Assign) continue;
    const std::optional<Update> update = updates.of(x);
    if (!update) continue;
    const UOp product = product_of(*update);
    if (query.supports(row_major_call(product)) && updates.reads_last(*update, x))
      found.push_back({x, x.with_src(std::vector<UOp>{x.src(0), reshape(product, x.shape())})});
  }
  return found;
}

}  // namespace tinyshard::gpu
