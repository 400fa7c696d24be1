// A gradient of lookups is found by walking down from the parameter's gradient: through casts, reshapes,
// products with one number and sums of such, to scattered sums of rows. What stands on the way is then done
// to the rows. Anything else is no gradient of lookups alone, and null.
#include "core/nn/looked_up_rows.h"

#include <algorithm>
#include <utility>

#include "core/base/error.h"
#include "core/rewrite/fold.h"
#include "core/tensor/shard_map.h"
#include "core/uop/args.h"

namespace tinyshard::nn::optim {

// --- from gradients to rows ----------------------------------------------------------------------

namespace {

bool repeats(const UOp& x) { return x.op() == Op::Expand || x.op() == Op::Reshape; }

// The one element that x repeats; null where it has others.
UOp one_value(UOp x) {
  while (repeats(x) && x->numel() != 1) x = x.src(0);
  return x->numel() == 1 ? x : UOp();
}

struct Rows {
  UOp index, rows;  // [entries], [entries, ...]
};

// A scattered sum along the first dim, by an index that is one for the whole row.
std::optional<Rows> scattered(const UOp& x) {
  const ScatterArg arg = scatter_arg(*x);
  if (arg.axis != 0 || arg.op != ReduceOp::Sum || x->sources != 2) return std::nullopt;
  UOp index = x.src(0);
  const int64_t entries = index.shape()[0];
  if (index.op() == Op::Expand && index.src(0).shape()[0] == entries) index = index.src(0);
  if (index->numel() != entries) return std::nullopt;
  return Rows{reshape(index, Dims{entries}), x.src(1)};
}

// The gradient of a lookup of one row: where(0 1 2.. == index, x, 0).
std::optional<Rows> picked(const UOp& x) {
  const UOp& is_row = x.src(0);
  if (is_row.op() != Op::CmpEq || !is_const(x.src(2), 0)) return std::nullopt;
  const UOp& count = is_row.src(0);
  if (!(count == iota_along(x.shape(), 0, count.dtype()))) return std::nullopt;
  UOp index = is_row.src(1);
  while (repeats(index) || index.op() == Op::Cast) index = index.src(0);
  if (index->numel() != 1 || !is_int(index.dtype())) return std::nullopt;
  Dims one(x.shape().begin(), x.shape().end()), line(one.size(), 1);
  one[0] = 1;
  const UOp place = expand(reshape(index, line), one);
  return Rows{reshape(index, Dims{1}),
              UOp::make(Op::Gather, x.dtype(), {x.src(1), place}, Dims{0})};
}

// The ops on a gradient between its lookup and its use, from the use down.
using Above = std::vector<UOp>;

// Limit of the lookups in one gradient. A sum of sums that share terms meets these once for each way
// down; beyond the limit the gradient is taken as it is.
constexpr size_t kMostLookups = 1024;

// Does to the looked up rows what `above` does to the gradient.
UOp done_to_rows(UOp rows, const Above& above) {
  for (size_t i = above.size(); i-- > 0;) {
    const UOp& x = above[i];
    switch (x.op()) {
      case Op::Reshape: {
        Dims shape(x.shape().begin(), x.shape().end());
        shape[0] = rows.shape()[0];
        rows = reshape(rows, shape);
        break;
      }
      case Op::Neg:
        rows = unary(Op::Neg, rows);
        break;
      case Op::Add:  // of one value to itself
        rows = binary(Op::Add, rows, rows);
        break;
      case Op::Mul:
      case Op::Div: {
        const bool first = !one_value(x.src(1));
        const UOp number = one_value(x.src(first ? 0 : 1));
        const UOp all = expand(reshape(number, Dims(rows.shape().size(), 1)), rows.shape());
        rows = binary(x.op(), first ? all : rows, first ? rows : all);
        break;
      }
      default:  // a Cast, or a Redistribute that rounds
        rows = cast(rows, x.dtype());
    }
  }
  return rows;
}

// Returns the source of x if x computes each of its rows from the same row of this source; null
// otherwise.
UOp below(const UOp& x) {
  switch (x.op()) {
    case Op::Reshape:
      return x.shape().empty() || x.src(0).shape().empty() || x.shape()[0] != x.src(0).shape()[0]
                 ? UOp()
                 : x.src(0);
    case Op::Mul:
      return one_value(x.src(1)) ? x.src(0) : one_value(x.src(0)) ? x.src(1) : UOp();
    case Op::Div:
      return one_value(x.src(1)) ? x.src(0) : UOp();
    case Op::Cast:
    case Op::Redistribute:
      return is_float(x.src(0).dtype()) ? x.src(0) : UOp();
    case Op::Neg:
    case Op::Identity:
      return x.src(0);
    default:
      return {};
  }
}

}  // namespace

std::optional<LookedUp> looked_up(const Tensor& gradient) {
  std::vector<Tensor> index, rows;
  std::vector<std::pair<UOp, Above>> todo{{gradient.uop(), {}}};
  while (!todo.empty()) {
    auto [x, above] = std::move(todo.back());
    todo.pop_back();
    if (x.op() == Op::Add && x.src(0) == x.src(1)) {
      above.push_back(x);
      todo.emplace_back(x.src(0), std::move(above));
      continue;
    }
    if (x.op() == Op::Add) {
      if (todo.size() + index.size() >= kMostLookups) return std::nullopt;
      todo.emplace_back(x.src(1), above);
      todo.emplace_back(x.src(0), std::move(above));
      continue;
    }
    std::optional<Rows> found;
    if (x.op() == Op::ScatterAdd) found = scattered(x);
    if (x.op() == Op::Where) found = picked(x);
    if (found) {
      index.emplace_back(found->index);
      rows.emplace_back(done_to_rows(found->rows, above));
      continue;
    }
    const UOp source = below(x);
    if (!source) return std::nullopt;
    const bool same = x.op() == Op::Identity || x.op() == Op::Redistribute;
    if (!same || x.dtype() != source.dtype()) above.push_back(x);
    todo.emplace_back(source, std::move(above));
  }
  if (index.size() == 1) return LookedUp{index[0], rows[0]};
  for (Tensor& i : index) i = i.cast(DType::I64);
  return LookedUp{index[0].cat(std::vector<Tensor>(index.begin() + 1, index.end()), 0),
                  rows[0].cat(std::vector<Tensor>(rows.begin() + 1, rows.end()), 0)};
}

// --- changes of rows -----------------------------------------------------------------------------

namespace {

std::vector<AxisPlacement> named(const Sharding& where) {
  std::vector<AxisPlacement> list;
  for (size_t a = 0; a < where.placements.size(); ++a)
    list.push_back({where.mesh.axes()[a].name, where.placements[a]});
  return list;
}

// Returns `where` with the first dim whole.
Sharding with_all_rows(Sharding where) {
  for (Placement& p : where.placements) {
    if (p.is_shard() && p.dim == 0) p = Replicate;
  }
  return where;
}

// Returns where a list with a number for each row lies.
Sharding place_of_numbers(Sharding where) {
  for (Placement& p : where.placements) {
    if (p.is_shard() && p.dim != 0) p = Replicate;
  }
  return where;
}

// Tells whether each device can work on its part by itself: parts are slices of one size.
bool is_cut_evenly(const Tensor& table) {
  const Sharding where = table.sharding();
  if (where.mesh.is_single() || where.has_parts()) return false;
  Dims parts = table.shape();
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard()) continue;
    int64_t& size = parts[size_t(where.placements[a].dim)];
    if (size % where.mesh.axes()[a].size != 0) return false;
    size /= where.mesh.axes()[a].size;
  }
  return true;
}

