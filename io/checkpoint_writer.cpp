// A save as its ranks go through it (io/checkpoint.h shows the folder that it makes). Rank 0 takes
// the lock, removes what dead jobs left and makes the temporary folder; each rank writes and syncs
// its part; rank 0 checks the parts' headers, writes the manifest and renames the folder. After
// each stage all ranks learn whether it worked everywhere (run_stage); a save that failed on one of
// them is an error on all, and leaves at most a temporary folder.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/file_jobs.h"
#include "io/checked.h"
#include "io/checkpoint_internal.h"
#include "io/digest.h"
#include "io/json.h"

namespace tinyshard::io {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kLockName = ".tinyshard-lock";

// Returns whether a file in a folder of ours has a name that we give.
bool is_ours(const fs::directory_entry& entry) {
  const std::string name = entry.path().filename().native();
  return entry.symlink_status().type() == fs::file_type::regular &&
         (is_part_name(name) || name == kManifestName || name == kIndexName ||
          name.ends_with(kTempSuffix));
}

// A sentence about the first entry of `folder` that is not ours, if there is one.
std::optional<std::string> foreign_entry(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (!is_ours(entry)) {
      return fmt::format("{} is left: {} in it is not part of a checkpoint", folder.native(),
                         entry.path().filename().native());
    }
  }
  return std::nullopt;
}

// Removes a temporary folder with the files of ours in it, or answers with a sentence why not.
std::optional<std::string> remove_temporary(const fs::path& folder) {
  try {
    if (fs::symlink_status(folder).type() != fs::file_type::directory) return std::nullopt;
    if (auto foreign = foreign_entry(folder)) return foreign;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      fs::remove(entry.path());
    }
    fs::remove(folder);
  } catch (const fs::filesystem_error& error) {
    return fmt::format("cannot remove {}: {}", folder.native(), error.code().message());
  }
  return std::nullopt;
}

bool valid_job(std::string_view job) {
  return !job.empty() && job.size() <= 64 && std::all_of(job.begin(), job.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_';
  });
}

// The job in the name step-<digits>.<job>.tinyshard-tmp of a temporary folder.
std::optional<std::string> job_of_temporary(const fs::path& path) {
  std::string name = path.filename().native();
  if (!name.ends_with(kTempSuffix)) return std::nullopt;
  name.resize(name.size() - kTempSuffix.size());
  const size_t dot = name.find('.');
  if (dot == name.npos || !parse_checkpoint_name(name.substr(0, dot))) return std::nullopt;
  return name.substr(dot + 1);
}

// Ranks that hold the same box wrote it more than once: the first is kept.
void drop_copies(std::vector<Checkpoint::Slice>& slices) {
  std::stable_sort(slices.begin(), slices.end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.shape < b.shape;
  });
  const auto same = [](const auto& a, const auto& b) {
    return a.offset == b.offset && a.shape == b.shape;
  };
  slices.erase(std::unique(slices.begin(), slices.end(), same), slices.end());
}

Fd open_lock(const fs::path& root) {
  const fs::path path = root / kLockName;
  Fd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock) throw IoError("write", path, errno);
  return lock;
}

// The locks that this process holds until it ends, by claim_checkpoint_root.
struct Claims {
  std::mutex mutex;
  std::vector<Fd> locks;

  static Claims& get() {
    static auto& claims = *new Claims;  // the kernel lets go of them
    return claims;
  }
  // With the mutex held.
  bool hold(const Fd& lock) const {
    struct stat wanted{};
    if (::fstat(lock.get(), &wanted) != 0) return false;
    return std::ranges::any_of(locks, [&](const Fd& claim) {
      struct stat held{};
      return ::fstat(claim.get(), &held) == 0 && held.st_dev == wanted.st_dev &&
             held.st_ino == wanted.st_ino;
    });
  }
};

