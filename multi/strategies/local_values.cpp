// Local values by their nodes, and what strategies ask about them: how they lie, who reads them,
// and where several operands can meet. Gathered and moved values are kept, so that whoever reads
// them next moves nothing.
#include "multi/strategies/local_values.h"

#include <algorithm>
#include <iterator>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/uop/args.h"
#include "multi/grown.h"
#include "multi/mesh_names.h"
#include "multi/relocation.h"
#include "multi/strategies/pending.h"

namespace tinyshard {

const LocalValue& LocalValues::of(const UOp& x) const {
  const LocalValue& lies = lying(x);
  if (!lies.gather_on_use) return lies;
  auto found = gathered_.find(x.get());
  if (found != gathered_.end()) return found->second;
  std::vector<Placement> whole = lies.place;
  for (size_t a = 0; a < whole.size(); ++a) {
    if (lies.gather_on_use->axes[a] && whole[a].is_shard()) whole[a] = Replicate;
  }
  LocalValue gathered = redistribute(lies, x.shape(), *lies.mesh, whole);
  gathered.gather_on_use = nullptr;
  return gathered_.emplace(x.get(), std::move(gathered)).first->second;
}

std::vector<LocalValue> LocalValues::sources(const UOp& x) const {
  std::vector<LocalValue> v;
  for (const UOp& s : x->src()) v.push_back(of(s));
  return v;
}

namespace {

// A value in a file joins one on any device; a value on a device without axes joins one on a mesh of
// one device, and both join one on a mesh of several.
int standing(const Mesh& mesh) {
  if (is_file(mesh)) return 0;
  return mesh.is_single() ? 1 : mesh.size() == 1 ? 2 : 3;
}

bool are_one_device(const Mesh& a, const Mesh& b) {
  return a.size() == 1 && b.size() == 1 && same_device(a.devices()[0], b.devices()[0]);
}

}  // namespace

std::optional<Mesh> LocalValues::meeting_place(std::span<const UOp> operands) const {
  std::optional<Mesh> mesh;
  for (const UOp& x : operands) {
    const auto& m = lying(x).mesh;
    if (!m || (mesh && *m == *mesh)) continue;
    if (!mesh || standing(*mesh) < standing(*m)) {
      mesh = m;
      continue;
    }
    if (standing(*mesh) > standing(*m)) continue;
    if (are_one_device(*mesh, *m)) {  // all ranks take the name that says whose it is
      if (mesh->is_single() && mesh->devices()[0].rank == DeviceRef::kHere) mesh = m;
      continue;
    }
    std::vector<UOp> others;
    std::ranges::copy_if(operands, std::back_inserter(others),
                         [&](const UOp& o) { return !is_unplaced_draw(lying(o).local); });
    if (others.size() < operands.size()) return meeting_place(others);
    auto [one, other] = told_apart(*mesh, *m);
    throw UserError(
        fmt::format("operands live on {} and on {}: bring one of them over with shard() or to(), "
                    "as in a.shard(b.sharding().mesh)",
                    one, other));
  }
  return mesh;
}
LocalValue LocalValues::on(const UOp& x, const Mesh& mesh) const {
  LocalValue v = of(x);
  if (v.mesh && *v.mesh == mesh) return v;
  return redistribute(std::move(v), x.shape(), mesh, std::vector<Placement>(mesh.axes().size()));
}

namespace {

// Returns the placements of the value under a permute. We move that value, so that a product and
// its gradient, which reads it transposed, share one transfer.
std::vector<Placement> behind_permute(const UOp& permute, std::vector<Placement> place) {
  for (Placement& p : place) {
    if (p.is_shard()) p.dim = int(permute->arg()[size_t(p.dim)]);
  }
  return place;
}

uint64_t number_of(const Placement& p) {
  return uint64_t(p.kind) + 4 * uint64_t(p.op) + 64 * uint64_t(p.dim);
}

uint64_t hash_of(const std::vector<Placement>& place) {
  uint64_t hash = 0;
  for (const Placement& p : place) hash = combine(hash, number_of(p));
  return hash;
}

}  // namespace

bool LocalValues::was_moved(const LocalValue& v, const std::vector<Placement>& wanted) const {
  if (v.local.op() == Op::Permute) {
    LocalValue source{v.local.src(0), v.mesh, behind_permute(v.local, v.place)};
    return was_moved(source, behind_permute(v.local, wanted));
  }
  if (const UOp narrow = before_widening(v.local); !(narrow == v.local))
    return was_moved({narrow, v.mesh, v.place}, wanted);
  auto known = moved_.find(v.local.get());
  return known != moved_.end() &&
         std::ranges::any_of(known->second, [&](const auto& m) { return m.second == wanted; });
}

uint64_t LocalValues::known_moves(const LocalValue& v) const {
  if (v.local.op() == Op::Permute) {
    uint64_t hash = known_moves({v.local.src(0), v.mesh, v.place});
    for (int64_t dim : v.local->arg()) hash = combine(hash, uint64_t(dim));
    return hash;
  }
  uint64_t hash = uint64_t(v.local.dtype());
  if (const UOp narrow = before_widening(v.local); !(narrow == v.local))
    return combine(hash, known_moves({narrow, v.mesh, v.place}));
  const auto known = moved_.find(v.local.get());
  if (known == moved_.end()) return hash;
  for (const auto& [local, place] : known->second) hash = combine(hash, hash_of(place));
  return hash;
}

LocalValue LocalValues::moved(LocalValue v, DimSpan global, const std::vector<Placement>& wanted) {
  if (v.place == wanted) return v;
  if (const UOp order = v.local; order.op() == Op::Permute) {
    Dims shape(global.size());
    for (size_t i = 0; i < shape.size(); ++i) shape[size_t(order->arg()[i])] = global[i];
    v.local = order.src(0);
    v.place = behind_permute(order, std::move(v.place));
    v = moved(std::move(v), shape, behind_permute(order, wanted));
    v.local = permute(v.local, order->arg());
    v.place = wanted;
    return v;
  }
  if (const UOp wide = v.local; !(before_widening(wide) == wide)) {
    v.local = before_widening(wide);
    v = moved(std::move(v), global, wanted);
    v.local = cast(v.local, wide.dtype());
    return v;
  }
  if (!was_moved(v, wanted)) moved_[v.local.get()].emplace_back(v.local, wanted);
  Mesh mesh = *v.mesh;
  return redistribute(std::move(v), global, mesh, wanted);
}

LocalValue LocalValues::brought(const UOp& x, const Mesh& mesh,
                                const std::vector<Placement>& wanted) {
  const LocalValue& lies = of(x);
  // Each device copies its part of a value that is elsewhere.
  if (lies.mesh && !(*lies.mesh == mesh)) return redistribute(lies, x.shape(), mesh, wanted);
  LocalValue v = on(x, mesh);
  const UOp& one = repeated(x);
  if (v.place == wanted || one == x) return moved(std::move(v), x.shape(), wanted);
  std::vector<Placement> narrow = wanted;
  for (Placement& p : narrow) {
    if (p.is_shard() && one.shape()[size_t(p.dim)] != x.shape()[size_t(p.dim)]) p = Replicate;
  }
  v = moved(on(one, mesh), one.shape(), narrow);
  return {expand(v.local, Sharding{mesh, wanted}.local_shape(x.shape())), mesh, wanted, v.origin};
}

void LocalValues::set_table(const UOp& gather, const LocalValue& table) {
  const int64_t axis = gather_axis(*gather);
  tables_[gather.src(1)] = {axis, gather.src(0).shape()[size_t(axis)], table.place, table.apart};
}
const LocalValues::Table* LocalValues::table_of(const UOp& scatter) const {
  const Table* table = tables_.find(scatter.src(0));
  const ScatterArg arg = scatter_arg(*scatter);
  const bool adjoint = table && table->axis == arg.axis && table->size == arg.size;
  return adjoint ? table : nullptr;
}

void LocalValues::look_ahead(std::span<const UOp> order, std::span<const UOp> roots) {
  number_ = NodeMap<uint32_t>(order.size());
  users_.resize(order.size());
  for (const UOp& root : roots) roots_[root] = true;
  for (const UOp& x : order) {
    number_[x] = uint32_t(number_.size());
    for (const UOp& s : x->src()) {
      for (const UOp*& user : users_[number_.at(s)]) {
        if (user && !(*user == x)) continue;
        user = &x;
        break;
      }
      if (x.op() == Op::Dot) ++products_[s.op() == Op::Permute ? s.src(0) : s];
    }
  }
}

const LocalValues::Users* LocalValues::users_of(const UOp& x) const {
  const uint32_t* number = number_.find(x);
  return number && users_[*number].front() ? &users_[*number] : nullptr;
}
bool LocalValues::is_known(const UOp& x) const {
  const uint32_t* number = number_.find(x);
  return number && *number < values_.size();
}

namespace {

// Returns how a storage that comes later in the order is divided. Scattered maxima are compared
// with constants before they meet the storage that they are scattered into.
std::optional<Placement> split_of_storage(const UOp& x, const Mesh& mesh, size_t axis) {
  if (x.op() != Op::Buffer || !x->payload) return std::nullopt;
  const Placed& placed = *static_cast<const Placed*>(x->payload.get());
  if (placed.gather_on_use || !(placed.sharding.mesh == mesh)) return std::nullopt;
  const Placement place = without_parts(placed.sharding.placements[axis]);
  return place.is_shard() ? std::optional(place) : std::nullopt;
}

}  // namespace

std::optional<Placement> LocalValues::split_by_user(const UOp& x, const Mesh& mesh,
                                                    size_t axis) const {
  constexpr size_t kLooked = 16;
  std::vector<UOp> reached{x};
  for (size_t i = 0; i < std::min(reached.size(), kLooked); ++i) {
    const UOp from = reached[i];
    const Users* users = users_of(from);
    if (!users) continue;
    for (const UOp* at : *users) {
      if (!at) break;
      const UOp& user = *at;
      if (user.op() == Op::Redistribute) {
        const Sharding where = placement_of(*user);
        if (where.mesh == mesh && where.placements[axis].is_shard()) return where.placements[axis];
        continue;
      }
      if (info(user.op()).op_class != OpClass::Elementwise) continue;
      for (const UOp& s : user->src()) {
        if (!is_known(s)) {
          if (const auto split = split_of_storage(s, mesh, axis)) return split;
          continue;
        }
        const LocalValue& v = lying(s);
        if (v.mesh && *v.mesh == mesh && v.place[axis].is_shard()) return v.place[axis];
      }
      if (std::ranges::find(reached, user) == reached.end()) reached.push_back(user);
    }
  }
  return std::nullopt;
}

bool LocalValues::is_asked_for(const UOp& x) const {
  constexpr size_t kLooked = 16;
  std::vector<UOp> reached{x};
  for (size_t i = 0; i < std::min(reached.size(), kLooked); ++i) {
    const UOp from = reached[i];
    if (roots_.contains(from)) return true;
    const Users* users = users_of(from);
    if (!users) continue;
    for (const UOp* at : *users) {
      if (!at) break;
      const bool new_one = std::ranges::find(reached, *at) == reached.end();
      const bool same = at->op() == Op::Identity || info(at->op()).op_class == OpClass::Elementwise;
      if (new_one && same) reached.push_back(*at);
    }
  }
  return false;
}

std::optional<LocalValues::SumOf> LocalValues::only_sum_of(const UOp& x, int dim,
                                                           int64_t parts) const {
  UOp at = x;
  SumOf found;
  bool terms = is_float(x.dtype());  // as they were found, weighed or not
  for (int steps = 0; steps < 16 && dim >= 0; ++steps) {
    const Users* users = users_of(at);
    if (!users || (*users)[1] || roots_.contains(at)) return std::nullopt;
    const UOp& user = *users->front();
    if (user.op() == Op::Reduce) {
      const auto [op, axes] = reduce_arg(*user);
      if (op != ReduceOp::Sum) return std::nullopt;
      found.sum = user;
      found.dim = std::ranges::find(axes, dim) != axes.end() ? -1 : dim;
      return found;
    }
    const bool weight = terms && weighs(user, at);
    if (!weight && !stays_partial_through(user, at)) return std::nullopt;
    if (info(user.op()).op_class == OpClass::Elementwise) {
      found.weighed = found.weighed || weight;
      terms = weight || (terms && user.op() == Op::Cast);
      found.through.push_back(user);
      for (const UOp& s : user->src()) {
        if (!(s == at) && !is_const(s)) found.factors.push_back(repeated(s));
      }
    }
    if (user.op() == Op::Reshape) dim = reshaped_dim(at.shape(), user.shape(), dim, parts);
    if (user.op() == Op::Permute)
      dim = int(std::ranges::find(user->arg(), dim) - user->arg().begin());
    at = user;
  }
  return std::nullopt;
}

void LocalValues::complete_at(const SumOf& x, size_t axis, Placement to) {
  completed_at_[x.sum].emplace_back(axis, to);
  for (const UOp& op : x.through) completed_at_[op].emplace_back(axis, Partial());
}
bool LocalValues::stays_pending(const UOp& x, size_t axis) const {
  const auto* asked = completed_at_.find(x);
  return asked && std::ranges::any_of(*asked, [&](const auto& a) { return a.first == axis; });
}
std::vector<Placement> LocalValues::completed_at(const UOp& sum,
                                                 std::vector<Placement> place) const {
  if (const auto* asked = completed_at_.find(sum)) {
    for (const auto& [axis, to] : *asked) {
      if (place[axis].is_partial()) place[axis] = to;
    }
  }
  return place;
}

int LocalValues::products_of(const UOp& x) const {
  const int* count = products_.find(x.op() == Op::Permute ? x.src(0) : x);
  return count ? *count : 1;
}

bool LocalValues::is_only_a_table(const UOp& x) const {
  const Users* users = users_of(x);
  if (!users || roots_.contains(x) || users->back()) return false;
  return std::ranges::all_of(*users, [&](const UOp* at) {
    if (!at) return true;
    const UOp& user = *at;
    if (user.op() == Op::Gather) return user.src(0) == x && !(user.src(1) == x);
    return (user.op() == Op::Cast || user.op() == Op::Redistribute) && is_only_a_table(user);
  });
}

bool LocalValues::has_one_reader(const UOp& x) const {
  const Users* users = users_of(x);
  return users && !(*users)[1] && !roots_.contains(x);
}

UOp LocalValues::looked_up_by(const UOp& x) const {
  const Users* users = users_of(x);
  for (size_t i = 0; users && i < users->size() && (*users)[i]; ++i) {
    const UOp& user = *(*users)[i];
    if (user.op() == Op::Gather && user.src(1) == x && is_known(user.src(0)) &&
        gather_axis(*user) == int64_t(x.shape().size()) - 1)
      return user.src(0);
  }
  return {};
}

std::optional<LocalValues::Ordered> LocalValues::ordered_by(const UOp& order) const {
  const Users* users = users_of(order);
  if (!users) return std::nullopt;
  Ordered found;
  found.alone = !roots_.contains(order) && !users->back();
  for (size_t i = 0; i < users->size() && (*users)[i]; ++i) {
    const UOp& user = *(*users)[i];
    const bool sorts = user.op() == Op::Gather && user.src(1) == order &&
                       gather_sorting(*user) != Sorting::None && is_known(user.src(0));
    if (!sorts || (found.value && !(found.value == user.src(0)))) {
      found.alone = false;
    } else {
      found.value = user.src(0);
      found.sorting = gather_sorting(*user);
    }
  }
  return found.value ? std::optional(found) : std::nullopt;
}

std::vector<UOp> LocalValues::readers_of(const UOp& x) const {
  std::vector<UOp> readers;
  const Users* users = users_of(x);
  if (!users || users->back() || roots_.contains(x)) return readers;
  for (size_t i = 0; (*users)[i]; ++i) readers.push_back(*(*users)[i]);
  return readers;
}

DType LocalValues::read_as(const UOp& x) const {
  DType type = x.dtype();
  std::vector<UOp> readers = readers_of(x);
  while (readers.size() == 1 && rearranges(readers[0])) readers = readers_of(readers[0]);
  for (const UOp& reader : readers) {
    const bool narrows = reader.op() == Op::Cast && is_float(x.dtype()) &&
                         is_float(reader.dtype()) && itemsize(reader.dtype()) < itemsize(x.dtype());
    if (!narrows || (type != x.dtype() && type != reader.dtype())) return x.dtype();
    type = reader.dtype();
  }
  return type;
}

std::optional<std::vector<Placement>> LocalValues::will_lie(const UOp& x, const Mesh& mesh) const {
  if (is_known(x)) {
    const LocalValue& v = of(x);
    return v.mesh && *v.mesh == mesh ? std::optional(v.place) : std::nullopt;
  }
  if (x.op() != Op::Buffer || !x->payload) return std::nullopt;
  const Placed& placed = *static_cast<const Placed*>(x->payload.get());
  if (placed.gather_on_use || !(placed.sharding.mesh == mesh)) return std::nullopt;
  std::vector<Placement> place;
  for (const Placement& p : placed.sharding.placements) place.push_back(without_parts(p));
  return place;
}

void LocalValues::set_sorted(const UOp& order, const UOp& value, LocalValue sorted) {
  sorted_[order] = {value, std::move(sorted)};
}
const LocalValue* LocalValues::sorted_by(const UOp& gather) const {
  if (gather_sorting(*gather) == Sorting::None) return nullptr;
  const auto* known = sorted_.find(gather.src(1));
  return known && known->first == gather.src(0) ? &known->second : nullptr;
}

Question::Question(const UOp& x) : hash_(combine(uint64_t(x.op()), uint64_t(x.dtype()))) {
  about(x->arg());
}
Question& Question::about(uint64_t fact) {
  hash_ = combine(hash_, fact);
  return *this;
}
Question& Question::about(DimSpan shape) {
  for (int64_t n : shape) about(uint64_t(n));
  return about(shape.size());
}
Question& Question::about(const std::vector<Placement>& place) {
  for (const Placement& p : place) about(number_of(p));
  return *this;
}

LocalValue rebuilt(const UOp& x, const std::vector<LocalValue>& sources, const LocalValue& like) {
  std::vector<UOp> src;
  src.reserve(sources.size());
  for (const LocalValue& s : sources) src.push_back(s.local);
  // A Gather also says how its index relates to its source, which is of no use to a device.
  const Dims axis{x.op() == Op::Gather ? gather_axis(*x) : 0};
  const DimSpan arg = x.op() == Op::Gather ? DimSpan(axis) : x->arg();
  return {UOp::make(x.op(), x.dtype(), src, arg, x->payload), like.mesh, like.place};
}

LocalValue settled(LocalValue v, DimSpan global) {
  // Providers look for a bias below its reshape: a cast stays where it is unless something moves.
  if (std::ranges::none_of(v.place, &Placement::is_partial)) return v;
  if (const UOp wide = v.local; !(before_widening(wide) == wide)) {
    v.local = before_widening(wide);
    v = settled(std::move(v), global);
    v.local = cast(v.local, wide.dtype());
    return v;
  }
  std::vector<Placement> wanted = v.place;
  for (Placement& p : wanted) {
    if (p.is_partial()) p = Replicate;
  }
  if (!v.mesh) return v;
  Mesh mesh = *v.mesh;
  return redistribute(std::move(v), global, mesh, wanted);
}
LocalValue without_shard(LocalValue v, DimSpan global, int dim) {
  std::vector<Placement> wanted = v.place;
  for (Placement& p : wanted) {
    if (p.is_shard() && p.dim == dim) p = Replicate;
  }
  if (!v.mesh) return v;
  Mesh mesh = *v.mesh;
  return redistribute(std::move(v), global, mesh, wanted);
}

int reshaped_dim(DimSpan from, DimSpan to, int dim, int64_t parts) {
  int64_t before = product(from.first(size_t(dim))), left = 1;
  for (int i = 0; i < int(to.size()); ++i) {
    if (left == before && to[i] != 1) {
      bool same = to[i] == from[dim];
      bool divides = to[i] % parts == 0 && from[dim] % parts == 0;
      return same || divides ? i : -1;
    }
    left *= to[i];
  }
  return -1;
}

}  // namespace tinyshard
