// Checkpoints of a job: each rank writes its own parts, all learn whether every rank could, and one
// commits. The files themselves are the work of io/checkpoint.h.
#include "core/nn/checkpoint.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/exec/context.h"
#include "core/exec/read_boxes.h"
#include "core/nn/agreement.h"
#include "core/nn/match_names.h"
#include "core/nn/parts_to_save.h"
#include "core/nn/pending_save.h"
#include "core/nn/write_over.h"
#include "core/tensor/random.h"
#include "io/checkpoint.h"

namespace tinyshard::nn {
namespace {

// The random state as text, in the checkpoint's metadata.
constexpr const char* kRandomKey = "tinyshard.random";

std::string random_text() {
  RandomState state = random_state();
  return fmt::format("{} {} {}", state.seed, state.drawn, state.trained);
}

void restore_random(const std::string& text) {
  std::istringstream in(text);
  RandomState state;
  in >> state.seed >> state.drawn >> state.trained;
  set_random_state(state);
}

void warn(std::string_view sentence) { log_line(sentence); }

// The checkpoint that rank 0 finds at `path`, opened on every rank: others might look a moment
// later, or through another machine's file system.
io::Checkpoint open(const std::filesystem::path& path, const io::CheckpointReadOptions& options) {
  Context& context = Context::get();
  if (context.ranks() == 1) return io::Checkpoint::find(path, options);

  std::optional<io::Checkpoint> found;
  std::exception_ptr problem;
  Message message{0, 0, 0};  // found, folder is below the path, step and revision
  if (context.rank() == 0) {
    try {
      found = io::Checkpoint::find(path, options);
      message = {1, found->path() != path, 0};
      for (const io::CheckpointPath& entry : io::list_checkpoints(path)) {
        if (entry.path == found->path()) message[2] = entry.step << 16 | entry.revision;
      }
    } catch (...) {
      problem = std::current_exception();
    }
  }
  message = exchange(message, ReduceOp::Max, 0);
  if (problem) std::rethrow_exception(problem);
  if (message[0] == 0)
    throw UserError(fmt::format("rank 0 found no checkpoint at {}", path.string()));
  if (found) return *found;
  if (message[1] == 0) return io::Checkpoint(path, options);
  for (const io::CheckpointPath& entry : io::list_checkpoints(path)) {
    if ((entry.step << 16 | entry.revision) == message[2])
      return io::Checkpoint(entry.path, options);
  }
  throw UserError(
      fmt::format("rank 0 found the checkpoint of step {} under {}, rank {} does not see it; "
                  "checkpoints must lie on a file system that all ranks share",
                  message[2] >> 16, path.string(), context.rank()));
}

// Compares them by their digests, where they were saved in the same boxes.
bool same_values(const io::Checkpoint& checkpoint, const io::Checkpoint::Tensor& a,
                 const io::Checkpoint::Tensor& b) {
  if (a.dtype != b.dtype) return false;
  using Slice = io::Checkpoint::Slice;
  auto same_box = [](const Slice& x, const Slice& y) {
    return x.offset == y.offset && x.shape == y.shape;
  };
  auto same_digest = [](const Slice& x, const Slice& y) { return x.digest == y.digest; };
  if (std::ranges::equal(a.slices, b.slices, same_box))
    return std::ranges::equal(a.slices, b.slices, same_digest);
  std::vector<std::byte> one(static_cast<size_t>(product(a.shape)) * itemsize(a.dtype)),
      other(one.size());
  checkpoint.read(a.name, one);
  checkpoint.read(b.name, other);
  return one == other;
}

}  // namespace

std::filesystem::path save_checkpoint(const StateDict& tensors, const std::filesystem::path& root,
                                      int64_t step, const SaveOptions& options) {
  wait_for_checkpoints();
  struct Save {
    PartsToSave parts;
    io::CheckpointWriter writer;
    io::Metadata metadata;
  };
  Context& context = Context::get();
  const auto save = std::make_shared<Save>(Save{PartsToSave(tensors),
                                                io::CheckpointWriter(root, step,
                                                                     {.rank = context.rank(),
                                                                      .ranks = context.ranks(),
                                                                      .agree = agree,
                                                                      .first_reason = first_reason,
                                                                      .keep = options.keep,
                                                                      .warn = warn}),
                                                options.metadata});
  save->metadata[kRandomKey] = random_text();
  auto add_parts = [&] {
    const std::vector<PartsToSave::Part>& parts = save->parts.parts();
    for (size_t p = 0; p < parts.size(); ++p) {
      const auto& [name, dtype, shape] = save->parts.tensors()[parts[p].tensor];
      save->writer.add_slice({name, dtype, parts[p].box.size}, shape, parts[p].box.begin,
                             [save = save.get(), p](const io::CheckpointWriter::Put& put) {
                               const size_t bytes = save->parts.parts()[p].bytes;
                               save->parts.read(p, 0, bytes,
                                                [&](size_t, auto piece) { put(piece); });
                             });
    }
  };
  if (!options.asynchronous) {
    const Context::Use use;
    add_parts();
    return save->writer.commit(save->metadata);
  }
  save->parts.take_snapshot();
  add_parts();
  const std::filesystem::path path = save->writer.begin();
  save_beside([save] { save->writer.finish(save->metadata); });
  return path;
}

void wait_for_checkpoints() {
  if (!is_saving()) return;
  std::exception_ptr problem;
  std::string reason;
  try {
    end_of_save();
  } catch (const io::FailedElsewhere&) {
    problem = std::current_exception();  // but not the reason, which another rank has
  } catch (const std::exception& error) {
    problem = std::current_exception();
    reason = error.what();
  }
  const bool alone = Context::get().ranks() == 1;
  if (alone ? !problem : agree(!problem)) return;
  const bool here = !reason.empty();
  if (!alone) reason = first_reason(reason);
  if (here) std::rethrow_exception(problem);
  throw UserError(
      fmt::format("the last checkpoint was not saved; the ones before it stand ({})", reason));
}

void prepare_checkpoints(const std::filesystem::path& root) {
  Context& context = Context::get();
  std::exception_ptr problem;
  std::string reason;
  if (context.rank() == 0) {
    try {
      io::check_checkpoint_root(root);
      io::claim_checkpoint_root(root);
    } catch (const std::exception& error) {
      problem = std::current_exception();
      reason = error.what();
    }
  }
  const bool alone = context.ranks() == 1;
  if (alone ? !problem : agree(!problem)) return;
  if (!alone) reason = first_reason(reason);
  if (problem) std::rethrow_exception(problem);
  throw UserError(fmt::format("rank 0 cannot write checkpoints to {} ({})", root.string(), reason));
}

bool has_checkpoint(const std::filesystem::path& root) {
  return !io::list_checkpoints(root).empty();
}

CheckpointInfo checkpoint_info(const std::filesystem::path& path) {
  io::Checkpoint checkpoint = open(path, {.warn = warn});
  return {checkpoint.path(), checkpoint.step(), checkpoint.metadata()};
}

CheckpointInfo load_checkpoint(const StateDict& tensors, const std::filesystem::path& path,
                               const LoadOptions& options, Caller caller) {
  Call call("load_checkpoint", caller);
  check_no_capture();
  wait_for_checkpoints();
  const io::Checkpoint checkpoint =
      open(path, {.check_digests = options.check_digests, .warn = warn});
  std::map<std::string, FoundValue> found;
  for (const io::Checkpoint::Tensor& t : checkpoint.tensors())
    found.emplace(t.name, FoundValue{t.shape});
  NameMatch match = match_names(tensors, found, options);
  for (const auto& [one, other] : match.twice) {
    if (!same_values(checkpoint, checkpoint.tensor(one), checkpoint.tensor(other)))
      fail_of_tied(one, other);
  }

  std::vector<Wanted> wanted;
  std::vector<const io::Checkpoint::Tensor*> stored;
  std::set<const TensorState*> seen;
  std::vector<std::pair<Tensor, Tensor>> whole;  // those that are filled by no parts
  for (const auto& [name, value] : match.source) {
    const Tensor& tensor = tensors.at(name);
    const io::Checkpoint::Tensor* t = checkpoint.find_tensor(value);
    if (!seen.insert(tensor.state().get()).second) continue;
    if (can_be_filled(tensor)) {
      wanted.push_back({tensor, t->dtype});
      stored.push_back(t);
      continue;
    }
    std::vector<std::byte> bytes(static_cast<size_t>(product(t->shape)) * itemsize(t->dtype));
    checkpoint.read(value, bytes);
    whole.emplace_back(tensor, Tensor(bytes, Ints(t->shape), t->dtype));
  }
  fill_in_place(
      wanted,
      [&](std::span<const std::pair<Storage*, size_t>> storages, const ByteProgress& moved) {
        std::vector<PartFill> fills;
        for (const auto& [storage, index] : storages) {
          const std::string& name = stored[index]->name;
          fills.push_back({storage, [&](const LocalBox& box, std::span<std::byte> out) {
                             checkpoint.read_slice(name, box.begin, box.size, out);
                           }});
        }
        fill_parts(fills, moved);
      },
      options.progress);
  write_over(whole, {});
  auto random = checkpoint.metadata().find(kRandomKey);
  if (random != checkpoint.metadata().end()) restore_random(random->second);
  return {checkpoint.path(), checkpoint.step(), checkpoint.metadata(), std::move(match.report)};
}

}  // namespace tinyshard::nn
