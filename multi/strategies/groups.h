// Groups of neighbours along a mesh axis, in which the entries of a scatter meet before what they make
// of the places travels to the owners of these.
//
//   Eight devices with n entries each, and T places, of which each device owns T / 8:
//     alone       a device makes of its entries what they are for all places, and sends 7/8 T
//     all eight   a device receives all entries and makes its own places: each sends 7 n entries
//     pairs       a device receives the entries of its neighbour, and makes of both what they are for
//                 half of the places: one of a pair those of owners 0 2 4 6, the other those of
//                 1 3 5 7. Those that stand alike in their pairs combine theirs: each sends n entries
//                 and 3/8 T
//
// Of as many f32 as places, with an index of 4 bytes each, these are 3.5 T, 7 T and 2.5 T bytes.
#pragma once
#include <vector>

#include "multi/strategies/local_values.h"

namespace tinyshard {

class Groups {
 public:
  using Places = std::vector<Placement>;

  // Makes groups of `size` devices, which divides the axis; with one, a group is just the device.
  Groups(const Mesh& mesh, size_t axis, int64_t size);
  // All sizes from one device up to and without all of them.
  static std::vector<int64_t> sizes(int64_t devices);

  int64_t size() const { return size_; }
  int64_t count() const { return count_; }
  size_t axis() const { return axis_; }

  // x, which has the entries of a scatter along `dim`, of all devices of the group; `place` is how
  // they are divided before. `fill`, if not null, a constant of one element, is what padding becomes.
  UOp entries(const UOp& x, const Places& place, int dim, const UOp* fill,
              LocalValues& values) const;
  // Returns how many of `places` places a device makes for its group.
  int64_t made(int64_t places) const { return count_ * part(places); }
  // Turns an index into all places into one into those that this device makes; -1 if another device
  // of the group makes the place, or if it is beyond the end.
  UOp index_into_made(const UOp& index, int64_t places) const;

  // Owners get what devices have made of their places along `dim`, reduced: a value of that shape,
  // which lies like `placed` along the other axes. Terms that would travel as a wider type to be
  // reduced on the way (multi/wire.h) are reduced by the owner.
  static CollectiveOp combining(DType type, ReduceOp op);
  LocalValue combined(const UOp& made, ReduceOp op, const Places& placed, DimSpan shape,
                      int dim) const;
  // Brings the places to owners without a reduction: [groups, .., places, ..], in the order of the
  // groups that made them.
  UOp for_owners(const UOp& made, const Places& placed, DimSpan shape, int dim) const;
  // A value of each device of the group, as one on the mesh.
  UOp back(const UOp& x) const;

  // The seconds that entries and what is made of them take to travel; bytes of one device.
  double seconds_of_entries(double bytes, LinkModel& links) const;
  double seconds_of_made(CollectiveOp op, double bytes, LinkModel& links) const;

 private:
  // Brings the places that devices made to their owners. `lying`: Partial if they are reduced on
  // the way, Shard(0) if owners get each device's.
  UOp at_owners(const UOp& made, const Placement& lying, const Places& placed, DimSpan shape,
                int dim) const;
  int64_t part(int64_t places) const { return (places + size_ * count_ - 1) / (size_ * count_); }
  // Turns placements on the mesh into placements on the finer mesh, of a value with `dims` more
  // dims in front.
  Places finer(const Places& place, int dims) const;

  Mesh mesh_;
  size_t axis_;
  int64_t size_, count_;
  Mesh finer_;  // in place of the axis two: which group, and which device of it
};

}  // namespace tinyshard