// The index among this device's rows, inside of a shard_map.
Tensor own_index(const Tensor& index, const Tensor& table) {
  const Sharding where = table.sharding();
  int64_t rows = table.shape(0);
  Tensor own = index;
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard() || where.placements[a].dim != 0) continue;
    const MeshAxis& axis = where.mesh.axes()[a];
    rows /= axis.size;
    own = own - axis_index(axis.name).cast(index.dtype()) * rows;
  }
  return own;
}

Tensor are_there(const Tensor& index, const Tensor& table) {
  return (index >= 0) & (index < table.shape(0));
}

// The index of each row for all that the row has.
Tensor along_rows(const Tensor& index, const Tensor& table) {
  Dims line(size_t(table.ndim()), 1), all = table.shape();
  line[0] = all[0] = index.shape(0);
  return index.reshape(line).expand(all);
}

Tensor numbers_of(const Tensor& index) { return Tensor::arange(index.shape(0)).cast(DType::I32); }

Tensor with_leaders(const Tensor& leaders, const Tensor& index) {
  // Numbers in memory are rows like others, which are written where they belong.
  return leaders.scatter(0, index, numbers_of(index).contiguous());
}

}  // namespace

// Makes the rows of LookedUpRows, of values that are whole, or in a shard_map one device's.
class RowChange {
 public:
  RowChange(const std::vector<Tensor>& tables, std::vector<Tensor> here, const Tensor& leaders,
            const Tensor& index, const Tensor& gradient) {
    rows_.tables_ = tables;
    rows_.here_ = rows_.next_ = std::move(here);
    const Tensor there = are_there(index, leaders);
    const Tensor leader = there.where(leaders.gather(0, index), -1);
    const Tensor wide = gradient.cast(accumulator(gradient.dtype()));
    rows_.sums_ = Tensor::zeros(wide.shape(), wide.dtype())
                      .scatter_reduce(0, along_rows(leader, wide), wide, ScatterReduce::Sum);
    rows_.places_ = (leader == numbers_of(index)).where(index, -1);
  }
  LookedUpRows& rows() { return rows_; }
  const std::vector<Tensor>& next() const { return rows_.next_; }

