// The slowest link between neighbours along the axis counts, as all devices wait for it. The time
// is a start, a number of steps that depends on the op, and the bytes over the rate: 2 (n - 1)
// steps for an all-reduce, n - 1 for a gather or a reduce-scatter, one for the rest.
#include "multi/link_model.h"

#include <algorithm>

namespace tinyshard {
namespace {

// Where a device of the world stands: ranks, and in a world of one rank its devices, are shared out
// evenly among the hosts, in order.
int host_of(const DeviceRef& d, const World& world) {
  if (world.hosts <= 1) return 0;
  const auto at = std::ranges::find(world.devices, d);
  if (at == world.devices.end()) return 0;
  return int((at - world.devices.begin()) * world.hosts / int64_t(world.devices.size()));
}

enum class Distance : uint8_t { Process, Host, Network };

Distance between(const DeviceRef& a, const DeviceRef& b, const World& world) {
  if (host_of(a, world) != host_of(b, world)) return Distance::Network;
  return a.rank == b.rank ? Distance::Process : Distance::Host;
}

Distance furthest(const Mesh& mesh, size_t axis, const World& world) {
  const std::vector<DeviceRef>& devices = mesh.devices();
  size_t stride = 1;
  for (size_t a = mesh.axes().size(); a-- > axis + 1;) stride *= size_t(mesh.axes()[a].size);
  const auto size = size_t(mesh.axes()[axis].size);
  Distance furthest = Distance::Process;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (i / stride % size + 1 < size)
      furthest = std::max(furthest, between(devices[i], devices[i + stride], world));
  }
  return furthest;
}

double steps_of(CollectiveOp op, int64_t parts) {
  switch (op) {
    case CollectiveOp::AllReduce:
      return 2 * double(parts - 1);
    case CollectiveOp::AllGather:
    case CollectiveOp::ReduceScatter:
      return double(parts - 1);
    default:
      return 1;
  }
}

}  // namespace

double seconds_of(CollectiveOp op, double bytes, int64_t parts, const LinkSpeed& link) {
  if (parts == 1) return 0;
  return link.start_s + steps_of(op, parts) * link.step_s + bytes / link.bytes_per_s;
}

const LinkModel::Known& LinkModel::of(const Mesh& mesh) {
  const auto [entry, fresh] = known_.try_emplace(mesh.id());
  Known& known = entry->second;
  if (!fresh) return known;
  known.device = speeds_of(mesh.devices()[0].kind);
  for (size_t a = 0; a < mesh.axes().size(); ++a) {
    const Distance far = furthest(mesh, a, world());
    known.links.push_back(far == Distance::Process ? known.device.process
                          : far == Distance::Host  ? known.device.host
                                                   : known.device.network);
  }
  return known;
}

}  // namespace tinyshard
