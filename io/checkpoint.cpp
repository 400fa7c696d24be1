// A box is put together from the slices that meet it, in windows of a megabyte. The first read of a
// slice reads all of it and compares its digest; later ones read only from the first run of bytes
// wanted to the last. A window that lies within one run is read straight into its place. Damaged
// checkpoints are passed over, with a warning, by those who ask for the newest.
#include "io/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include <fmt/format.h>

#include "io/checked.h"
#include "io/checkpoint_internal.h"
#include "io/digest.h"

namespace tinyshard::io {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxManifest = 1 << 30;
constexpr uint64_t kWindow = 1 << 20;  // bytes read and digested at a time

// The part of a slice that lies in a box, as runs of bytes that are contiguous in the slice and in
// the box. Runs come in the order of the slice's bytes.
class Runs {
 public:
  Runs(std::span<const int64_t> slice_offset, std::span<const int64_t> slice_shape,
       std::span<const int64_t> box_offset, std::span<const int64_t> box_shape, uint64_t itemsize) {
    const size_t dims = slice_shape.size();
    std::vector<uint64_t> extent(dims);
    uint64_t from_stride = itemsize, to_stride = itemsize;
    std::vector<uint64_t> from_strides(dims), to_strides(dims);
    for (size_t d = dims; d-- > 0;) {
      const int64_t begin = std::max(slice_offset[d], box_offset[d]);
      const int64_t end = std::min(slice_offset[d] + slice_shape[d], box_offset[d] + box_shape[d]);
      if (end <= begin) return;  // they do not meet
      extent[d] = static_cast<uint64_t>(end - begin);
      from_strides[d] = from_stride;
      to_strides[d] = to_stride;
      from_ += static_cast<uint64_t>(begin - slice_offset[d]) * from_stride;
      to_ += static_cast<uint64_t>(begin - box_offset[d]) * to_stride;
      from_stride *= static_cast<uint64_t>(slice_shape[d]);
      to_stride *= static_cast<uint64_t>(box_shape[d]);
    }
    // Inner dimensions that are whole in both make one run, with the part of the next one.
    length_ = itemsize;
    size_t d = dims;
    while (d > 0) {
      --d;
      length_ *= extent[d];
      if (extent[d] != static_cast<uint64_t>(slice_shape[d]) ||
          extent[d] != static_cast<uint64_t>(box_shape[d]))
        break;
    }
    for (size_t outer = 0; outer < d; ++outer) {
      loops_.push_back({extent[outer], from_strides[outer], to_strides[outer], 0});
    }
    more_ = true;
  }

  bool more() const { return more_; }
  uint64_t from() const { return from_; }  // in the slice
  uint64_t to() const { return to_; }      // in the box
  uint64_t length() const { return length_; }

  void next() {
    for (size_t i = loops_.size(); i-- > 0;) {
      Loop& loop = loops_[i];
      from_ += loop.from_stride;
      to_ += loop.to_stride;
      if (++loop.at < loop.extent) return;
      from_ -= loop.extent * loop.from_stride;
      to_ -= loop.extent * loop.to_stride;
      loop.at = 0;
    }
    more_ = false;
  }

  // Where the last run ends, in the slice.
  uint64_t end() const {
    uint64_t last = from_ + length_;
    for (const Loop& loop : loops_) last += (loop.extent - 1) * loop.from_stride;
    return last;
  }

 private:
  struct Loop {
    uint64_t extent, from_stride, to_stride, at;
  };
  std::vector<Loop> loops_;
  uint64_t from_ = 0, to_ = 0, length_ = 0;
  bool more_ = false;
};

std::string place(const Checkpoint::Tensor& tensor, const Checkpoint::Slice& slice) {
  return fmt::format("tensor {} {} (bytes {} to {})", in_quotes(tensor.name),
                     box_text(slice.offset, slice.shape), slice.begin, slice.end);
}

// The last of the sizes may have changed since the manifest was read: the file is opened anew each
// time.
OpenFile open_part(const Checkpoint::Part& part) {
  OpenFile file = open_to_read(part.path);
  if (file.size != part.bytes) {
    throw FormatError(part.path.native(),
                      fmt::format("it has {} bytes, the manifest says {}: it was cut or replaced",
                                  file.size, part.bytes));
  }
  return file;
}

uint64_t digest_in(const OpenFile& file, const fs::path& path, uint64_t begin, uint64_t end) {
  Digest digest;
  std::vector<std::byte> window(static_cast<size_t>(std::min(kWindow, end - begin)));
  for (uint64_t at = begin; at < end; at += kWindow) {
    const auto bytes = std::span(window).first(static_cast<size_t>(std::min(kWindow, end - at)));
    read_at(file, at, bytes, path);
    digest.update(bytes);
  }
  return digest.value();
}

// Reading here needs neither the index nor a part's header, which the manifest repeats; other tools
// read them.
void check_index(const fs::path& path, uint64_t digest) {
  const OpenFile file = open_to_read(path);
  if (digest_in(file, path, 0, file.size) != digest)
    throw FormatError(path.native(), "it was altered after it was saved");
}

void check_header(const Checkpoint::Part& part, const OpenFile& file) {
  if (digest_in(file, part.path, 0, part.header_bytes) != part.header_digest) {
    throw FormatError(part.path.native(), "its header was altered after it was saved");
  }
}

}  // namespace

