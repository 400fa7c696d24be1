// Checkpoints of a job of any number of ranks: there whole or not at all, whenever it is killed.
//
//   root/step-00001234/part-00000-of-00002.safetensors     one per rank, plain safetensors
//                      part-00001-of-00002.safetensors
//                      model.safetensors.index.json        when no tensor is cut: other tools load
//                      manifest.json                          every slice of the set with its place
//                                                             and digest; written last
//
// A save writes all of this into root/step-00001234.<job>.tinyshard-tmp, each file synced, then
// renames the folder and syncs root. So a folder named step-<digits> is complete unless something
// else damaged it, and a kill leaves at most a temporary folder, which the next save removes. A
// step saved again becomes step-00001234-r2: nothing is ever overwritten. Two saves cannot meet in
// one root: rank 0 holds a lock there, during a save or for its life (claim_checkpoint_root).
//
// Reading assembles any box of any tensor from the slices, whatever the number of ranks was, and
// reads no more files than it needs. Digests are checked as slices are read, once each, and those
// of the parts' headers when the checkpoint is opened.
#pragma once
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/dtype/dtype.h"
#include "io/safetensors.h"

namespace tinyshard::io {

// True on all ranks if all ranks pass true: a barrier that carries one bit (all_reduce min of one
// integer).
using Agree = std::function<bool(bool)>;
// Returns the first text of all ranks that is not empty, behind whose it is; each rank calls
// it after they did not agree.
using FirstReason = std::function<std::string(std::string_view own)>;
using Warn = std::function<void(std::string_view)>;

struct CheckpointOptions {
  int rank = 0, ranks = 1;
  Agree agree = {};               // needed when ranks > 1
  FirstReason first_reason = {};  // without it the errors of other ranks do not say who failed
  int keep = 3;  // how many checkpoints stay, at least 1; older ones go after a commit
  // Characters of [A-Za-z0-9_-]; the same on all ranks. Marks temporaries as ours to remove.
  std::string job = "job";
  Warn warn = {};  // a sentence about what was left alone or could not be removed
};

// The error of a rank that could not write its part because another rank had failed before.
class FailedElsewhere : public UserError {
 public:
  using UserError::UserError;
};

// Makes one save. All ranks construct a writer with the same root and step, add tensors and commit;
// bytes are borrowed until then. Not for use by several threads at once.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path root, int64_t step, CheckpointOptions options = {});

  // A tensor that every rank holds whole. All ranks add the same ones in the same order; each is
  // written by one of them, so that all write about as much.
  void add(TensorView tensor);

  // This rank's piece of a tensor of shape `global_shape`: a box at `offset`. Several pieces of one
  // tensor are fine; pieces of all ranks together must cover it, without partial overlap (equal
  // pieces are kept once).
  void add_slice(TensorView piece, std::vector<int64_t> global_shape, std::vector<int64_t> offset);

  // The same of a piece whose bytes come when it is written: `read` gives them in their order, in as
  // many pieces as it likes. Pieces are read and written by several threads at once.
  using Put = std::function<void(std::span<const std::byte>)>;
  using Read = std::function<void(const Put&)>;
  void add_slice(TensorInfo piece, std::vector<int64_t> global_shape, std::vector<int64_t> offset,
                 Read read);

  // Writes and commits, on all ranks together. Returns the folder of the checkpoint. If any rank
  // fails, all throw, the one at fault with the reason, and the previous checkpoints stand as
  // before.
  std::filesystem::path commit(const Metadata& metadata = {});

  // The same in two halves, for a save beside other work. All ranks begin together, which is quick;
  // returns the folder that the checkpoint will be. Then each rank calls finish(), from any thread
  // and without `agree`: it writes, and rank 0 waits until the parts of all others lie in the folder
  // and commits. A rank that fails leaves a note there for rank 0, which then removes the folder, so
  // that those that still write fail as well: with FailedElsewhere. So rank 0 knows how the save
  // ended, others only that their part is written.
  std::filesystem::path begin();
  struct Patience {
    std::chrono::milliseconds for_others = std::chrono::minutes(5);  // from the last part that came
    const std::atomic<bool>* give_up = nullptr;
  };
  void finish(const Metadata& metadata, const Patience& patience);
  void finish(const Metadata& metadata = {}) { finish(metadata, {}); }

 private:
  using Stage = std::function<void()>;
  void run_stage(bool takes_part, std::string_view elsewhere, const Stage& work);
  void abandon();
  void publish();
  void await_parts(const Patience& patience) const;
  int next_revision() const;  // of this step

  struct Piece {
    TensorInfo info;
    std::vector<int64_t> global_shape, offset;
    uint64_t bytes;
    Read read;
  };

