// The system's calls leave some work to their caller. A read or a write may stop early: it goes on
// behind what is done until all is there, again after EINTR, and its error says how far it came.
//
//   read_at of 3 GiB:  pread 1 GiB, pread 1 GiB, EINTR, pread 0.4 GiB, pread 0.6 GiB
//   the file ends:     "cannot read a.bin: 2147483648 of 3221225472 bytes at offset 0 are there"
//
// A limit on the size of files sends a signal that would end the process; here it is an IoError, as
// a full disk is.
#include "core/base/file.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

#include "core/base/call.h"
#include "core/base/signals.h"

namespace tinyshard {
namespace {

// Linux transfers at most this much in one call; asking for more is a short transfer anyway.
constexpr size_t kTransferBytes = 1 << 30;
// Bytes of one write: Linux may copy all of one call before another thread gets the processor, also
// one of higher priority. A save beside the training is to give way sooner.
constexpr size_t kWriteBytes = 128 << 10;

std::string describe(std::string_view action, const std::filesystem::path& path, int error_number,
                     std::string_view detail) {
  std::string text = fmt::format("cannot {} {}", action, path.native());
  if (error_number != 0) text += ": " + std::generic_category().message(error_number);
  if (!detail.empty()) text += fmt::format("{} {}", error_number != 0 ? "," : ":", detail);
  return text;
}

}  // namespace

IoError::IoError(std::string_view action, const std::filesystem::path& path, int error_number,
                 std::string_view detail)
    : UserError(told_of_call(describe(action, path, error_number, detail))),
      path_(path),
      error_number_(error_number) {}

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

std::shared_ptr<void> map_to_change(const OpenFile& file, uint64_t offset, size_t bytes,
                                    const std::filesystem::path& path) {
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  const size_t before = offset % page, length = before + bytes;
  void* data = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE,
                      file.fd.get(), static_cast<off_t>(offset - before));
  if (data == MAP_FAILED)
    throw IoError("map", path, errno, fmt::format("{} bytes at offset {}", bytes, offset));
  std::shared_ptr<void> map(data, [length](void* begin) { ::munmap(begin, length); });
  return {map, static_cast<std::byte*>(data) + before};
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
  const NoFileSizeSignal no_signal;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t put =
        ::write(fd, bytes.data() + written, std::min(bytes.size() - written, kWriteBytes));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      throw IoError(
          "write", path, put < 0 ? errno : EIO,
          fmt::format("{} bytes written, {} more to go", done + written, bytes.size() - written));
    }
    written += static_cast<size_t>(put);
  }
}

void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::filesystem::path& path) {
  const NoFileSizeSignal no_signal;
  size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t put =
        ::pwrite(fd, bytes.data() + written, std::min(bytes.size() - written, kWriteBytes),
                 static_cast<off_t>(offset + static_cast<uint64_t>(written)));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) {
      throw IoError(
          "write", path, put < 0 ? errno : EIO,
          fmt::format("{} of {} bytes written at offset {}", written, bytes.size(), offset));
    }
    written += static_cast<size_t>(put);
  }
}

}  // namespace tinyshard