struct Checkpoint::Checked {
  explicit Checked(size_t slices) : done(slices) {}
  std::vector<std::atomic<bool>> done;
};

std::vector<CheckpointPath> list_checkpoints(const fs::path& root) {
  std::vector<CheckpointPath> found;
  std::error_code error;
  for (fs::directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    if (auto checkpoint = parse_checkpoint_name(it->path())) {
      found.push_back(std::move(*checkpoint));
    }
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    throw IoError("list folder", root, error.value());
  }
  std::sort(found.begin(), found.end(), [](const CheckpointPath& a, const CheckpointPath& b) {
    return a.step != b.step ? a.step > b.step : a.revision > b.revision;
  });
  return found;
}

Checkpoint::Checkpoint(const fs::path& folder, CheckpointReadOptions options)
    : path_(folder), options_(std::move(options)) {
  const fs::path manifest_path = path_ / kManifestName;
  Manifest manifest =
      parse_manifest(read_file(manifest_path, kMaxManifest), manifest_path.native());
  step_ = manifest.step;
  metadata_ = std::move(manifest.metadata);
  tensors_ = std::move(manifest.tensors);
  parts_ = std::move(manifest.parts);
  if (manifest.index_digest && options_.check_digests)
    check_index(path_ / kIndexName, *manifest.index_digest);
  for (Part& part : parts_) {
    part.path = path_ / part.path;
    const OpenFile file = open_part(part);
    if (options_.check_digests) check_header(part, file);
  }
  size_t slices = 0;
  for (Tensor& tensor : tensors_) {
    for (Slice& slice : tensor.slices) slice.index = slices++;
  }
  checked_ = std::make_shared<Checked>(slices);
  if (options_.check_all) verify();
}

std::optional<Checkpoint> Checkpoint::latest(const fs::path& root,
                                             const CheckpointReadOptions& options) {
  for (const CheckpointPath& candidate : list_checkpoints(root)) {
    try {
      return Checkpoint(candidate.path, options);
    } catch (const Error& error) {
      if (options.warn) {
        options.warn(fmt::format("{} is passed over: {}", candidate.path.native(), error.what()));
      }
    }
  }
  return std::nullopt;
}

Checkpoint Checkpoint::find(const fs::path& path, const CheckpointReadOptions& options) {
  std::error_code error;
  const auto type = fs::status(path, error).type();
  if (type == fs::file_type::not_found)
    throw UserError(fmt::format("no checkpoint: {} does not exist", path.native()));
  if (type != fs::file_type::directory) {
    throw UserError(fmt::format("no checkpoint: {} is not a folder", path.native()));
  }
  const fs::path named = path.has_filename() ? path : path.parent_path();  // "step-00000001/"
  if (fs::exists(path / kManifestName, error) || parse_checkpoint_name(named)) {
    return Checkpoint(path, options);
  }
  std::string passed_over;
  CheckpointReadOptions listening = options;
  listening.warn = [&](std::string_view sentence) {
    passed_over += fmt::format("\n  {}", sentence);
    if (options.warn) options.warn(sentence);
  };
  if (auto newest = latest(path, listening)) {
    newest->options_.warn = options.warn;
    return std::move(*newest);
  }
  throw UserError(
      fmt::format("no complete checkpoint in {}{}", path.native(),
                  passed_over.empty() ? ": it has no folder step-<number>" : ":" + passed_over));
}

const Checkpoint::Tensor* Checkpoint::find_tensor(std::string_view name) const {
  const auto it = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const Tensor& tensor, std::string_view wanted) { return tensor.name < wanted; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const Checkpoint::Tensor& Checkpoint::tensor(std::string_view name) const {
  if (const Tensor* tensor = find_tensor(name)) return *tensor;
  std::vector<std::string_view> names;
  names.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) names.push_back(tensor.name);
  const std::string nearest = nearest_name(name, names);
  throw UserError(fmt::format("checkpoint {} has no tensor {} ({} tensors{})", path_.native(),
                              in_quotes(name), tensors_.size(),
                              nearest.empty() ? "" : "; did you mean " + in_quotes(nearest) + "?"));
}

