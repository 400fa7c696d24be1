// Files: owned descriptors, maps, whole reads and writes (EINTR and short transfers handled). Every
// failure is an IoError naming the path. No shared state: objects may be used from any thread, one
// thread at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tinyshard {

// The system refused: the file, the disk or the path is at fault, and the message names it.
class IoError : public UserError {
 public:
  // "<action> <path>: <reason of error_number>", such as "cannot open a.txt: No such file".
  IoError(std::string_view action, const std::filesystem::path& path, int error_number,
          std::string_view detail = {});
  const std::filesystem::path& path() const { return path_; }
  int error_number() const { return error_number_; }

 private:
  std::filesystem::path path_;
  int error_number_;
};

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

// `bytes` > 0 bytes of the file from `offset` on, mapped for as long as the pointer is held. Writes
// stay in memory. What MappedFile says of truncated files holds here, too.
std::shared_ptr<void> map_to_change(const OpenFile& file, uint64_t offset, size_t bytes,
                                    const std::filesystem::path& path);

// The whole file; larger than `max_bytes` is an IoError.
std::string read_file(const std::filesystem::path& path, uint64_t max_bytes);

// Writes all of `bytes` at `offset` of an open file; from several threads and processes at once.
void write_at(int fd, uint64_t offset, std::span<const std::byte> bytes,
              const std::filesystem::path& path);

// Writes all of `bytes`. `done` is how much was written to the path before, for the message.
void write_all(int fd, std::span<const std::byte> bytes, const std::filesystem::path& path,
               uint64_t done = 0);

}  // namespace tinyshard
