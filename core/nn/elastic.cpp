#include "core/nn/elastic.h"

#include <cstring>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/exec/capture.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"
#include "core/exec/state.h"
#include "core/nn/agreement.h"
#include "core/nn/write_over.h"

namespace tinyshard::nn {
namespace {

// The least of all ranks' first numbers; all three are the same on each rank that has the first.
int64_t least(int64_t mine) {
  if (Context::get().ranks() == 1) return mine;
  return exchange({mine, mine, mine}, ReduceOp::Min, std::numeric_limits<int64_t>::max())[0];
}

}  // namespace

Elastic::Snapshot Elastic::copy(const StateDict& tensors, const Progress& progress) {
  Snapshot snapshot{progress, {}, random_state()};
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.sharding().is_replicated())
      fail(
          fmt::format("{} is {}: state that is split goes with the rank that holds a part; keep it "
                      "whole on each device, or use checkpoints",
                      name, tensor.sharding().to_string()));
    all.push_back(tensor);
  }
  Tensor::realize(all);
  const Context::Turn turn;
  for (const auto& [name, tensor] : tensors) {
    Storage& storage = *Storage::of(*stored_node(tensor.state()->value));
    storage.check_usable();
    need_device_of(storage.sharding.mesh);
    Value value{tensor.dtype(), tensor.shape(), std::vector<std::byte>(storage.local_bytes())};
    Device& device = *storage.devices()[0];
    if (!value.bytes.empty())
      device.copy_out(value.bytes.data(), storage.memory_to_copy()[0], value.bytes.size());
    snapshot.values.emplace(name, std::move(value));
  }
  return snapshot;
}

void Elastic::write(const Snapshot& from, const StateDict& tensors) {
  std::map<std::string, Dims> found;
  for (const auto& [name, value] : from.values) found.emplace(name, value.shape);
  check_fits(tensors, found, true);
  std::vector<Wanted> wanted;
  std::vector<const Value*> values;
  for (const auto& [name, tensor] : tensors) {
    const Value& value = from.values.at(name);
    if (!tensor.sharding().is_replicated() || tensor.dtype() != value.dtype)
      fail(fmt::format("{} is {} {}, and was committed as a whole {}", name,
                       tinyshard::name(tensor.dtype()), tensor.sharding().to_string(),
                       tinyshard::name(value.dtype)));
    wanted.push_back({tensor, value.dtype});
    values.push_back(&value);
  }
  fill_in_place(
      wanted,
      [&](std::span<const std::pair<Storage*, size_t>> storages, const ByteProgress& moved) {
        std::vector<PartFill> fills;
        for (const auto& [storage, index] : storages) {
          const std::vector<std::byte>& bytes = values[index]->bytes;
          fills.push_back({storage, [&bytes](const LocalBox&, std::span<std::byte> out) {
                             std::memcpy(out.data(), bytes.data(), out.size());
                           }});
        }
        fill_parts(fills, moved);
      },
      {});
  set_random_state(from.random);
}

void Elastic::commit(const StateDict& tensors, const Progress& progress, Caller caller) {
  Call call("commit", caller);
  if (current_capture()) fail("a captured step has no values to keep yet; commit behind it");
  const int64_t last = commits_.last_step();
  if (progress.step < 0 || progress.step <= last)
    fail(fmt::format("step {} is not behind the last committed one, {}", progress.step, last));
  commits_.keep(progress.step, copy(tensors, progress));
  least(progress.step);  // returns when all ranks have come here
  commits_.all_have_last();
}

Progress Elastic::restore(const StateDict& tensors, Caller caller) {
  Call call("restore", caller);
  if (current_capture()) fail("a captured step cannot be restored inside of itself");
  const int64_t last = commits_.last_step(), step = least(last);
  const Snapshot* common = commits_.return_to(step);
  if (step == Commits<Snapshot>::kNothing) return {};
  if (common == nullptr)
    fail(
        fmt::format("the ranks share no commit: this one has that of step {}, another one that of "
                    "step {}",
                    last, step));
  write(*common, tensors);
  return common->progress;
}

}  // namespace tinyshard::nn