// True when nobody else saves to `root` while `lock` is open. False where the file system has no
// locks. UserError where another process holds it.
bool take_lock(const Fd& lock, const fs::path& root) {
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno != EWOULDBLOCK) return false;
  Claims& claims = Claims::get();
  const std::lock_guard guard(claims.mutex);
  // Saves of the process that holds the folder keep each other out by a lock of another kind.
  struct flock alone{};
  alone.l_type = F_WRLCK;
  if (claims.hold(lock) && ::fcntl(lock.get(), F_OFD_SETLK, &alone) == 0) return true;
  throw UserError(fmt::format(
      "checkpoint: another process is saving to {}; two jobs need two folders", root.native()));
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path root, int64_t step, CheckpointOptions options)
    : root_(std::move(root)), step_(step), options_(std::move(options)) {
  const auto& o = options_;
  if (step < 0) throw UserError(fmt::format("checkpoint: step {} is negative", step));
  if (o.ranks < 1 || o.rank < 0 || o.rank >= o.ranks) {
    throw UserError(fmt::format("checkpoint: rank {} of {} ranks", o.rank, o.ranks));
  }
  if (o.ranks > 1 && !o.agree)
    throw UserError(fmt::format("checkpoint: {} ranks need `agree`", o.ranks));
  if (o.keep < 1)
    throw UserError(fmt::format("checkpoint: keep is {}, at least 1 has to stay", o.keep));
  if (!valid_job(o.job)) {
    throw UserError(
        fmt::format("checkpoint: the job {} is not 1 to 64 of A-Z a-z 0-9 _ -", in_quotes(o.job)));
  }
  load_.resize(static_cast<size_t>(o.ranks));
  temporary_ = root_ / fmt::format("{}.{}{}", checkpoint_name(step, 1), o.job, kTempSuffix);
}

void CheckpointWriter::add(TensorView tensor) {
  if (!whole_names_.insert(tensor.name).second) {
    throw UserError(fmt::format("checkpoint: tensor {} is added twice", in_quotes(tensor.name)));
  }
  const auto least = std::min_element(load_.begin(), load_.end());
  *least += tensor.bytes.size() + 1;  // + 1: empty tensors and scalars are spread, too
  if (least - load_.begin() != options_.rank) return;
  const std::vector<int64_t> shape = tensor.shape, offset(tensor.shape.size(), 0);
  add_slice(std::move(tensor), shape, offset);
}

void CheckpointWriter::add_slice(TensorView piece, std::vector<int64_t> global_shape,
                                 std::vector<int64_t> offset) {
  const TensorInfo info{piece.name, piece.dtype, piece.shape};
  if (checked_bytes(piece.shape, itemsize(piece.dtype)) != piece.bytes.size()) {
    throw UserError(fmt::format("checkpoint: tensor {} is {} [{}], but comes with {} bytes",
                                in_quotes(piece.name), name(piece.dtype),
                                fmt::join(piece.shape, ", "), piece.bytes.size()));
  }
  add_slice(info, std::move(global_shape), std::move(offset),
            [bytes = piece.bytes](const Put& put) { put(bytes); });
}

void CheckpointWriter::add_slice(TensorInfo piece, std::vector<int64_t> global_shape,
                                 std::vector<int64_t> offset, Read read) {
  if (piece.shape.size() != global_shape.size() || offset.size() != global_shape.size()) {
    throw UserError(fmt::format(
        "checkpoint: tensor {}: a slice of shape [{}] at [{}] of a tensor of shape [{}]",
        in_quotes(piece.name), fmt::join(piece.shape, ", "), fmt::join(offset, ", "),
        fmt::join(global_shape, ", ")));
  }
  const auto bytes = checked_bytes(piece.shape, itemsize(piece.dtype));
  if (!bytes) {
    throw UserError(fmt::format("checkpoint: tensor {} is too large: {} [{}]",
                                in_quotes(piece.name), name(piece.dtype),
                                fmt::join(piece.shape, ", ")));
  }
  pieces_.push_back(
      {std::move(piece), std::move(global_shape), std::move(offset), *bytes, std::move(read)});
}

void CheckpointWriter::warn(std::string_view sentence) const {
  if (options_.warn) options_.warn(sentence);
}

