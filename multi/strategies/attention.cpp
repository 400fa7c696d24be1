// Fused attention over a mesh. Along an axis it divides by one of these, or not at all:
//
//   batch, heads   all operands lie so, and so does every result. Operands that lie divided by
//                  sequence change their split by all-to-all, and the results go back. Where k and
//                  v have fewer heads than there are devices, each head has a copy for each of the
//                  devices whose heads of q share it: of what all devices have that is a slice, of
//                  parts of another dim an all-to-all. Gradients of the copies are added up.
//   rows           q and what belongs to its rows stay divided by sequence, k and v are gathered.
//                  Rows of a part look at columns from where the part begins, so a causal one is
//                  told the position of each row. The gradients of k and v are pending sums.
//
//   q, k, v bf16[1, 32, 8192, 128] divided by sequence over 8: gathering k and v sends
//   2 x 64 x 7/8 = 112 MiB per device, four all-to-alls of a part 4 x 8 x 7/8 = 28 MiB: heads.
//   With 4 heads in k and v: 14 MiB of k and v gathered, against all-to-alls of q and the result,
//   14, and of 8 copies of heads of k and v, 3.5: rows.
//   q divided by heads, k and v with 4 heads on all devices: no bytes, each device takes its head.
//
// The fastest way wins, by the time in which operands and results travel and that to compute. Where the
// devices have a library for the op, but not for the part that a way gives them, the scores of that
// part go through memory, which takes its time, too: of 131072 rows over 8 devices, each with 32 heads
// and the positions of its rows, these are 256 GiB.
#include <algorithm>
#include <string>

#include "multi/moves.h"
#include "multi/strategies/strategies.h"

namespace tinyshard {
namespace {

// q, k, v; in a gradient the result, its statistics and the gradient of the result as well.
constexpr size_t kQuery = 0, kKey = 1, kValue = 2;
constexpr double kScore = 4, kManyScores = 1 << 28;  // bytes

class Ways {
 public:
  Ways(const UOp& x, const Mesh& mesh, LocalValues& values) : x_(x), mesh_(mesh), values_(values) {
    Question question(x);
    for (const UOp& s : x->src()) {
      operands_.push_back(values.on(s, mesh));
      question.about(operands_.back(), s.shape());
    }
    chosen_.assign(mesh.axes().size(), -1);
    best_ = chosen_;
    Decisions::Choice choice = values.decisions().ask(question.about(uint64_t(mesh.id())).hash());
    for (const LocalValue& v : operands_) question.about(values.known_moves(v));
    Decisions::Costs costs = values.decisions().costs(question.hash());
    look(0, choice, costs);
  }

  // -1 stands for an axis that divides by no dim.
  bool by_rows(size_t axis) const { return best_[axis] == rows(); }
  LocalValue brought(size_t operand) {
    if (!copies(operand, best_))
      return values_.moved(operands_[operand], shape(operand), wanted(operand, best_));
    LocalValue v = values_.moved(operands_[operand], shape(operand), even_heads(operand));
    v.local = copied(v.local);
    return redistribute(std::move(v), shape_for(operand, best_), mesh_, wanted(operand, best_));
  }
  // Returns what the op makes of these operands: its part of the result.
  LocalValue result(const UOp& made) const {
    if (x_.op() == Op::Attention) return {made, mesh_, wanted(kQuery, best_)};
    const auto operand = size_t(attention_arg(*x_).which);
    LocalValue g{made, mesh_, terms(operand, best_), current_origin()};
    if (!copies(operand, best_)) return g;
    g = redistribute(std::move(g), shape_for(operand, best_), mesh_, gradient(operand, best_));
    g.local = copies_added(g.local);
    return g;
  }

 private:
  using Dimensions = std::vector<int>;  // by which dim each mesh axis divides, -1: by none

  int rows() const { return int(shape(kQuery).size()) - 2; }
  int heads() const { return rows() - 1; }
  DimSpan shape(size_t operand) const { return x_.src(operand).shape(); }

