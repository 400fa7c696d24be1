// The state of the sharding rewrite: for each global value the part that a device holds.
// Strategies read their operands from it, and bring them onto one mesh.
#pragma once
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "multi/decisions.h"
#include "multi/link_model.h"
#include "multi/redistribute.h"

namespace tinyshard {

struct ColumnRoute;  // multi/strategies/columnsort.h

class LocalValues {
 public:
  // `decisions` and `links` outlive it.
  LocalValues(Decisions& decisions, LinkModel& links) : decisions_(&decisions), links_(&links) {}

  // Decisions on ops that could run in several ways, and a model of what moving values takes.
  Decisions& decisions() const { return *decisions_; }
  LinkModel& links() const { return *links_; }

  // Returns the value of x as ops read it: parameters that are gathered on use are whole.
  const LocalValue& of(const UOp& x) const;
  // Returns the value of x as it lies.
  const LocalValue& lying(const UOp& x) const { return values_[number_.at(x)]; }
  // Adds the value of the next node in the order that look_ahead() was told.
  void add(LocalValue value) { values_.push_back(std::move(value)); }
  // Returns all sources of x, each where it lies.
  std::vector<LocalValue> sources(const UOp& x) const;
  // The mesh on which operands meet: one of several devices wins over one of a single device, a mesh
  // with axes over a device without, as after to(), and any device over a file. Random numbers that nobody placed join what
  // they meet, from another device, too. Nothing where all are constants. UserError for meshes that
  // have nothing to do with each other.
  std::optional<Mesh> meeting_place(std::span<const UOp> operands) const;
  // Returns x on that mesh: as it lies if that is its own mesh, else whole on each device.
  LocalValue on(const UOp& x, const Mesh& mesh) const;

  // Returns x on that mesh, placed as `wanted`. An expanded value is moved unexpanded: a bias
  // travels, and not as many rows of it as there are.
  LocalValue brought(const UOp& x, const Mesh& mesh, const std::vector<Placement>& wanted);

  // Calls redistribute() on the mesh of v, and remembers the result: moving v there again gives the
  // same node and sends nothing more.
  LocalValue moved(LocalValue v, DimSpan global, const std::vector<Placement>& wanted);
  bool was_moved(const LocalValue& v, const std::vector<Placement>& wanted) const;
  // A hash of the type of v and of the placements that was_moved() knows of it.
  uint64_t known_moves(const LocalValue& v) const;
  // The graph, which outlives this and is told before all else.
  void look_ahead(std::span<const UOp> order, std::span<const UOp> roots);
  // Returns how many products read x, also transposed: they share the cost of moving it. 1 if none
  // does.
  int products_of(const UOp& x) const;
  // True if nobody reads x but lookups in it, or in a copy of it elsewhere or of another type.
  bool is_only_a_table(const UOp& x) const;
  // True if exactly one op reads x: what it makes of x may then be made in another way.
  bool has_one_reader(const UOp& x) const;
  // The narrower float type that all who read x, or one view of it, cast it to; its own where they
  // do not.
  DType read_as(const UOp& x) const;
  // All ops that read x; none where they are more than a few, or x is a result.
  std::vector<UOp> readers_of(const UOp& x) const;
  // The table that the result of x looks up in along its last dim; null where there is none, or none
  // that came before x.
  UOp looked_up_by(const UOp& x) const;
  // The value that is looked up by its own order, as sort() does: see Sorting. Nothing where none is,
  // or none that came before the order.
  struct Ordered {
    UOp value;
    Sorting sorting = Sorting::None;
    bool alone = false;  // nothing but these lookups reads the order
  };
  std::optional<Ordered> ordered_by(const UOp& order) const;
  // Keeps what such lookups find, where the order was not needed to know it.
  void set_sorted(const UOp& order, const UOp& value, LocalValue sorted);
  const LocalValue* sorted_by(const UOp& gather) const;  // null where it is not known
  // The way that a sort by columns took, by its order.
  void set_route(const UOp& order, std::shared_ptr<const ColumnRoute> route) {
    routes_[order] = std::move(route);
  }
  std::shared_ptr<const ColumnRoute> route_of(const UOp& order) const {
    const auto* known = routes_.find(order);
    return known ? *known : nullptr;
  }
  // The split along a mesh axis that a user of x brings it to, elementwise ops between them left
  // out: a pending sum with a bias is reduce-scattered where it meets a split residual, and so is
  // the gradient of a normalised value where it meets that. If others want it whole, to gather it
  // again sends no more than to complete it at once. Nothing where no user has such a wish.
  std::optional<Placement> split_by_user(const UOp& x, const Mesh& mesh, size_t axis) const;
  // Tells whether x is asked for, as it is or after elementwise ops.
  bool is_asked_for(const UOp& x) const;