// Rank 0, before anyone writes: the lock, what dead jobs left, and the temporary folder.
void CheckpointWriter::prepare() {
  std::error_code ignored;
  const bool is_new = !fs::exists(root_, ignored);
  make_folders(root_);
  if (is_new) {
    const fs::path parent = fs::absolute(root_).lexically_normal().parent_path();
    sync_folder(parent.empty() ? fs::path("/") : parent);
  }

  const fs::path lock_path = root_ / kLockName;
  lock_ = open_lock(root_);
  std::set<std::string> jobs = {options_.job};
  if (take_lock(lock_, root_)) {
    // The lock file lists the jobs that saved here. None of them does now: what they left is
    // garbage.
    std::istringstream lines(read_file(lock_path, 1 << 20));
    for (std::string line; std::getline(lines, line);) {
      if (valid_job(line)) jobs.insert(line);
    }
  }  // else only our own job's leftovers are known to be garbage

  std::vector<fs::path> leftovers;
  std::error_code error;
  for (fs::directory_iterator it(root_, error), end; !error && it != end; it.increment(error)) {
    const auto job = job_of_temporary(it->path());
    if (job && jobs.contains(*job)) leftovers.push_back(it->path());
  }
  if (error) throw IoError("list folder", root_, error.value());
  bool all_gone = true;
  for (const fs::path& leftover : leftovers) {
    if (const auto problem = remove_temporary(leftover)) {
      warn(*problem);
      all_gone = false;
    }
  }
  std::string text;
  if (all_gone) jobs = {options_.job};
  for (const std::string& job : jobs) text += job + "\n";
  if (::ftruncate(lock_.get(), 0) != 0 || ::lseek(lock_.get(), 0, SEEK_SET) != 0) {
    throw IoError("write", lock_path, errno);
  }
  write_all(lock_.get(), std::as_bytes(std::span(text)), lock_path);

  // Left by an earlier try of the same step, with something foreign in it.
  if (fs::exists(temporary_, ignored)) {
    throw UserError(fmt::format("checkpoint: {} is in the way", temporary_.native()));
  }
  made_temporary_ = true;
  make_folders(temporary_);
}

// Large pieces have a job each, small ones share one; the largest come first, so that all threads
// end together.
std::vector<uint64_t> CheckpointWriter::write_pieces(AtomicFile& file,
                                                     const SafetensorsLayout& layout) const {
  constexpr uint64_t kJobBytes = 4 << 20;
  constexpr size_t kAtOnce = 1 << 20;  // digested and written while the processor still has them
  std::vector<size_t> order(pieces_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t p) { return pieces_[p].bytes; });
  std::vector<std::pair<size_t, size_t>> jobs;  // of `order`, from and to
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    for (uint64_t bytes = 0; last < order.size() && bytes < kJobBytes;)
      bytes += pieces_[order[last++]].bytes;
    jobs.emplace_back(first, last);
    first = last;
  }
  std::vector<uint64_t> digests(pieces_.size());
  run_file_jobs(jobs.size(), [&](size_t j) {
    int64_t written = 0;
    for (size_t i = jobs[j].first; i < jobs[j].second; ++i) {
      const Piece& piece = pieces_[order[i]];
      Digest digest;
      uint64_t done = 0;
      piece.read([&](std::span<const std::byte> bytes) {
        for (size_t at = 0; at < bytes.size(); at += kAtOnce) {
          const auto some = bytes.subspan(at, std::min(kAtOnce, bytes.size() - at));
          digest.update(some);
          file.write_at(layout.offsets[order[i]] + done, some);
          done += some.size();
        }
      });
      check_internal(done == piece.bytes, "a piece comes whole");
      digests[order[i]] = digest.value();
      written += static_cast<int64_t>(done);
    }
    return written;
  });
  return digests;
}

// Every rank: its pieces in one file, the header last. The slices and their digests go into it,
// where rank 0 reads them back; the digests are of the bytes in memory, so that a byte the disk
// changes is found. They are known when the pieces are written, but their length is before.
void CheckpointWriter::write_part() {
  std::vector<TensorInfo> infos;
  std::set<std::string> keys;
  json slices = json::object();
  for (const Piece& piece : pieces_) {
    const bool whole = piece.info.shape == piece.global_shape;
    std::string key = piece.info.name;
    for (int n = 1; !keys.insert(key).second; ++n) key = fmt::format("{}#{}", piece.info.name, n);
    if (!whole || key != piece.info.name) {
      slices[key]["tensor"] = piece.info.name;
      slices[key]["shape"] = piece.global_shape;
      slices[key]["offset"] = piece.offset;
    }
    slices[key]["xxh64"] = digest_text(0);
    infos.push_back({key, piece.info.dtype, piece.info.shape});
  }
  AtomicFile file(temporary_ / part_name(options_.rank, options_.ranks), options_.job);
  Metadata metadata = {{"format", "pt"}, {"tinyshard.step", std::to_string(step_)}};
  auto lay_out = [&] {
    try {
      metadata[std::string(kSlicesKey)] = slices.dump();
    } catch (const json::exception&) {
      throw UserError("checkpoint: a tensor's name is not UTF-8");
    }
    return layout_safetensors(infos, metadata);
  };
  const SafetensorsLayout without_digests = lay_out();
  const std::vector<uint64_t> digests = write_pieces(file, without_digests);
  for (size_t i = 0; i < infos.size(); ++i)
    slices[infos[i].name]["xxh64"] = digest_text(digests[i]);
  const SafetensorsLayout layout = lay_out();
  check_internal(layout.bytes == without_digests.bytes, "digests have one length");
  file.write_at(0, std::as_bytes(std::span(layout.header)));
  file.commit();
}

