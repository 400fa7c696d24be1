// Values given and taken by their parts: what each device of this process holds, without the rest.
#include <algorithm>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/sizes.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/state.h"
#include "core/exec/transfer.h"
#include "core/tensor/value_internal.h"
#include "multi/local_box.h"

namespace tinyshard {
namespace {

void need_no_capture() {
  if (current_capture())
    fail("parts cannot be taken or given inside a captured step: there are no values yet");
}

Storage& storage_of(const Tensor& realized) {
  return *Storage::of(**stored_node(realized.state()->value));
}

// The device as one of this process alone.
Mesh mesh_of(DeviceRef device) {
  device.rank = DeviceRef::kHere;
  return Mesh::single(device);
}

// Sizes of the whole where all parts are as large as this one.
Dims whole_of(const Tensor& part, const Sharding& where) {
  Dims shape = part.shape();
  for (size_t a = 0; a < where.placements.size(); ++a) {
    if (!where.placements[a].is_shard()) continue;
    int64_t& size = shape[static_cast<size_t>(where.placements[a].dim)];
    size = limited(__int128{size} * where.mesh.axes()[a].size);
  }
  return shape;
}

// Devices that hold the same part must be given the same.
void check_equal_copies(const std::vector<Tensor>& parts, const std::vector<LocalBox>& boxes) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto first = static_cast<size_t>(std::ranges::find(boxes, boxes[i]) - boxes.begin());
    if (first == i || product(boxes[i].size) == 0 || parts[first].data() == parts[i].data())
      continue;
    fail(fmt::format("parts {} and {} are copies of one part of the whole, but differ", first, i));
  }
}

}  // namespace

Tensor Tensor::from_local(const Mesh& mesh, const std::vector<AxisPlacement>& placements,
                          const std::vector<Tensor>& parts, const std::optional<Ints>& shape,
                          std::optional<DType> dtype, Caller caller) {
  Call call("from_local", caller);
  need_no_capture();
  const Context::Use use;
  const std::vector<int> positions = Context::get().local_positions(mesh);
  if (parts.size() != positions.size())
    fail(fmt::format("{} parts for {} devices of {} that this process holds", parts.size(),
                     positions.size(), mesh.to_string()));
  if (parts.empty() && !shape)
    fail(
        fmt::format("this process holds no device of {}: it gives no parts, but the shape of the "
                    "whole, as in from_local(mesh, placements, {{}}, shape, dtype)",
                    mesh.to_string()));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!parts[i].defined()) fail(fmt::format("part {} is no tensor", i));
    const Mesh at = parts[i].sharding().mesh;
    if (at.size() > 1)
      fail(fmt::format("part {}, {}, lies on {}; a part is on one device", i, parts[i].describe(),
                       at.to_string()));
    need_device_of(at);
    if (dtype && parts[i].dtype() != *dtype)
      fail(fmt::format("part {} is {}, where {} is asked for", i, parts[i].describe(),
                       name(*dtype)));
    if (parts[i].dtype() != parts[0].dtype())
      fail(fmt::format("part 0 is {} and part {} is {}", parts[0].describe(), i,
                       parts[i].describe()));
  }
  const DType type = dtype.value_or(parts.empty() ? default_float() : parts[0].dtype());
  const int64_t dims = shape ? static_cast<int64_t>(shape->values.size()) : parts[0].ndim();
  const std::string about = parts.empty()
                                ? std::string(name(type)) + value::shape_text(shape->values)
                                : parts[0].describe();
  const Sharding where{mesh, value::placements_of(mesh, placements, dims, about)};
  if (where.has_parts())
    fail(fmt::format("parts are given as slices of the whole, which {} has none of",
                     where.to_string()));
  const Dims whole = shape ? shape->values : whole_of(parts[0], where);
  if (std::ranges::any_of(whole, [](int64_t size) { return size < 0; }))
    fail(fmt::format("a shape has no negative sizes: {}", tinyshard::to_string(whole)));
  check_size(whole, type);
  std::vector<LocalBox> boxes;
  for (size_t i = 0; i < parts.size(); ++i) {
    boxes.push_back(local_box(where, whole, positions[i]));
    if (parts[i].shape() != boxes[i].size)
      fail(fmt::format("part {} is {}, but {} holds {} of the whole {}", i, parts[i].describe(),
                       mesh.devices()[static_cast<size_t>(positions[i])].to_string(),
                       value::shape_text(boxes[i].size), value::shape_text(whole)));
  }

  std::vector<Tensor> here;  // each on the device that is to hold it
  for (size_t i = 0; i < parts.size(); ++i) {
    const DeviceRef& device = mesh.devices()[static_cast<size_t>(positions[i])];
    here.push_back(parts[i].detach().shard_like(replicated(mesh_of(device))));
  }
  Tensor::realize(here);
  check_equal_copies(here, boxes);

  value::note_placement(where);
  const UOp buffer = empty_buffer(whole, type, where);
  const Context::Turn turn;
  Storage& storage = *Storage::of(*buffer);
  for (size_t i = 0; i < here.size() && storage.local_bytes() > 0; ++i) {
    if (product(boxes[i].size) == 0) {
      const std::vector<std::byte> zeros(storage.local_bytes());
      storage.devices()[i]->copy_in(storage.memory()[i], zeros.data(), zeros.size());
      continue;
    }
    Storage& from = storage_of(here[i]);
    // What lies beyond the part is padding, which reads as zero.
    const Box box{boxes[i].size, Dims(whole.size()), storage.local_shape(),
                  itemsize(storage.dtype())};
    copy_box(box, *from.devices()[0], from.memory_to_copy()[0], *storage.devices()[i],
             storage.memory()[i]);
  }
  return Tensor(make_state(buffer));
}

std::vector<Tensor> Tensor::local(Caller caller) const {
  Call call("local", caller);
  need_no_capture();
  const Context::Use use;
  Sharding where = sharding();
  std::ranges::replace_if(where.placements, &Placement::is_partial, Replicate);
  const Tensor complete = where == sharding() ? *this : shard_like(where);
  complete.realize();

  const Context::Turn turn;
  Storage& storage = storage_of(complete);
  const std::vector<int> positions = Context::get().local_positions(where.mesh);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < positions.size(); ++i) {
    const LocalBox part = local_box(where, storage.shape(), positions[i]);
    const DeviceRef& device = where.mesh.devices()[static_cast<size_t>(positions[i])];
    const UOp buffer = empty_buffer(part.size, storage.dtype(), replicated(mesh_of(device)));
    Storage& to = *Storage::of(*buffer);
    if (to.local_bytes() > 0) {
      const Box box{storage.local_shape(), Dims(part.size.size()), part.size,
                    itemsize(storage.dtype())};
      copy_box(box, *storage.devices()[i], storage.memory_to_copy()[i], *to.devices()[0],
               to.memory()[0]);
    }
    parts.push_back(Tensor(make_state(buffer)));
  }
  return parts;
}

}  // namespace tinyshard
