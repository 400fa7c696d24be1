// Files that appear whole or not at all, as checkpoints and reports write them, and what that needs
// of folders. Every failure is an IoError naming the path. No shared state: objects may be used
// from any thread, one thread at a time.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/file.h"

namespace tinyshard::io {

// Makes the entries of a folder (names created, renamed, removed) survive a power loss.
void sync_folder(const std::filesystem::path& folder);

// Syncs the folder of `path`, which was renamed into its place. If that fails, the file is there
// but may vanish at a power loss; the error says so.
void sync_renamed(const std::filesystem::path& path);

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
  // Writes at a place of the file instead of behind what was written before, by several threads at
  // once. A file is written by one of the two ways.
  void write_at(uint64_t offset, std::span<const std::byte> bytes);
  uint64_t written() const { return written_; }

  void commit();

 private:
  void put(std::span<const std::byte> bytes);
  void flush();
  void discard() noexcept;

  std::filesystem::path path_, temporary_;
  Fd fd_;
  std::vector<std::byte> buffer_;
  std::atomic<uint64_t> written_ = 0;
  uint64_t flushed_ = 0;
};

// Creates the folder and those above it, or throws IoError, which tells a link that leads nowhere.
void make_folders(const std::filesystem::path& folder);

void write_file(const std::filesystem::path& path, std::string_view text);

// IoError if write_file(path) could not begin; writes nothing. For the start of a program that will
// write `path` at its end.
void check_writable(const std::filesystem::path& path);

}  // namespace tinyshard::io