 private:
  LookedUpRows rows_;
};

Tensor leaders_of_rows(const Tensor& table) {
  return Tensor::zeros({table.shape(0)}, DType::I32)
      .shard_like(place_of_numbers(table.sharding()))
      .clone();
}

Tensor LookedUpRows::of(const Tensor& table) const {
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].state() == table.state())
      return here_[i].gather(0, along_rows(places_, here_[i]));
  }
  throw InternalError("a table whose rows are not changed");
}

void LookedUpRows::write(const Tensor& table, const Tensor& rows) {
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (tables_[i].state() == table.state())
      next_[i] = here_[i].scatter(0, along_rows(places_, here_[i]), rows);
  }
}

void change_rows(const std::vector<Tensor>& tables, const Tensor& leaders, const LookedUp& found,
                 const std::function<void(LookedUpRows&)>& change) {
  const Tensor& table = tables[0];
  const Sharding where = table.sharding();
  const Tensor index = found.index.shard_like(replicated(where.mesh)),
               gradient = found.rows.shard_like(with_all_rows(where));
  std::vector<Tensor> next;
  if (!is_cut_evenly(table)) {
    leaders.assign(with_leaders(leaders, index));
    RowChange rows(tables, tables, leaders, index, gradient);
    change(rows.rows());
    next = rows.next();
  } else {
    const std::vector<AxisPlacement> as_table = named(where), all = named(index.sharding()),
                                     numbers = named(leaders.sharding());
    auto lead = shard_map(where.mesh,
                          [&](const Tensor& list, const Tensor& i) {
                            return with_leaders(list, own_index(i, table));
                          },
                          {.in = {numbers, all}, .out = {numbers}});
    leaders.assign(lead(leaders, index));
    std::vector<Tensor> arguments = tables;
    arguments.insert(arguments.end(), {leaders, index, gradient});
    ShardMapPlacements places{.in = std::vector(tables.size(), as_table),
                              .out = std::vector(tables.size(), as_table)};
    places.in.insert(places.in.end(), {numbers, all, named(with_all_rows(where))});
    const auto states = detail::run_shard_map(
        where.mesh, places, arguments,
        [&](const std::vector<Tensor>& local) {
          const size_t n = tables.size();
          RowChange rows(tables, {local.begin(), local.begin() + long(n)}, local[n],
                         own_index(local[n + 1], table), local[n + 2]);
          change(rows.rows());
          std::vector<StatePtr> results;
          for (const Tensor& t : rows.next()) results.push_back(t.state());
          return results;
        },
        Caller::current());
    for (const StatePtr& s : states) next.emplace_back(s);
  }
  for (size_t i = 0; i < tables.size(); ++i) tables[i].assign(next[i]);
}

}  // namespace tinyshard::nn::optim
