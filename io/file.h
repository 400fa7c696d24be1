// Files as loaders, checkpoints and reports use them: owned descriptors, read-only maps, whole
// reads and writes (EINTR and short transfers handled), and AtomicFile, which makes a file appear
// whole or not at all. Every failure is an IoError naming the path. No shared state: objects may be
// used from any thread, one thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/errors.h"

namespace tinyshard::io {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd();

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();

 private:
  int fd_ = -1;
};

// A regular file opened for reading. A FIFO or a device is refused rather than waited on.
struct OpenFile {
  Fd fd;
  uint64_t size = 0;
};
OpenFile open_to_read(const std::filesystem::path& path);

// The bytes of a file, mapped read-only. The file must not be truncated while the map lives (the
// kernel answers an access behind the new end with SIGBUS): readers that must survive that use
// read_at.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Fills `out` from `offset`; a file that ends before is an IoError saying where.
void read_at(const OpenFile& file, uint64_t offset, std::span<std::byte> out,
             const std::filesystem::path& path);

// The whole file; larger than `max_bytes` is an IoError.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Writes all of `bytes`. `done` is how much was written to the path before, for the message.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path,
               uint64_t done = 0);

// Makes the entries of a folder (names created, renamed, removed) survive a power loss.
void sync_folder(const std::filesystem::path& folder);

// 16 random hex digits.
std::string random_tag();

inline constexpr std::string_view kTempSuffix = ".tinyshard-tmp";

// Writes `path` under a temporary name in the same folder, <name>.<job>-<random>.tinyshard-tmp, and
// renames it into place in commit(), after the data reached the disk. Without commit() (an
// exception, a kill) whatever was at `path` is still there; the destructor removes the temporary. A
// failed commit is never retried on the same file: after a failed fsync the kernel may have dropped
// the data, and a second fsync would lie.
class AtomicFile {
 public:
  explicit AtomicFile(std::filesystem::path path, std::string_view job = "job");
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  ~AtomicFile();

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  uint64_t written() const { return written_; }

  void commit();

 private:
  void put(std::span<const std::byte> bytes);
  void flush();
  void discard() noexcept;

  std::filesystem::path path_, temporary_;
  Fd fd_;
  std::vector<std::byte> buffer_;
  uint64_t written_ = 0, flushed_ = 0;
};

void write_file(const std::filesystem::path& path, std::string_view text);

// IoError if write_file(path) could not begin; writes nothing. For the start of a program that will
// write `path` at its end.
void check_writable(const std::filesystem::path& path);

}  // namespace tinyshard::io