  int64_t heads_of(size_t operand) const { return shape(operand)[size_t(heads())]; }
  // Into how many parts the axes below `end` divide heads.
  int64_t head_parts(const Dimensions& by, size_t end) const {
    int64_t parts = 1;
    for (size_t a = 0; a < end; ++a) {
      if (by[a] == heads()) parts *= mesh_.axes()[a].size;
    }
    return parts;
  }
  // True if each device has a copy of one head of k and v, which have fewer than there are parts.
  bool copies(size_t operand, const Dimensions& by) const {
    if ((operand != kKey && operand != kValue) || rows() == 0) return false;
    return heads_of(kQuery) != heads_of(kKey) && heads_of(kKey) % head_parts(by, by.size()) != 0;
  }
  Dims shape_for(size_t operand, const Dimensions& by) const {
    Dims shape(x_.src(operand).shape().begin(), x_.src(operand).shape().end());
    if (copies(operand, by)) shape[size_t(heads())] = head_parts(by, by.size());
    return shape;
  }
  // Returns the placements of k or v by which all devices that have heads have the same number of
  // them.
  std::vector<Placement> even_heads(size_t operand) const {
    std::vector<Placement> place = operands_[operand].place;
    int64_t parts = 1;
    for (size_t a = 0; a < place.size(); ++a) {
      if (place[a].is_partial()) place[a] = Replicate;
      if (!(place[a] == Shard(heads()))) continue;
      parts *= mesh_.axes()[a].size;
      if (heads_of(operand) % parts != 0) place[a] = Replicate;
    }
    return place;
  }
  UOp copied(const UOp& x) const {
    const int64_t count = head_parts(best_, best_.size()) / heads_of(kKey);
    Dims apart(x.shape().begin(), x.shape().end()), joined = apart;
    apart.insert(apart.begin() + rows(), 1);
    const UOp each = reshape(x, apart);
    apart[size_t(rows())] = count, joined[size_t(heads())] *= count;
    return reshape(expand(each, apart), joined);
  }
  // The sum over the copies of each head, rounded once.
  UOp copies_added(const UOp& x) const {
    const int64_t count = head_parts(best_, best_.size()) / heads_of(kKey);
    Dims apart(x.shape().begin(), x.shape().end()), joined = apart;
    apart[size_t(heads())] /= count, joined[size_t(heads())] /= count;
    apart.insert(apart.begin() + rows(), count);
    const UOp wide = cast(reshape(x, apart), accumulator(x.dtype()));
    const UOp sum = reduce(ReduceOp::Sum, wide, Dims{int64_t(rows())});
    return cast(reshape(sum, joined), x.dtype());
  }

  std::vector<Placement> wanted(size_t operand, const Dimensions& by) const {
    std::vector<Placement> place(by.size());
    for (size_t a = 0; a < by.size(); ++a) {
      const bool whole = by[a] == rows() && (operand == kKey || operand == kValue);
      if (by[a] >= 0 && !whole) place[a] = Shard(by[a]);
    }
    return place;
  }
  // Returns how the gradient of an operand lies as the devices make it.
  std::vector<Placement> terms(size_t operand, const Dimensions& by) const {
    std::vector<Placement> place = wanted(operand, by);
    for (size_t a = 0; a < by.size(); ++a) {
      if (by[a] == rows() && operand != kQuery) place[a] = Partial();
    }
    return place;
  }
  // Returns how the gradient of an operand lies in the end. Copies of an operand have a gradient
  // each: these are added up to parts, if another dim of the operand is divided, or left as terms
  // of a sum.
  std::vector<Placement> gradient(size_t operand, const Dimensions& by) const {
    std::vector<Placement> place = terms(operand, by);
    if (!copies(operand, by)) return place;
    for (size_t a = 0; a < by.size(); ++a) {
      if (by[a] != heads() || heads_of(operand) % head_parts(by, a + 1) == 0) continue;
      const Placement& lies = operands_[operand].place[a];
      place[a] = lies.is_shard() && lies.dim != heads() ? lies : Partial();
    }
    return place;
  }

  bool possible(int dim, size_t axis) const {
    const int64_t parts = mesh_.axes()[axis].size;
    const bool lies = std::ranges::any_of(
        operands_, [&](const LocalValue& v) { return v.place[axis] == Shard(dim); });
    if (dim == heads() && shape(kQuery)[size_t(dim)] != shape(kKey)[size_t(dim)]) {
      // Heads that share k and v have to be where these are, on every device as many: with some of
      // these, or with one.
      const int64_t all = head_parts(chosen_, axis) * parts, few = heads_of(kKey);
      return few % all == 0 || (few > 0 && all % few == 0 && heads_of(kQuery) % all == 0);
    }
    return lies || shape(kQuery)[size_t(dim)] >= parts;
  }

  void look(size_t axis, Decisions::Choice& choice, Decisions::Costs& costs) {
    if (axis == chosen_.size()) {
      if (choice.offer(costs.next([&] { return cost(); }))) best_ = chosen_;
      return;
    }
    const bool whole = std::ranges::all_of(
        operands_, [&](const LocalValue& v) { return v.place[axis].is_replicate(); });
    for (int dim = 0; !whole && dim <= rows(); ++dim) {
      chosen_[axis] = dim;
      // Heads over several axes are looked at with those before.
      std::fill(chosen_.begin() + int64_t(axis) + 1, chosen_.end(), -1);
      if (possible(dim, axis)) look(axis + 1, choice, costs);
    }
    chosen_[axis] = -1;
    look(axis + 1, choice, costs);
  }