// Rank 0, when all parts are on the disk: what they hold, checked, listed and committed.
void CheckpointWriter::write_manifest(const Metadata& metadata) {
  const std::string label = fmt::format("checkpoint of step {}", step_);
  Manifest manifest{step_, metadata, {}, {}, {}};
  std::map<std::string, Checkpoint::Tensor> tensors;
  std::map<std::string, std::string> file_of_whole;  // tensors that are whole, under their own name
  for (int rank = 0; rank < options_.ranks; ++rank) {
    const std::string file_name = part_name(rank, options_.ranks);
    const SafetensorsFile file(temporary_ / file_name);
    const auto header = file.file_bytes().first(static_cast<size_t>(file.header_bytes()));
    manifest.parts.push_back(
        {file_name, file.file_bytes().size(), header.size(), digest_of(header)});
    try {
      std::string why;
      const json slices = parse_json(file.metadata().at(std::string(kSlicesKey)), why);
      if (slices.is_discarded()) {
        throw FormatError(file.path().native(), "the list of its slices: " + why);
      }
      for (const TensorEntry& entry : file.tensors()) {
        const json& note = slices.at(entry.name);
        Checkpoint::Tensor whole{
            note.value("tensor", entry.name), entry.dtype, note.value("shape", entry.shape), {}};
        Checkpoint::Tensor& tensor = tensors.try_emplace(whole.name, whole).first->second;
        if (tensor.dtype != whole.dtype || tensor.shape != whole.shape) {
          throw UserError(fmt::format("{}: tensor {} is {} [{}] on one rank and {} [{}] on rank {}",
                                      label, in_quotes(whole.name), name(tensor.dtype),
                                      fmt::join(tensor.shape, ", "), name(whole.dtype),
                                      fmt::join(whole.shape, ", "), rank));
        }
        if (entry.name == whole.name && entry.shape == whole.shape) {
          file_of_whole.try_emplace(whole.name, file_name);
        }
        if (entry.bytes.empty()) continue;  // an empty shard says only that the tensor exists
        Checkpoint::Slice& slice = tensor.slices.emplace_back();
        slice.offset = note.value("offset", std::vector<int64_t>(entry.shape.size(), 0));
        slice.shape = entry.shape;
        slice.part = static_cast<uint32_t>(rank);
        slice.begin = entry.offset;
        slice.end = entry.offset + entry.bytes.size();
        if (!parse_digest(note.at("xxh64").get<std::string>(), slice.digest)) {
          throw FormatError(file.path().native(), "its digests do not read");
        }
      }
    } catch (const std::out_of_range&) {
      throw FormatError(file.path().native(), "its slices are not listed");
    } catch (const json::exception&) {
      throw FormatError(file.path().native(), "the list of its slices does not read");
    }
  }
  uint64_t total = 0;
  for (auto& [name, tensor] : tensors) {
    drop_copies(tensor.slices);
    check_tiling(tensor, label);
    for (const auto& slice : tensor.slices) total += slice.end - slice.begin;
    manifest.tensors.push_back(std::move(tensor));
  }

  if (file_of_whole.size() == tensors.size()) {
    const std::string index_of_whole = index_text(total, file_of_whole);
    AtomicFile index(temporary_ / kIndexName, options_.job);
    index.write(index_of_whole);
    index.commit();
    manifest.index_digest = digest_of(index_of_whole);
  }
  std::string text;
  try {
    text = manifest_text(manifest);
  } catch (const json::exception&) {
    throw UserError(label + ": the metadata is not UTF-8");
  }
  AtomicFile file(temporary_ / kManifestName, options_.job);
  file.write(text);
  file.commit();  // syncs the temporary folder, too

  committed_ = root_ / checkpoint_name(step_, next_revision());
  if (::rename(temporary_.c_str(), committed_.c_str()) != 0) {
    throw IoError("create", committed_, errno);
  }
}