  // The one sum through which x goes before anybody reads it, ops that keep a pending sum pending
  // left out, and what a dim of x is there: -1 where it is summed. Nothing where there is none, or
  // where the dim, divided into `parts`, does not come through.
  struct SumOf {
    UOp sum;
    int dim = -1;
    std::vector<UOp> through;  // elementwise ops on the way
    std::vector<UOp> factors;  // what these read beside x: masks and weights
    bool weighed = false;      // by factors that may be infinite
  };
  std::optional<SumOf> only_sum_of(const UOp& x, int dim, int64_t parts) const;
  // Asks that x stays pending along a mesh axis until it was summed, and that the sum is then
  // completed to `to`.
  void complete_at(const SumOf& x, size_t axis, Placement to);
  // Returns whether that was asked for an elementwise op.
  bool stays_pending(const UOp& x, size_t axis) const;
  // `place` of a reduction with what was asked for it.
  std::vector<Placement> completed_at(const UOp& sum, std::vector<Placement> place) const;

  // Returns how x lies on that mesh, also if it is a storage that comes later in the order.
  std::optional<std::vector<Placement>> will_lie(const UOp& x, const Mesh& mesh) const;
  // Writes (multi/strategies/writes.h), by the lookup of what entries say: the number of the entry
  // of its group with which a device would write to each place, that of the group which writes to
  // each place that it owns, both from 1, the devices of a group, and how what is written lies.
  struct Writers {
    UOp own, winner;
    size_t axis;
    int64_t group;
    std::vector<Placement> place;
  };
  void set_writers(const UOp& gather, Writers writers) { writers_[gather] = std::move(writers); }
  const Writers* writers_of(const UOp& gather) const { return writers_.find(gather); }

  // Placements of the table of a Gather, for the ScatterAdd that is its adjoint; also those before
  // a reshape joined dims of it.
  struct Table {
    int64_t axis, size;
    std::vector<Placement> place;
    std::shared_ptr<const Apart> apart;
  };
  void set_table(const UOp& gather, const LocalValue& table);
  // Null where there was none.
  const Table* table_of(const UOp& scatter) const;

 private:
  Decisions* decisions_;
  LinkModel* links_;
  static constexpr size_t kUsers = 4;  // that are asked
  using Users = std::array<const UOp*, kUsers>;
  // Null where x has none.
  const Users* users_of(const UOp& x) const;
  bool is_known(const UOp& x) const;  // whether it came before

  NodeMap<uint32_t> number_;  // in the order, and in these, where values lie without gaps
  std::deque<LocalValue> values_;
  std::vector<Users> users_;
  NodeMap<int> products_;
  mutable std::unordered_map<const Node*, LocalValue> gathered_;  // whole, of those on use
  std::unordered_map<const Node*, std::vector<std::pair<UOp, std::vector<Placement>>>> moved_;
  NodeMap<Table> tables_;                       // by the index of the Gather
  NodeMap<std::pair<UOp, LocalValue>> sorted_;  // by their order: a value, and its rows sorted
  NodeMap<std::shared_ptr<const ColumnRoute>> routes_;
  NodeMap<Writers> writers_;
  NodeMap<bool> roots_;
  NodeMap<std::vector<std::pair<size_t, Placement>>> completed_at_;
};

// Returns whether values there lie in a file (core/tensor/map_file.h).
inline bool is_file(const Mesh& mesh) {
  return mesh.is_single() && mesh.devices()[0].kind == "DISK";
}

// A question to Decisions: x, its type, its argument, and what else its options follow from.
class Question {
 public:
  explicit Question(const UOp& x);
  Question& about(uint64_t fact);
  Question& about(DimSpan shape);
  Question& about(const std::vector<Placement>& place);
  Question& about(const LocalValue& v, DimSpan global) { return about(v.place).about(global); }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_;
};

// Returns the value that x repeats, or x itself.
inline const UOp& repeated(const UOp& x) { return x.op() == Op::Expand ? x.src(0) : x; }

// The op x over local sources, with the shape and the argument that it has. The result lies as
// `like` does.
LocalValue rebuilt(const UOp& x, const std::vector<LocalValue>& sources, const LocalValue& like);
// The dim of the new shape that starts where `dim` of the old one did and divides into that many
// parts as it did; -1: none.
int reshaped_dim(DimSpan from, DimSpan to, int dim, int64_t parts);
// Completes the pending reductions of v. `global` is the shape of the whole value.
LocalValue settled(LocalValue v, DimSpan global);
// Gathers `dim` of v on each device.
LocalValue without_shard(LocalValue v, DimSpan global, int dim);

}  // namespace tinyshard
