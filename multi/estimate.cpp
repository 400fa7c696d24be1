// The walk goes from users to sources, so that a collective knows who reads its result. Another
// plan could spare it, unless it completes a gradient (a sum that only a storage reads, without a
// product between), gathers a parameter at its turn, or moves less than a kilobyte. A product takes
// the longer of the time to move its operands and the time to compute.
#include "multi/estimate.h"

#include <algorithm>

#include "core/uop/args.h"
#include "core/uop/node_map.h"
#include "multi/collective.h"

namespace tinyshard {
namespace {

// A loss and other figures of a step travel in any plan; no batch is gathered to spare their start.
constexpr double kFewBytes = 1024;

double bytes_of(const UOp& x) { return double(x->numel()) * double(itemsize(x.dtype())); }

// Returns the bytes that the device with most of them sends (ring algorithms).
double bytes_sent(const UOp& x, const CollectiveArg& arg) {
  const auto parts = double(arg.parts);
  const double source = bytes_of(x.src(0));
  switch (arg.op) {
    case CollectiveOp::AllReduce:
      return 2 * (parts - 1) / parts * source;
    case CollectiveOp::AllGather:
      return (parts - 1) * source;
    case CollectiveOp::ReduceScatter:
      return (parts - 1) / parts * source;
    case CollectiveOp::AllToAll:
      break;
    default:
      return source;
  }
  const std::vector<Transfer> transfers = transfers_of(*x);
  if (transfers.empty()) return (parts - 1) / parts * source;
  std::vector<int64_t> rows(size_t(arg.parts), 0);
  for (const Transfer& t : transfers) {
    if (t.from != t.to) rows[size_t(t.from)] += t.rows;
  }
  const auto all = double(std::max<int64_t>(1, x.src(0).shape()[0]));
  return double(std::ranges::max(rows)) / all * source;
}

// The readers of a value, direct and indirect ones.
struct Uses {
  bool product = false;  // an op of a library, such as a product
  bool storage = false;
};

}  // namespace

double operations_of(const UOp& x) {
  switch (x.op()) {
    case Op::Dot:
      return 2 * double(x->numel()) * double(x.src(0).shape().back());
    case Op::Conv:
    case Op::ConvBackwardData:
    case Op::ConvBackwardWeight: {
      // Each weight meets each pixel of the output.
      const UOp& y = x.op() == Op::Conv ? x : x.op() == Op::ConvBackwardData ? x.src(0) : x.src(1);
      const UOp& w = x.op() == Op::ConvBackwardWeight ? x : x.src(1);
      const int64_t channels = std::max<int64_t>(1, w.shape()[0]);
      return 2 * double(y->numel()) * double(w->numel()) / double(channels);
    }
    case Op::Attention:
    case Op::AttentionBackward: {  // of the three gradients one node has a third
      const double scores =
          double(x.src(0)->numel()) * double(x.src(1).shape()[x.src(1).shape().size() - 2]);
      return (x.op() == Op::Attention ? 4 : 10.0 / 3) * scores;
    }
    default:
      return 0;
  }
}

Estimate estimate(const Graph& graph, const Mesh& device, LinkModel& links) {
  const NodeOrder& order = graph.order();
  NodeMap<Uses> uses(order.size());
  Estimate sum;
  for (size_t i = order.size(); i-- > 0;) {
    const UOp& x = order[i];
    const Uses here = uses[x];
    const bool product = is_library_op(x.op());
    for (const UOp& s : x->src()) {
      Uses& of = uses[s];
      of.product |= here.product || product;
      of.storage |= here.storage || x.op() == Op::Assign;
    }
    if (x.op() == Op::Collective) {
      const CollectiveArg arg = collective_arg(*x);
      const double bytes = bytes_sent(x, arg);
      const double seconds =
          links.seconds_of(arg.op, bytes, Mesh::from_payload(x->payload), arg.mesh_axis);
      const bool sums = arg.op == CollectiveOp::AllReduce || arg.op == CollectiveOp::ReduceScatter;
      const bool gradient = sums && here.storage && !here.product;
      sum.seconds += seconds;
      if (!gradient && gather_time(x).turn == 0 && bytes >= kFewBytes)
        sum.movable_seconds += seconds;
      sum.bytes += bytes_of(x);
    } else if (product || x.op() == Op::Reduce) {
      double bytes = bytes_of(x);
      if (product) sum.bytes += bytes;
      for (const UOp& s : x->src()) bytes += bytes_of(s);
      sum.seconds += std::max(links.seconds_to_copy(bytes, device),
                              links.seconds_to_compute(operations_of(x), device));
    }
  }
  return sum;
}

}  // namespace tinyshard