// Rank 0, after the commit: all but the newest `keep` complete checkpoints go. A torn one counts
// for nothing, and goes when it is older than what is kept. The one just committed stays, whatever
// else is there.
void CheckpointWriter::prune() {
  int kept = 0;
  std::optional<int64_t> last_kept;  // its step
  for (const CheckpointPath& old : list_checkpoints(root_)) {
    if (old.path == committed_) {
      ++kept;
      last_kept = old.step;
      continue;
    }
    if (kept < options_.keep && last_kept != old.step) {
      try {
        Checkpoint complete(old.path);
        ++kept;
        last_kept = old.step;
        if (old.step > step_) {
          warn(fmt::format(
              "{} is of a later step than the checkpoint just saved, and counts as the newest",
              old.path.native()));
        }
      } catch (const Error& error) {
        warn(fmt::format("{} is left, though it is not a complete checkpoint: {}",
                         old.path.native(), error.what()));
      }
      continue;
    }
    if (fs::symlink_status(old.path).type() != fs::file_type::directory) continue;
    if (const auto foreign = foreign_entry(old.path)) {
      warn(*foreign);
      continue;
    }
    // Renamed first, so that a kill does not leave half a checkpoint under a checkpoint's name.
    const fs::path doomed =
        root_ / fmt::format("{}.{}{}", old.path.filename().native(), options_.job, kTempSuffix);
    fs::rename(old.path, doomed);
    if (const auto problem = remove_temporary(doomed)) warn(*problem);
  }
}

void check_checkpoint_root(const fs::path& root) {
  make_folders(root);
  check_writable(root / kManifestName);
}

void claim_checkpoint_root(const fs::path& root) {
  make_folders(root);
  Fd lock = open_lock(root);
  Claims& claims = Claims::get();
  {
    const std::lock_guard guard(claims.mutex);
    if (claims.hold(lock)) return;
  }
  if (!take_lock(lock, root)) return;
  const std::lock_guard guard(claims.mutex);
  claims.locks.push_back(std::move(lock));
}

// Does a rank's part of a step of the save, then tells all ranks whether it worked everywhere. The
// others' error says `elsewhere` if it did not.
void CheckpointWriter::run_stage(bool takes_part, std::string_view elsewhere, const Stage& work) {
  std::exception_ptr error;
  std::string reason;
  try {
    if (takes_part) work();
  } catch (const std::exception& problem) {
    error = std::current_exception();
    reason = problem.what();
  }
  const bool fine = options_.agree ? options_.agree(error == nullptr) : error == nullptr;
  if (fine) return;
  abandon();
  if (options_.first_reason) reason = options_.first_reason(reason);
  if (error) std::rethrow_exception(error);
  throw UserError(fmt::format("checkpoint of step {} in {}: {}{}", step_, root_.native(), elsewhere,
                              reason.empty() ? "" : fmt::format(" ({})", reason)));
}

void CheckpointWriter::abandon() {
  // A folder that was there before may be another job's, which is saving right now.
  if (made_temporary_) {
    // Renamed first: a rank that still writes finds the folder gone at once, and adds nothing to it.
    fs::path folder = temporary_;
    try {
      const std::string other_name = checkpoint_name(step_, next_revision() + 1);
      const fs::path doomed = root_ / fmt::format("{}.{}{}", other_name, options_.job, kTempSuffix);
      fs::rename(folder, doomed);
      folder = doomed;
    } catch (const std::exception&) {
      folder = temporary_;  // removed where it is
    }
    if (const auto problem = remove_temporary(folder)) warn(*problem);
  }
  lock_ = Fd();
}

// Rank 0, when the checkpoint is there: the old ones go, and others may save.
void CheckpointWriter::publish() {
  try {
    prune();
  } catch (const std::exception& error) {
    warn(error.what());  // the checkpoint is there; the old ones wait for the next save
  }
  lock_ = Fd();
}