void Checkpoint::compare_digest(const Tensor& tensor, const Slice& slice, uint64_t digest) const {
  if (digest != slice.digest) {
    throw FormatError(
        parts_[slice.part].path.native(),
        fmt::format("{} was altered after it was saved: its digest is {}, the manifest says {}",
                    place(tensor, slice), digest_text(digest), digest_text(slice.digest)));
  }
  checked_->done[slice.index].store(true, std::memory_order_relaxed);
}

// Makes a pass over the slice: windows are read, digested if that is still to be done, and copied
// where they meet the box.
void Checkpoint::read_piece(const Tensor& tensor, const Slice& slice,
                            std::span<const int64_t> offset, std::span<const int64_t> shape,
                            std::span<std::byte> out) const {
  Runs runs(slice.offset, slice.shape, offset, shape, itemsize(tensor.dtype));
  if (!runs.more()) return;
  const Part& part = parts_[slice.part];
  const OpenFile file = open_part(part);
  const bool check =
      options_.check_digests && !checked_->done[slice.index].load(std::memory_order_relaxed);
  const uint64_t size = slice.end - slice.begin;
  const uint64_t end = check ? size : runs.end();
  uint64_t at = check ? 0 : runs.from();
  Digest digest;
  std::vector<std::byte> window;
  uint64_t copied = 0;  // of the current run
  while (at < end) {
    std::span<std::byte> bytes;
    const uint64_t count = std::min(kWindow, end - at);
    const bool direct =
        runs.more() && runs.from() + copied == at && runs.length() - copied >= count;
    if (direct) {  // the window is part of one run: no copy
      bytes = out.subspan(static_cast<size_t>(runs.to() + copied), static_cast<size_t>(count));
    } else {
      window.resize(static_cast<size_t>(kWindow));
      bytes = std::span(window).first(static_cast<size_t>(count));
    }
    read_at(file, slice.begin + at, bytes, part.path);
    if (check) digest.update(bytes);
    while (runs.more() && runs.from() + copied < at + count) {
      const uint64_t from = runs.from() + copied;
      const uint64_t length = std::min(runs.length() - copied, at + count - from);
      if (!direct) {
        std::memcpy(out.data() + runs.to() + copied, bytes.data() + (from - at),
                    static_cast<size_t>(length));
      }
      copied += length;
      if (copied < runs.length()) break;
      copied = 0;
      runs.next();
    }
    at += count;
    // Nothing between two runs is read, unless it is to be digested or too little to be worth a
    // seek.
    if (!check && runs.more() && copied == 0 && runs.from() > at) at = runs.from();
  }
  if (check) compare_digest(tensor, slice, digest.value());
}

void Checkpoint::read_slice(std::string_view name, std::span<const int64_t> offset,
                            std::span<const int64_t> shape, std::span<std::byte> out) const {
  const Tensor& wanted = tensor(name);
  const auto fail = [&](const std::string& why) {
    return UserError(fmt::format("checkpoint: tensor {} of shape [{}]: {}", in_quotes(name),
                                 fmt::join(wanted.shape, ", "), why));
  };
  if (offset.size() != wanted.shape.size() || shape.size() != wanted.shape.size()) {
    throw fail(fmt::format("a box of shape [{}] at [{}] has other dimensions",
                           fmt::join(shape, ", "), fmt::join(offset, ", ")));
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    if (offset[d] < 0 || shape[d] < 0 || offset[d] > wanted.shape[d] ||
        shape[d] > wanted.shape[d] - offset[d]) {
      throw fail(fmt::format("a box of shape [{}] at [{}] does not lie inside",
                             fmt::join(shape, ", "), fmt::join(offset, ", ")));
    }
  }
  const auto bytes = checked_bytes(shape, itemsize(wanted.dtype));
  if (!bytes || *bytes != out.size()) {
    throw fail(fmt::format("a box of shape [{}] does not have {} bytes", fmt::join(shape, ", "),
                           out.size()));
  }
  if (*bytes == 0) return;
  for (const Slice& slice : wanted.slices) read_piece(wanted, slice, offset, shape, out);
}

void Checkpoint::read(std::string_view name, std::span<std::byte> out) const {
  const Tensor& wanted = tensor(name);
  read_slice(name, std::vector<int64_t>(wanted.shape.size(), 0), wanted.shape, out);
}

void Checkpoint::verify() const {
  std::vector<std::vector<std::pair<const Tensor*, const Slice*>>> by_part(parts_.size());
  for (const Tensor& tensor : tensors_) {
    for (const Slice& slice : tensor.slices) by_part[slice.part].push_back({&tensor, &slice});
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Part& part = parts_[i];
    const OpenFile file = open_part(part);
    check_header(part, file);
    for (const auto& [tensor, slice] : by_part[i]) {
      compare_digest(*tensor, *slice, digest_in(file, part.path, slice->begin, slice->end));
    }
  }
}

}  // namespace tinyshard::io