  void prepare();
  void write_part();
  // Digests of the pieces, which lie in the file as `layout` says.
  std::vector<uint64_t> write_pieces(AtomicFile& file, const SafetensorsLayout& layout) const;
  void write_manifest(const Metadata& metadata);
  void prune();
  void warn(std::string_view sentence) const;

  std::filesystem::path root_, temporary_, committed_;
  int64_t step_;
  CheckpointOptions options_;
  std::vector<Piece> pieces_;
  std::set<std::string> whole_names_;
  std::vector<uint64_t> load_;  // bytes given to each rank by add()
  Fd lock_;
  bool made_temporary_ = false;
};

// Creates `root` if need be; IoError if checkpoints cannot be saved there. For the start of a
// program, so that it does not learn of it an hour later.
void check_checkpoint_root(const std::filesystem::path& root);

// From now on and until this process ends, nobody else saves to `root`, which is created if need
// be: another process that claims it or saves there gets a UserError, between the saves of this
// one, too. UserError where another process holds it. Where the file system has no locks, nothing.
void claim_checkpoint_root(const std::filesystem::path& root);

struct CheckpointPath {
  std::filesystem::path path;
  int64_t step = 0;
  int revision = 1;
};
// Folders under `root` that carry a checkpoint's name, newest first; complete or not. Empty if
// there is no root.
std::vector<CheckpointPath> list_checkpoints(const std::filesystem::path& root);

// Tells if a safetensors file with these texts is of a checkpoint and holds parts of tensors, of
// which the first has the tensor's own name.
bool holds_parts(const Metadata& metadata);

struct CheckpointReadOptions {
  bool check_digests = true;  // of headers when it is opened, of each slice when it is first read
  bool check_all = false;     // of everything, when the checkpoint is opened
  Warn warn = {};             // a sentence for each checkpoint that latest() passes over, and why
};

// A committed checkpoint, opened for reading. Reading is const and may be done by many threads.
class Checkpoint {
 public:
  // A box of a tensor and where its bytes are.
  struct Slice {
    std::vector<int64_t> offset, shape;
    uint32_t part = 0;
    uint64_t begin = 0, end = 0;  // in the part's file
    uint64_t digest = 0;
    size_t index = 0;  // among all slices of the checkpoint
  };
  struct Tensor {
    std::string name;
    DType dtype = DType::F32;
    std::vector<int64_t> shape;
    std::vector<Slice> slices;  // disjoint, covering all of it, none empty
  };
  struct Part {
    std::filesystem::path path;
    uint64_t bytes = 0, header_bytes = 0, header_digest = 0;
  };

  // `folder` is one checkpoint. FormatError or IoError if it is torn: a file is missing or has
  // another size, or the manifest, the index or a part's header is damaged.
  explicit Checkpoint(const std::filesystem::path& folder, CheckpointReadOptions options = {});

  // The newest complete checkpoint under `root`, or nothing. In a job of many ranks one asks, and
  // tells the others the path.
  static std::optional<Checkpoint> latest(const std::filesystem::path& root,
                                          const CheckpointReadOptions& options = {});
  // Opens what a user may name: a checkpoint, or a root (its newest). UserError says what was found
  // instead.
  static Checkpoint find(const std::filesystem::path& path,
                         const CheckpointReadOptions& options = {});

  const std::filesystem::path& path() const { return path_; }
  int64_t step() const { return step_; }
  const Metadata& metadata() const { return metadata_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }  // sorted by name
  const std::vector<Part>& parts() const { return parts_; }

  const Tensor* find_tensor(std::string_view name) const;
  const Tensor& tensor(std::string_view name) const;  // UserError, with the nearest name

  // Fills `out` with the box at `offset` of `shape`, row-major. `out` has exactly its size.
  void read_slice(std::string_view name, std::span<const int64_t> offset,
                  std::span<const int64_t> shape, std::span<std::byte> out) const;
  void read(std::string_view name, std::span<std::byte> out) const;

  // Reads everything and compares the digests; the first difference is a FormatError with file and
  // tensor.
  void verify() const;

 private:
  struct Checked;  // which slices have been compared with their digests

  void read_piece(const Tensor& tensor, const Slice& slice, std::span<const int64_t> offset,
                  std::span<const int64_t> shape, std::span<std::byte> out) const;
  bool must_check(const Slice& slice) const;
  void compare_digest(const Tensor& tensor, const Slice& slice, uint64_t digest) const;

  std::filesystem::path path_;
  CheckpointReadOptions options_;
  int64_t step_ = 0;
  Metadata metadata_;
  std::vector<Tensor> tensors_;
  std::vector<Part> parts_;
  std::shared_ptr<Checked> checked_;
};

}  // namespace tinyshard::io
