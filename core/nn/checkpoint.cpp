#include "core/nn/checkpoint.h"

#include <array>
#include <exception>
#include <optional>
#include <sstream>
#include <vector>

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/exec/runtime.h"
#include "core/tensor/random.h"
#include "io/checkpoint.h"

namespace tinyshard::nn {
namespace {

using Message = std::array<int64_t, 3>;

// A few numbers of rank 0 for everyone, or the least of everyone's: through one all-reduce, to
// which rank 0, or each rank, contributes for its first device and the others nothing.
Message exchange(Message mine, ReduceOp op, int64_t nothing) {
  Communicator& world = Runtime::get().world();
  std::vector<Message> terms(world.local().size());
  std::vector<CommBuffer> buffers;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (i == 0) {
      terms[i] = mine;
    } else {
      terms[i].fill(nothing);
    }
    buffers.push_back({terms[i].data()});
  }
  const RunIdentity identity{.label = "of a checkpoint"};
  world
      .start({.op = CollectiveOp::AllReduce,
              .reduce = op,
              .dtype = DType::I64,
              .count = mine.size(),
              .identity = &identity},
             buffers, buffers)
      .wait();
  return terms[0];
}

bool agree(bool mine) { return exchange({mine, mine, mine}, ReduceOp::Min, 1)[0] != 0; }

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
io::Checkpoint open(const std::filesystem::path& path) {
  Runtime& runtime = Runtime::get();
  io::CheckpointReadOptions options{.warn = warn};
  if (runtime.ranks() == 1) return io::Checkpoint::find(path, options);

  std::optional<io::Checkpoint> found;
  std::exception_ptr problem;
  Message message{0, 0, 0};  // found, folder is below the path, step and revision
  if (runtime.rank() == 0) {
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
                  message[2] >> 16, path.string(), runtime.rank()));
}

}  // namespace

std::filesystem::path save_checkpoint(const StateDict& tensors, const std::filesystem::path& root,
                                      int64_t step, const SaveOptions& options) {
  std::vector<Tensor> all;
  for (const auto& [name, tensor] : tensors) all.push_back(tensor);
  Tensor::realize(all);

  Runtime& runtime = Runtime::get();
  io::CheckpointWriter writer(root, step,
                              {.rank = runtime.rank(),
                               .ranks = runtime.ranks(),
                               .agree = agree,
                               .keep = options.keep,
                               .warn = warn});
  std::vector<std::vector<std::byte>> bytes;
  bytes.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    bytes.push_back(tensor.data());
    writer.add({name, tensor.dtype(), tensor.shape(), bytes.back()});
  }
  io::Metadata metadata = options.metadata;
  metadata[kRandomKey] = random_text();
  return writer.commit(metadata);
}

void prepare_checkpoints(const std::filesystem::path& root) {
  Runtime& runtime = Runtime::get();
  std::exception_ptr problem;
  if (runtime.rank() == 0) {
    try {
      std::error_code failed;
      std::filesystem::create_directories(root, failed);
      if (failed) throw UserError(fmt::format("{}: {}", root.string(), failed.message()));
      io::AtomicFile probe(root / "probe");  // never committed: leaves nothing behind
      probe.write("x");
      io::claim_checkpoint_root(root);
    } catch (...) {
      problem = std::current_exception();
    }
  }
  bool fine = runtime.ranks() == 1 ? !problem : agree(!problem);
  if (problem) std::rethrow_exception(problem);
  if (!fine) throw UserError(fmt::format("rank 0 cannot write checkpoints to {}", root.string()));
}

bool has_checkpoint(const std::filesystem::path& root) {
  return !io::list_checkpoints(root).empty();
}

CheckpointInfo checkpoint_info(const std::filesystem::path& path) {
  io::Checkpoint checkpoint = open(path);
  return {checkpoint.path(), checkpoint.step(), checkpoint.metadata()};
}

CheckpointInfo load_checkpoint(const StateDict& tensors, const std::filesystem::path& path,
                               const LoadOptions& options) {
  io::Checkpoint checkpoint = open(path);
  StateDict values;
  for (const io::Checkpoint::Tensor& t : checkpoint.tensors()) {
    if (!options.strict && !tensors.contains(t.name)) continue;
    std::vector<std::byte> bytes(static_cast<size_t>(product(t.shape)) * itemsize(t.dtype));
    checkpoint.read(t.name, bytes);
    values.emplace(t.name, Tensor(bytes, Ints(t.shape), t.dtype));
  }
  load(tensors, values, options);
  auto random = checkpoint.metadata().find(kRandomKey);
  if (random != checkpoint.metadata().end()) restore_random(random->second);
  return {checkpoint.path(), checkpoint.step(), checkpoint.metadata()};
}

}  // namespace tinyshard::nn