namespace {
constexpr std::string_view kFailed =
    "another rank could not write its part; nothing was committed, and the previous checkpoint "
    "stands";

fs::path failure_note(const fs::path& folder, int rank, int ranks) {
  return folder / fmt::format("{}.failed{}", part_name(rank, ranks), kTempSuffix);
}
}  // namespace

fs::path CheckpointWriter::commit(const Metadata& metadata) {
  const bool first = options_.rank == 0;
  run_stage(first, kFailed, [&] { prepare(); });
  run_stage(true, kFailed, [&] { write_part(); });
  run_stage(first, kFailed, [&] { write_manifest(metadata); });
  run_stage(first,
            "it is there and complete, but rank 0 could not see to it that a power loss leaves it",
            [&] { sync_renamed(committed_); });
  if (first) {
    publish();
    return committed_;
  }
  // Rank 0 knows the name; the others look. Where a network file system is slow to show it, they
  // give the name that a first save has.
  for (const CheckpointPath& found : list_checkpoints(root_)) {
    if (found.step == step_) return found.path;
  }
  return root_ / checkpoint_name(step_, 1);
}

fs::path CheckpointWriter::begin() {
  run_stage(options_.rank == 0, kFailed, [&] { prepare(); });
  return root_ / checkpoint_name(step_, next_revision());
}

void CheckpointWriter::finish(const Metadata& metadata, const Patience& patience) {
  const bool first = options_.rank == 0;
  try {
    write_part();
    if (!first) return;
    await_parts(patience);
    write_manifest(metadata);
  } catch (const std::exception& error) {
    if (first) {
      abandon();
    } else if (std::error_code gone; !fs::exists(temporary_, gone)) {
      // Rank 0 heard of another rank's failure first and removed what this one was writing to.
      throw FailedElsewhere(
          fmt::format("checkpoint of step {} in {}: {}", step_, root_.native(), kFailed));
    } else {
      try {
        write_file(failure_note(temporary_, options_.rank, options_.ranks), error.what());
      } catch (const std::exception& unheard) {
        warn(fmt::format("rank 0 learns of a failed save when it has no more patience: {}",
                         unheard.what()));
      }
    }
    throw;
  }
  try {
    sync_renamed(committed_);
  } catch (...) {
    lock_ = Fd();
    throw;
  }
  publish();
}

// Rank 0: parts come whole, by a rename.
void CheckpointWriter::await_parts(const Patience& patience) const {
  using Clock = std::chrono::steady_clock;
  auto fail = [&](const std::string& why) {
    return UserError(
        fmt::format("checkpoint of step {} in {}: {}; nothing was committed, and the "
                    "previous checkpoint stands",
                    step_, root_.native(), why));
  };
  Clock::time_point since = Clock::now();
  auto pause = std::chrono::milliseconds(1);
  for (int rank = 1; rank < options_.ranks;) {
    std::error_code ignored;
    if (fs::exists(temporary_ / part_name(rank, options_.ranks), ignored)) {
      ++rank;
      since = Clock::now();
      continue;
    }
    for (int other = rank; other < options_.ranks; ++other) {
      const fs::path note = failure_note(temporary_, other, options_.ranks);
      if (fs::exists(note, ignored))
        throw fail(
            fmt::format("rank {} could not write its part: {}", other, read_file(note, 1 << 16)));
    }
    if (patience.give_up && patience.give_up->load())
      throw fail(fmt::format("given up before the part of rank {} was there", rank));
    if (Clock::now() - since > patience.for_others) {
      throw fail(fmt::format("the part of rank {} was not there after {} s", rank,
                             std::chrono::duration<double>(patience.for_others).count()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

int CheckpointWriter::next_revision() const {
  int revision = 1;
  for (const CheckpointPath& old : list_checkpoints(root_)) {
    if (old.step == step_) revision = std::max(revision, old.revision + 1);
  }
  return revision;
}

bool holds_parts(const Metadata& metadata) {
  const auto text = metadata.find(std::string(kSlicesKey));
  if (text == metadata.end()) return false;
  std::string why;
  const json slices = parse_json(text->second, why);
  return std::ranges::any_of(slices, [](const json& slice) { return slice.contains("tensor"); });
}

}  // namespace tinyshard::io
