// A parameter is divided along the dim that needs least padding, as padding is held and sent. Names
// tell the blocks: all parameters below h.3 have the block h.3, and are gathered together.
//
//   f32[50257, 768] over 8 devices    rows would be padded to 50264; columns divide: dim 1
#include "core/nn/fully_shard.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/nn/name_pattern.h"
#include "core/nn/placement.h"
#include "multi/gather_on_use.h"

namespace tinyshard::nn {
namespace {

// The part of a name up to its first segment that is a number; empty where there is none.
std::string list_element(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
    if (end > begin &&
        std::all_of(name.begin() + int64_t(begin), name.begin() + int64_t(end), is_digit))
      return name.substr(0, end);
    begin = end + 1;
  }
  return {};
}

// The dim of which parts of equal size hold least padding, the first of several: not one that
// another axis divides. None where no dim has an element for each device.
std::optional<int> dim_to_divide(const Tensor& t, const std::vector<Placement>& now,
                                 int64_t devices) {
  std::optional<int> best;
  double least = 0;
  for (int dim = 0; dim < int(t.ndim()); ++dim) {
    const int64_t size = t.shape(dim);
    auto divides = [dim](const Placement& p) { return p.is_shard() && p.dim == dim; };
    if (size < devices || std::ranges::any_of(now, divides)) continue;
    const double held = double((size + devices - 1) / devices * devices) / double(size);
    if (best && held >= least) continue;
    best = dim;
    least = held;
  }
  return best;
}

}  // namespace

void fully_shard(const StateDict& tensors, const Mesh& mesh, const std::string& axis_name,
                 const FullyShardOptions& options, Caller caller) {
  Call call("fully_shard", caller);
  mesh.axis(axis_name);  // checks the name
  if (options.prefetch < 0)
    fail(fmt::format("prefetch is {}; it must not be negative", options.prefetch));
  std::optional<NamePattern> pattern;
  if (!options.blocks.empty()) pattern.emplace(options.blocks);

  struct Placing {
    Tensor tensor;
    Sharding where;
    std::string block;
    size_t axis = 0;  // of the tensor's own mesh
    bool divided = false;
  };
  std::vector<Placing> placings;
  std::set<const TensorState*> known;  // a tied tensor has several names
  bool matched = false;
  for (const auto& [name, tensor] : tensors) {
    std::string block = pattern ? pattern->beginning_of(name).value_or("") : list_element(name);
    matched = matched || !block.empty();
    if (!known.insert(tensor.state().get()).second) continue;
    Placing p{tensor, place_on(mesh, name, tensor), std::move(block)};
    p.axis = size_t(p.where.mesh.axis(axis_name));
    if (tensor.is_param() || (options.frozen && tensor.state()->frozen)) {
      std::vector<Placement>& places = p.where.placements;
      const int64_t devices = p.where.mesh.axes()[p.axis].size;
      if (!places[p.axis].is_replicate())
        fail(fmt::format("{}, {}, is divided over \"{}\" already", name, tensor.describe(),
                         axis_name));
      if (std::optional<int> dim = dim_to_divide(tensor, places, devices); dim && devices > 1) {
        places[p.axis] = Shard(*dim);
        p.divided = true;
      }
    }
    placings.push_back(std::move(p));
  }
  if (pattern && !matched)
    fail(fmt::format("no name begins with \"{}\"; the first of {} is {}", options.blocks,
                     tensors.size(), tensors.empty() ? "none" : tensors.begin()->first));

  static std::atomic<int64_t> blocks_so_far{0};
  // A name on several stages of a pipeline, or none, is a block on each.
  std::map<std::pair<std::string, int64_t>, std::shared_ptr<const GatherOnUse>> blocks;
  for (const Placing& p : placings) {
    p.tensor.replace(p.tensor.shard_like(p.where));
    if (!p.divided) continue;
    std::shared_ptr<const GatherOnUse>& block = blocks[{p.block, p.where.mesh.id()}];
    if (!block) {
      std::vector<bool> axes(p.where.placements.size());
      axes[p.axis] = true;
      block = std::make_shared<GatherOnUse>(
          GatherOnUse{++blocks_so_far, options.prefetch, options.keep, std::move(axes)});
    }
    p.tensor.state()->set_gather_on_use(block);
  }
}

}  // namespace tinyshard::nn
