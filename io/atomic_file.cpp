// Bytes go to a new file beside the target, which is synced, closed and then renamed; syncing the
// folder makes that last. Its name has a random tag, so writers never share one. The target's mode
// is kept; a target that is no regular file is refused, as renaming would replace the device.
#include "io/atomic_file.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace tinyshard::io {

namespace fs = std::filesystem;

namespace {

constexpr size_t kBufferBytes = 256 << 10;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

void sync_folder(const std::filesystem::path& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw IoError("open folder", folder, errno);
  // Some network and FUSE file systems have no fsync for folders, and say EINVAL.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw IoError("sync folder", folder, errno);
}

void sync_renamed(const std::filesystem::path& path) {
  try {
    sync_folder(folder_of(path));
  } catch (const IoError& error) {
    throw IoError(
        "sync folder", error.path(), error.error_number(),
        fmt::format("{} is there and complete, but a power loss may undo that", path.native()));
  }
}

std::string random_tag() {
  uint64_t value = 0;
  if (::getrandom(&value, sizeof value, 0) != static_cast<ssize_t>(sizeof value)) {
    throw IoError("read", "/dev/urandom", errno);
  }
  return fmt::format("{:016x}", value);
}

AtomicFile::AtomicFile(std::filesystem::path path, std::string_view job) : path_(std::move(path)) {
  struct stat old;
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  // A rename would replace the device or the socket itself (/dev/null, as root).
  if (exists && !S_ISREG(old.st_mode)) {
    throw IoError("write", path_, S_ISDIR(old.st_mode) ? EISDIR : 0,
                  S_ISDIR(old.st_mode) ? "" : "it exists and is not a regular file");
  }
  temporary_ = path_;
  temporary_ += fmt::format(".{}-{}{}", job, random_tag(), kTempSuffix);
  fd_ = Fd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd_) throw IoError("create a file next to", path_, errno);
  // A file that only its owner may read stays so. Failing to keep the mode is not worth an error.
  if (exists) (void)!::fchmod(fd_.get(), old.st_mode & 07777);
  buffer_.reserve(kBufferBytes);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (!fd_) return;
  fd_ = Fd();
  ::unlink(temporary_.c_str());
}

void AtomicFile::put(std::span<const std::byte> bytes) {
  try {
    write_all(fd_.get(), bytes, path_, flushed_);
  } catch (...) {
    discard();
    throw;
  }
  flushed_ += bytes.size();
}

void AtomicFile::flush() {
  put(buffer_);
  buffer_.clear();
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  check_internal(static_cast<bool>(fd_),
                 "AtomicFile is written before it is committed or has failed");
  written_ += bytes.size();
  if (bytes.size() >= kBufferBytes / 4) {
    flush();
    put(bytes);
    return;
  }
  if (buffer_.size() + bytes.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
}

void AtomicFile::write(std::string_view text) {
  write(std::as_bytes(std::span(text.data(), text.size())));
}

void AtomicFile::write_at(uint64_t offset, std::span<const std::byte> bytes) {
  check_internal(static_cast<bool>(fd_), "AtomicFile is written before it is committed");
  tinyshard::write_at(fd_.get(), offset, bytes, path_);
  written_ += bytes.size();
}

void AtomicFile::commit() {
  check_internal(static_cast<bool>(fd_), "AtomicFile is committed once, and not after a failure");
  try {
    flush();
    if (::fsync(fd_.get()) != 0) {
      throw IoError("sync", path_, errno, fmt::format("{} bytes written", written()));
    }
    // NFS reports a failed write as late as here.
    if (::close(fd_.release()) != 0) {
      throw IoError("close", path_, errno, fmt::format("{} bytes written", written()));
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw IoError("write", path_, errno);
  } catch (...) {
    fd_ = Fd();
    ::unlink(temporary_.c_str());
    throw;
  }
  sync_renamed(path_);
}

void make_folders(const fs::path& folder) {
  std::error_code error, ignored;
  fs::create_directories(folder, error);
  if (!error) return;
  // The system says "File exists" where a link leads nowhere.
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    if (fs::is_symlink(at, ignored) && !fs::exists(at, ignored)) {
      throw IoError("create folder", folder, 0,
                    fmt::format("{} is a link to {}, which does not exist", at.native(),
                                fs::read_symlink(at, ignored).native()));
    }
  }
  throw IoError("create folder", folder, error.value());
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void check_writable(const std::filesystem::path& path) { const AtomicFile never_committed(path); }

}  // namespace tinyshard::io
