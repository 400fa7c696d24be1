#include "io/file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace tinyshard::io {
namespace {

constexpr size_t kBufferBytes = 256 << 10;
// Linux transfers at most this much in one call; asking for more is a short transfer anyway.
constexpr size_t kTransferBytes = 1 << 30;

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = other.release();
  }
  return *this;
}

Fd::~Fd() {
  if (fd_ >= 0) ::close(fd_);
}

int Fd::release() { return std::exchange(fd_, -1); }

OpenFile open_to_read(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO without a writer returns, and is refused below.
  OpenFile file{Fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), 0};
  if (!file.fd) throw IoError("open", path, errno);
  struct stat info;
  if (::fstat(file.fd.get(), &info) != 0) throw IoError("examine", path, errno);
  if (S_ISDIR(info.st_mode)) throw IoError("read", path, EISDIR);
  if (!S_ISREG(info.st_mode)) throw IoError("read", path, 0, "it is not a regular file");
  file.size = static_cast<uint64_t>(info.st_size);
  return file;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const OpenFile file = open_to_read(path);
  if (file.size == 0) return;  // an empty map does not exist
  void* data =
      ::mmap(nullptr, static_cast<size_t>(file.size), PROT_READ, MAP_PRIVATE, file.fd.get(), 0);
  if (data == MAP_FAILED) throw IoError("map", path, errno, fmt::format("{} bytes", file.size));
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<size_t>(file.size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void read_at(const OpenFile& file, uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path) {
  size_t done = 0;
  while (done < out.size()) {
    const size_t want = std::min(out.size() - done, kTransferBytes);
    const ssize_t got = ::pread(file.fd.get(), out.data() + done, want,
                                static_cast<off_t>(offset + static_cast<uint64_t>(done)));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw IoError("read", path, got < 0 ? errno : 0,
                    fmt::format("{} of {} bytes at offset {} are there", done, out.size(), offset));
    }
    done += static_cast<size_t>(got);
  }
}

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const OpenFile file = open_to_read(path);
  if (file.size > max_bytes) {
    throw IoError("read", path, 0,
                  fmt::format("it has {} bytes, the limit is {}", file.size, max_bytes));
  }
  std::string text(static_cast<size_t>(file.size), '\0');
  read_at(file, 0, std::as_writable_bytes(std::span(text)), path);
  return text;
}

void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path,
               uint64_t done) {
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t put =
        ::write(fd, bytes.data() + written, std::min(bytes.size() - written, kTransferBytes));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      throw IoError(
          "write", path, put < 0 ? errno : EIO,
          fmt::format("{} bytes written, {} more to go", done + written, bytes.size() - written));
    }
    written += static_cast<size_t>(put);
  }
}

void sync_folder(const std::filesystem::path& folder) {
  const Fd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) throw IoError("open folder", folder, errno);
  // Some network and FUSE file systems have no fsync for folders, and say EINVAL.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw IoError("sync folder", folder, errno);
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

void AtomicFile::commit() {
  check_internal(static_cast<bool>(fd_), "AtomicFile is committed once, and not after a failure");
  try {
    flush();
    if (::fsync(fd_.get()) != 0) {
      throw IoError("sync", path_, errno, fmt::format("{} bytes written", written_));
    }
    // NFS reports a failed write as late as here.
    if (::close(fd_.release()) != 0) {
      throw IoError("close", path_, errno, fmt::format("{} bytes written", written_));
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) throw IoError("write", path_, errno);
  } catch (...) {
    fd_ = Fd();
    ::unlink(temporary_.c_str());
    throw;
  }
  sync_folder(folder_of(path_));
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

void check_writable(const std::filesystem::path& path) { const AtomicFile never_committed(path); }

}  // namespace tinyshard::io