  double cost() const {
    double seconds = 0;
    auto moved = [&](const LocalValue& v, DimSpan global, const std::vector<Placement>& from,
                     const std::vector<Placement>& to) {
      seconds += seconds_moved(v.local.dtype(), global, mesh_, from, to, values_.links());
    };
    for (size_t i = 0; i < operands_.size(); ++i) {
      const LocalValue& v = operands_[i];
      const auto to = wanted(i, chosen_);
      if (copies(i, chosen_)) {
        const auto even = even_heads(i);
        moved(v, shape(i), v.place, even);
        moved(v, shape_for(i, chosen_), even, to);
      } else if (!values_.was_moved(v, to)) {
        moved(v, shape(i), v.place, to);
      }
    }
    // The result goes back to where q lies, gradients to where their operands do.
    auto back = [&](size_t operand, DimSpan global, const std::vector<Placement>& from) {
      std::vector<Placement> home = operands_[operand].place;
      for (size_t a = 0; a < home.size(); ++a) {
        if (home[a].is_partial()) home[a] = from[a].is_partial() ? Replicate : from[a];
        // If all devices have the operand, its gradient may stay terms as long as that of a weight.
        const bool stays = copies(operand, chosen_) && chosen_[a] == heads();
        if (stays && home[a].is_replicate() && from[a].is_partial()) home[a] = from[a];
      }
      moved(operands_[operand], global, from, home);
    };
    const bool forward = x_.op() == Op::Attention;
    if (forward) {
      Dims result(shape(kQuery).begin(), shape(kQuery).end());
      result.back() = shape(kValue).back();
      back(kQuery, result, wanted(kQuery, chosen_));
    } else {
      for (size_t i : {kQuery, kKey, kValue}) {
        const auto made = terms(i, chosen_), left = gradient(i, chosen_);
        moved(operands_[i], shape_for(i, chosen_), made, left);
        back(i, shape(i), left);
      }
    }
    const Dims local = Sharding{mesh_, wanted(kQuery, chosen_)}.local_shape(shape(kQuery));
    const double scores = double(product(local)) * double(shape(kKey)[size_t(rows())]);
    // Written and read, once before the softmax and once behind it; in gradients once more each. What is
    // little is not worth sending more for.
    double spelled = (forward ? 4 : 8) * kScore * scores / double(shape(kQuery).back());
    if (spelled < kManyScores || !is_spelled_out(chosen_)) spelled = 0;
    return seconds + values_.links().seconds_to_compute((forward ? 4 : 10) * scores, mesh_) +
           values_.links().seconds_to_copy(spelled, mesh_);
  }

  // True if the devices' library takes the op as it is, but no part of it when it is divided so.
  bool is_spelled_out(const Dimensions& by) const {
    const std::string& kind = mesh_.devices()[0].kind;
    if (!has_library(kind, x_)) return false;
    std::vector<UOp> src;
    for (size_t i = 0; i < operands_.size(); ++i) {
      Dims leaf{-1 - int64_t(i)};
      const Dims local = Sharding{mesh_, wanted(i, by)}.local_shape(shape_for(i, by));
      leaf.insert(leaf.end(), local.begin(), local.end());
      src.push_back(UOp::make(Op::Buffer, x_.src(i).dtype(), {}, leaf));
    }
    if (attention_arg(*x_).causal && std::ranges::find(by, rows()) != by.end()) {
      const int64_t size = src[kQuery].shape()[size_t(rows())];
      src.push_back(UOp::make(Op::Buffer, DType::I64, {}, Dims{-1 - int64_t(src.size()), size}));
    }
    return !has_library(kind, UOp::make(x_.op(), x_.dtype(), src, x_->arg()));
  }

  const UOp& x_;
  const Mesh& mesh_;
  LocalValues& values_;
  std::vector<LocalValue> operands_;
  Dimensions chosen_, best_;
};

}  // namespace

LocalValue attention(const UOp& x, LocalValues& values) {
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  Ways plan(x, *mesh, values);
  const size_t row = x.src(kQuery).shape().size() - 2;
  std::vector<UOp> src;
  LocalValue positions{UOp::make(Op::Iota, DType::I64, {}, Dims{x.src(kQuery).shape()[row]}), mesh,
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
  return plan.result(UOp::make(x.op(), x.dtype(), src, x->arg()));
}

}  // namespace tinyshard
