// Where values live. A Mesh is an n-d array of devices with named axes; a placement per axis says
// how a value lies on it; both together are a Sharding, and every value has one.
//
//   Mesh mesh({{"data", 2}, {"model", 4}});      // eight devices of this process or job
//   x.shard(mesh, {{"data", Shard(0)}});         // split by rows over "data", copied over "model"
//
// Meshes are interned: equal ones share an identity, whichever rank or call made them.
#pragma once
#include <cstdint>
#include <memory>
#include <source_location>
#include <string>
#include <utility>
#include <vector>

#include "core/uop/uop.h"

namespace tinyshard {

// A device of the job. Rank kHere is "this process, whichever it is": values there are private to
// each process and equal on all of them, as every process runs the same program.
struct DeviceRef {
  static constexpr int kHere = -1;
  std::string kind = "CPU";
  int rank = kHere;
  int index = 0;
  bool operator==(const DeviceRef&) const = default;
  std::string to_string() const;  // "CPU:1", "CPU:1@3" for a device of rank 3
};

struct MeshAxis {
  std::string name;
  int64_t size = 1;  // -1 in Mesh::world: what is left
  bool operator==(const MeshAxis&) const = default;
};

class Mesh {
 public:
  // The first product-of-sizes devices of the world, row-major. Names must differ.
  explicit Mesh(std::vector<MeshAxis> axes,
                std::source_location caller = std::source_location::current());
  Mesh(std::vector<MeshAxis> axes, std::vector<DeviceRef> devices,
       std::source_location caller = std::source_location::current());
  // Devices of this process by name, on one axis: Mesh::of({"CPU:0", "CPU:1"}). Whichever process runs
  // it: all ranks get an equal mesh, of kHere, on which each has its own copy of a value.
  static Mesh of(const std::vector<std::string>& devices, std::string axis = "data",
                 std::source_location caller = std::source_location::current());
  // All devices of all ranks, in rank order; one axis may be -1.
  static Mesh world(std::vector<MeshAxis> axes,
                    std::source_location caller = std::source_location::current());
  // The mesh of a device of this process.
  static Mesh single(const DeviceRef& device);
  // The one that takes the place of a mesh which is not known yet: of DeviceRef(), without a look-up.
  static const Mesh& unset();

  const std::vector<MeshAxis>& axes() const { return data_->axes; }
  const std::vector<DeviceRef>& devices() const { return data_->devices; }
  int64_t size() const { return int64_t(data_->devices.size()); }
  int axis(
      std::string_view name) const;  // index of the named axis; UserError names those there are
  int64_t id() const { return data_->id; }
  bool is_single() const { return data_->axes.empty(); }
  std::string to_string() const;

  // Place of the device with number `position` in devices(), one number per axis.
  std::vector<int64_t> coordinates(int64_t position) const;

  // The devices whose place along the axis is `coordinate`, as a mesh of the other axes: on a mesh
  // {"data", 2}, {"pipe", 4}, at("pipe", 3) is the last stage, {"data", 2}. Of the only axis, one
  // device. UserError names the axes that there are, or the size of the axis.
  Mesh at(std::string_view axis, int64_t coordinate) const;
  // The axis along which `part` is at(axis, some coordinate); -1: it is no such part.
  int axis_left_out(const Mesh& part) const;

  bool operator==(const Mesh& other) const { return data_ == other.data_; }
  std::shared_ptr<const void> payload() const { return data_; }
  static Mesh from_payload(const std::shared_ptr<const void>& payload);

 private:
  struct Data {
    int64_t id;
    std::vector<MeshAxis> axes;
    std::vector<DeviceRef> devices;
  };
  explicit Mesh(std::shared_ptr<const Data> data) : data_(std::move(data)) {}
  static std::shared_ptr<const Data> intern(std::vector<MeshAxis> axes,
                                            std::vector<DeviceRef> devices);
  std::shared_ptr<const Data> data_;
};

// Which devices exist.
struct World {
  int rank = 0, ranks = 1;
  std::vector<DeviceRef> devices;  // of all ranks, rank order
  int hosts = 1;                   // among which they are shared out evenly, in this order
  bool operator==(const World&) const = default;
};
// The context's, which looks for devices at the first question and defines this, as well as Mesh::of
// (core/exec/world.cpp). The reference stays good when the context's epoch ends; the next epoch may
// have another world. Threads: any.
const World& world();
// True if that kind of device has a library for x, an op of one. The context's, as world() is.
bool has_library(const std::string& kind, const UOp& x);

// How a value lies along one mesh axis. Partial: each device holds one term of a pending reduction.
struct Placement {
  enum class Kind : uint8_t { Replicate, Shard, Partial } kind = Kind::Replicate;
  int dim = 0;
  ReduceOp op = ReduceOp::Sum;
  const Dims* parts = nullptr;  // of Shard(dim, parts): interned, so that equal ones are one
  bool operator==(const Placement&) const = default;
  bool is_replicate() const { return kind == Kind::Replicate; }
  bool is_shard() const { return kind == Kind::Shard; }
  bool is_partial() const { return kind == Kind::Partial; }
  std::string to_string() const;
};
inline constexpr Placement Replicate{};
constexpr Placement Shard(int dim) { return {Placement::Kind::Shard, dim, ReduceOp::Sum, nullptr}; }
// For a dim that joins several, one after the other, as [q, k, v] rows in one weight: each device
// has its share of every one. The sizes add up to that of the dim, and the axis divides each; no
// other axis divides the dim.
Placement Shard(int dim, const Dims& sizes);
const Dims* interned_parts(const Dims& sizes);
constexpr Placement without_parts(Placement p) {
  p.parts = nullptr;
  return p;
}
constexpr Placement Partial(ReduceOp op = ReduceOp::Sum) {
  return {Placement::Kind::Partial, 0, op, nullptr};
}

struct Sharding {
  Mesh mesh;
  std::vector<Placement> placements;  // one per mesh axis
  bool operator==(const Sharding&) const = default;
  // Shape of the part that each device holds. Parts are equal; where a dim does not divide, the
  // parts round up and the last ones hold padding that never counts.
  Dims local_shape(DimSpan global) const;
  bool is_replicated() const;
  bool has_parts() const;  // of a joined dim, divided each by itself
  std::string to_string() const;
};
Sharding replicated(const Mesh& mesh);

// The graph's way to say where a value shall lie, and back.
UOp place(const UOp& x, const Sharding& where);  // a Redistribute of x
// Places x, rounded to `type` before it travels. If x is a pending sum, each of its terms is
// rounded.
UOp place_as(DType type, const UOp& x, const Sharding& where);
Sharding placement_of(const Node& redistribute);

struct GatherOnUse;  // multi/gather_on_use.h

// Base of what a Buffer node carries: where its elements are.
struct Placed {
  explicit Placed(Sharding where) : sharding(std::move(where)) {}
  virtual ~Placed() = default;
  Sharding sharding;
  std::string label;                                 // of a parameter: "h.0.attn.weight"
  std::shared_ptr<const GatherOnUse> gather_on_use;  // of a parameter that is whole only while read
  bool stays =
      false;  // of a parameter: products take its parts where they lie, and move the others
};

}  // namespace tinyshard
