// Fused attention over a mesh. Along an axis it divides by one of these, or not at all:
//
//   batch, heads   all operands lie so, and so does every result. Operands that lie divided by
//                  sequence change their split by all-to-all, and the results go back.
//   rows           q and what belongs to its rows stay divided by sequence, k and v are gathered.
//                  Rows of a part look at columns from where the part begins, so a causal one is
//                  told the position of each row. The gradients of k and v are pending sums.
//
//   q, k, v bf16[1, 32, 8192, 128] divided by sequence over 8: gathering k and v sends
//   2 x 64 x 7/8 = 112 MiB per device, four all-to-alls of a part 4 x 8 x 7/8 = 28 MiB: heads.
//   With 4 heads in k and v: 14 MiB of k and v against all-to-alls of q and the result, 14 + 1.8;
//   and k and v have too few heads for 8 devices: rows.
//
// The cheapest way wins, in bytes that operands and results travel, and time to compute.
#include <algorithm>
#include <limits>

#include "multi/moves.h"
#include "multi/strategies/strategies.h"
#include "multi/strategies/ways.h"

namespace tinyshard {
namespace {

// q, k, v; in a gradient the result, its statistics and the gradient of the result as well.
constexpr size_t kQuery = 0, kKey = 1, kValue = 2;

class Plan {
 public:
  Plan(const UOp& x, const Mesh& mesh, LocalValues& values) : x_(x), mesh_(mesh), values_(values) {
    for (const UOp& s : x->src()) operands_.push_back(values.on(s, mesh));
    chosen_.assign(mesh.axes().size(), -1);
    best_ = chosen_;
    look(0);
  }

  // Of an axis that divides by no dim: -1.
  bool by_rows(size_t axis) const { return best_[axis] == rows(); }
  LocalValue brought(size_t operand) {
    return values_.moved(operands_[operand], shape(operand), wanted(operand, best_));
  }
  std::vector<Placement> result() const {
    if (x_.op() == Op::Attention) return wanted(kQuery, best_);
    return gradient(size_t(attention_arg(*x_).which), best_);
  }

 private:
  using Dimensions = std::vector<int>;  // by which dim each mesh axis divides, -1: by none

  int rows() const { return int(shape(kQuery).size()) - 2; }
  int heads() const { return rows() - 1; }
  DimSpan shape(size_t operand) const { return x_.src(operand).shape(); }

  std::vector<Placement> wanted(size_t operand, const Dimensions& by) const {
    std::vector<Placement> place(by.size());
    for (size_t a = 0; a < by.size(); ++a) {
      const bool whole = by[a] == rows() && (operand == kKey || operand == kValue);
      if (by[a] >= 0 && !whole) place[a] = Shard(by[a]);
    }
    return place;
  }
  std::vector<Placement> gradient(size_t operand, const Dimensions& by) const {
    std::vector<Placement> place = wanted(operand, by);
    for (size_t a = 0; a < by.size(); ++a) {
      if (by[a] == rows() && operand != kQuery) place[a] = Partial();
    }
    return place;
  }

  bool possible(int dim, size_t axis) const {
    const int64_t parts = mesh_.axes()[axis].size;
    const bool lies = std::ranges::any_of(
        operands_, [&](const LocalValue& v) { return v.place[axis] == Shard(dim); });
    if (dim == heads() && shape(kQuery)[size_t(dim)] != shape(kKey)[size_t(dim)]) {
      // Heads that share k and v have to be where these are, on every device as many.
      int64_t all = parts;
      for (size_t a = 0; a < chosen_.size(); ++a) {
        if (a != axis && chosen_[a] == dim) all *= mesh_.axes()[a].size;
      }
      return shape(kKey)[size_t(dim)] % all == 0;
    }
    return lies || shape(kQuery)[size_t(dim)] >= parts;
  }

  void look(size_t axis) {
    if (axis == chosen_.size()) {
      const double now = cost();
      if (now >= least_) return;
      least_ = now, best_ = chosen_;
      return;
    }
    const bool whole = std::ranges::all_of(
        operands_, [&](const LocalValue& v) { return v.place[axis].is_replicate(); });
    for (int dim = 0; !whole && dim <= rows(); ++dim) {
      chosen_[axis] = dim;
      // Heads over several axes are looked at with those before.
      std::fill(chosen_.begin() + int64_t(axis) + 1, chosen_.end(), -1);
      if (possible(dim, axis)) look(axis + 1);
    }
    chosen_[axis] = -1;
    look(axis + 1);
  }

  double cost() const {
    double bytes = 0;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const LocalValue& v = operands_[i];
      const auto to = wanted(i, chosen_);
      if (!values_.was_moved(v, to))
        bytes += bytes_moved(v.local.dtype(), shape(i), mesh_, v.place, to);
    }
    // The result goes back to where q lies, gradients to where their operands do.
    auto back = [&](size_t operand, DimSpan global, const std::vector<Placement>& from) {
      std::vector<Placement> home = operands_[operand].place;
      for (size_t a = 0; a < home.size(); ++a) {
        if (home[a].is_partial()) home[a] = from[a].is_partial() ? Replicate : from[a];
      }
      bytes += bytes_moved(operands_[operand].local.dtype(), global, mesh_, from, home);
    };
    const bool forward = x_.op() == Op::Attention;
    if (forward) {
      Dims result(shape(kQuery).begin(), shape(kQuery).end());
      result.back() = shape(kValue).back();
      back(kQuery, result, wanted(kQuery, chosen_));
    } else {
      for (size_t i : {kQuery, kKey, kValue}) back(i, shape(i), gradient(i, chosen_));
    }
    const Dims local = Sharding{mesh_, wanted(kQuery, chosen_)}.local_shape(shape(kQuery));
    const double scores = double(product(local)) * double(shape(kKey)[size_t(rows())]);
    return bytes + (forward ? 4 : 10) * scores / kFlopsPerByte;
  }

  const UOp& x_;
  const Mesh& mesh_;
  LocalValues& values_;
  std::vector<LocalValue> operands_;
  Dimensions chosen_, best_;
  double least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

LocalValue attention(const UOp& x, LocalValues& values) {
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  Plan plan(x, *mesh, values);
  const size_t row = x.src(kQuery).shape().size() - 2;
  std::vector<UOp> src;
  LocalValue positions{UOp::make(Op::Iota, DType::I64, {}, Dims{x.src(kQuery).shape()[row]}), *mesh,
                       std::vector<Placement>(mesh->axes().size()), current_origin()};
  std::vector<Placement> line = positions.place;
  for (size_t a = 0; a < line.size(); ++a) {
    if (plan.by_rows(a)) line[a] = Shard(0);
  }
  const bool divided = line != positions.place;
  for (size_t i = 0; i < x->sources; ++i) {
    LocalValue v = plan.brought(i);
    // Padding of rows takes no part in the sums of the gradients.
    if (divided && x.op() == Op::AttentionBackward && i != kKey && i != kValue)
      v.local = with_padding_filled(v, x.src(i).shape(), int(row), const_float(v.local.dtype(), 0));
    src.push_back(v.local);
  }
  if (divided && attention_arg(*x).causal) {
    const Dims rows{x.src(kQuery).shape()[row]};
    src.push_back(redistribute(std::move(positions), rows, *mesh, line).local);
  }
  return {UOp::make(x.op(), x.dtype(), src, x->arg()), mesh, plan.result()};
}

}  // namespace tinyshard
