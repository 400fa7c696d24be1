// A CopyIn sends what its source holds within the group of the devices of both meshes, in the order
// in which the job counts them, so that one group serves many pairs of meshes. A part that several
// devices receive is sent to each of them by a source that repeats it. Values of constants alone
// name no mesh; their leaves are given that of the sender.
#include "multi/relocation.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "core/uop/node_map.h"
#include "core/uop/node_set.h"

namespace tinyshard {
namespace {

int rank_of(const DeviceRef& d) { return d.rank == DeviceRef::kHere ? world().rank : d.rank; }

int place_in(const std::vector<DeviceRef>& devices, const DeviceRef& wanted) {
  for (size_t i = 0; i < devices.size(); ++i) {
    if (same_device(devices[i], wanted)) return int(i);
  }
  return -1;
}

// Returns whether x or a value it is computed from has a payload. Most have one close by.
bool has_payload(const UOp& x) {
  NodeSet seen;
  std::vector<UOp> left{x};
  while (!left.empty()) {
    const UOp next = std::move(left.back());
    left.pop_back();
    if (next->payload) return true;
    for (const UOp& s : next->src()) {
      if (seen.add(s)) left.push_back(s);
    }
  }
  return false;
}

}  // namespace

UOp on_its_mesh(const UOp& x, const Mesh& mesh) {
  if (has_payload(x)) return x;
  const NodeOrder order = toposort(std::span(&x, 1));
  NodeMap<UOp> there(order.size());
  for (const UOp& n : order) {
    std::vector<UOp> src;
    for (const UOp& s : n->src()) src.push_back(there.at(s));
    there[n] =
        src.empty() ? UOp::make(n.op(), n.dtype(), {}, n->arg(), mesh.payload()) : n.with_src(src);
  }
  return there.at(x);
}

bool same_device(const DeviceRef& a, const DeviceRef& b) {
  return a.kind == b.kind && a.index == b.index && rank_of(a) == rank_of(b);
}

UOp relocated(const UOp& x, const Mesh& from, const Mesh& to, bool copies) {
  UOp sent = on_its_mesh(x, from);
  const int64_t times = copies ? most_receivers(from, to) : 0;
  if (copies) {  // what is sent to several devices is there several times
    Dims one{1}, all{times};
    one.insert(one.end(), x.shape().begin(), x.shape().end());
    all.insert(all.end(), x.shape().begin(), x.shape().end());
    sent = expand(reshape(sent, one), all);
  }
  sent = UOp::make(Op::Contiguous, x.dtype(), {sent});
  return UOp::make(Op::CopyIn, x.dtype(), {sent}, Dims{times}, to.payload());
}

UOp swapped_over(const UOp& x, const Mesh& mesh, int axis, int other) {
  const UOp sent = UOp::make(Op::Contiguous, x.dtype(), {on_its_mesh(x, mesh)});
  return UOp::make(Op::CopyIn, x.dtype(), {sent}, Dims{axis, other}, mesh.payload());
}

int64_t most_receivers(const Mesh& from, const Mesh& to) {
  std::map<int, int64_t> receivers;
  int64_t most = 1;
  for (const auto& [sender, receiver] : relocation(from, to, true).pairs)
    most = std::max(most, ++receivers[sender]);
  return most;
}

Relocation relocation(const Mesh& from, const Mesh& to, bool copies) {
  std::vector<DeviceRef> all = from.devices();
  for (const DeviceRef& d : to.devices()) {
    if (place_in(from.devices(), d) < 0) all.push_back(d);
  }
  // Sorted as the job counts its devices, so that the job's existing communicator is used for a
  // group of all of them.
  std::ranges::stable_sort(
      all, {}, [](const DeviceRef& d) { return std::tuple(rank_of(d), d.kind, d.index); });
  Relocation result{Mesh({{"devices", int64_t(all.size())}}, all), {}};
  for (int64_t p = 0; p < to.size(); ++p) {
    const DeviceRef& target = to.devices()[size_t(p)];
    const bool has_it = copies && place_in(from.devices(), target) >= 0;
    if (!copies && p >= from.size()) break;
    const DeviceRef& source = has_it ? target : from.devices()[size_t(p % from.size())];
    result.pairs.emplace_back(place_in(all, source), place_in(all, target));
  }
  std::ranges::sort(result.pairs);
  return result;
}

Relocation relocation(const Node& x, const Mesh& from) {
  // A single argument is the number of copies along the first dim of what is sent; 0: no such dim.
  if (x.arguments == 1) return relocation(from, Mesh::from_payload(x.payload), x.arg()[0] != 0);
  auto stride = [&](int64_t axis) {
    int64_t n = 1;
    for (size_t a = size_t(axis) + 1; a < from.axes().size(); ++a) n *= from.axes()[a].size;
    return n;
  };
  const int64_t size = from.axes()[size_t(x.arg()[0])].size;
  const int64_t a = stride(x.arg()[0]), b = stride(x.arg()[1]);
  std::vector<DeviceRef> receivers;
  for (int64_t p = 0; p < from.size(); ++p) {
    const int64_t i = p / a % size, j = p / b % size;
    receivers.push_back(from.devices()[size_t(p + (j - i) * a + (i - j) * b)]);
  }
  return relocation(from, Mesh(from.axes(), receivers), false);
}

}  // namespace tinyshard
