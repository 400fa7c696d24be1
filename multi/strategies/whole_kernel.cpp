// A kernel that the program wrote reads any element of its operands: each device has them whole, and
// computes the whole result. Within shard_map it is a kernel over parts, as everything there is.
#include "multi/strategies/strategies.h"

namespace tinyshard {

LocalValue whole_kernel(const UOp& x, LocalValues& values) {
  const std::optional<Mesh> mesh = values.meeting_place(x->src());
  if (!mesh) return rebuilt(x, values.sources(x), {x, std::nullopt, {}});
  const std::vector<Placement> whole(mesh->axes().size(), Replicate);
  std::vector<LocalValue> operands;
  for (const UOp& s : x->src()) operands.push_back(values.brought(s, *mesh, whole));
  return rebuilt(x, operands, {x, mesh, whole});
}

}  // namespace tinyshard
