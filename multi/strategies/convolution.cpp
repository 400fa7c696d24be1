// Convolutions and their gradients. The three are derivatives of one form in x [n, c, h, w],
// weights w [oc, c / groups, kh, kw] and y [n, oc, oh, ow], so they divide in the same ways. Along
// a mesh axis that is by
//
//                    x         w         y
//   batch            Shard(0)  whole     Shard(0)
//   output channels  whole     Shard(0)  Shard(1)      where there is one group
//   input channels   Shard(1)  Shard(1)  whole         where there is one group
//   groups           Shard(1)  Shard(0)  Shard(1)      where the devices divide them
//
// or by nothing; images that are split in space stay so (spatial.h). An op brings its two operands to
// the placements of a row. If the table calls its result whole, the result is a pending sum: y over
// input channels, the gradient of x over output channels, that of the weights over the batch. The
// cheapest way wins (ways.h).
#include <algorithm>
#include <array>

#include "multi/strategies/spatial.h"
#include "multi/strategies/strategies.h"
#include "multi/strategies/ways.h"

namespace tinyshard {
namespace {

enum Role { kInput, kWeights, kOutput };
struct Roles {
  Role a, b, result;
};
Roles roles_of(Op op) {
  if (op == Op::Conv) return {kInput, kWeights, kOutput};
  if (op == Op::ConvBackwardData) return {kOutput, kWeights, kInput};
  return {kInput, kOutput, kWeights};
}

using Row = std::array<int, 3>;  // by which dim each role divides; -1: whole
constexpr Row kBatch{0, -1, 0}, kOutputChannels{-1, 0, 1}, kInputChannels{1, 1, -1},
    kGroups{1, 0, 1};

Way way_of(const Row& row, const Roles& roles) {
  auto operand = [&](Role role) { return row[role] < 0 ? Replicate : Shard(row[role]); };
  return {operand(roles.a), operand(roles.b),
          row[roles.result] < 0 ? Partial() : Shard(row[roles.result])};
}

}  // namespace

LocalValue convolution(const UOp& x, LocalValues& values) {
  auto mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {});
  if (auto split = spatial_convolution(x, *mesh, values)) return *split;
  LocalValue a = values.on(x.src(0), *mesh), b = values.on(x.src(1), *mesh);
  const DimSpan shape_a = x.src(0).shape(), shape_b = x.src(1).shape();
  const Roles roles = roles_of(x.op());
  ConvArg arg = conv_arg(*x);

  std::vector<std::vector<Way>> ways;
  int64_t among = 1;  // devices that may share out the groups
  for (size_t i = 0; i < mesh->axes().size(); ++i) {
    const int64_t parts = mesh->axes()[i].size;
    std::vector<Way> here;
    auto add = [&](const Row& row) {
      const Way way = way_of(row, roles);
      // Dims that are too short for all devices are divided only where they lie so.
      auto fits = [&](const Placement& p, const LocalValue& v, DimSpan shape) {
        return !p.is_shard() || v.place[i] == p || shape[size_t(p.dim)] >= parts;
      };
      if (fits(way.a, a, shape_a) && fits(way.b, b, shape_b)) here.push_back(way);
    };
    if (!a.place[i].is_replicate() || !b.place[i].is_replicate()) {
      add(kBatch);
      if (arg.groups == 1) {
        add(kOutputChannels);
        add(kInputChannels);
      } else if (arg.groups % (among * parts) == 0) {
        among *= parts;
        add(kGroups);
      }
    }
    here.push_back({});
    ways.push_back(std::move(here));
  }
  // Each weight meets each pixel of the output.
  const DimSpan of[] = {shape_a, shape_b, x.shape()};
  const DimSpan y = roles.a == kOutput ? of[0] : roles.b == kOutput ? of[1] : of[2];
  const DimSpan w = roles.b == kWeights ? of[1] : of[2];
  const double operations = 2 * double(y[0] * y[2] * y[3]) * double(product(w));
  const Chosen best =
      cheapest(x, {*mesh, a, b, shape_a, shape_b, x.shape(), x.dtype(), operations}, ways, values);

  a = values.moved(std::move(a), shape_a, best.a);
  b = values.moved(std::move(b), shape_b, best.b);
  for (size_t i = 0; i < best.result.size(); ++i) {
    // Only by groups are all three divided.
    if (best.a[i].is_shard() && best.b[i].is_shard() && best.result[i].is_shard())
      arg.groups /= mesh->axes()[i].size;
    if (!best.result[i].is_partial()) continue;
    a.local = with_padding_filled(a, shape_a, best.a[i].dim, const_int(a.local.dtype(), 0));
    b.local = with_padding_filled(b, shape_b, best.b[i].dim, const_int(b.local.dtype(), 0));
  }
  Dims local = Sharding{*mesh, best.result}.local_shape(x.shape());
  std::copy(local.begin(), local.end(), arg.result);
  return {UOp::make(x.op(), x.dtype(), {a.local, b.local}, to_ints(arg)), mesh, best.result};
}

}  // namespace tinyshard
