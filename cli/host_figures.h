// Figures of processes and of this host, as the kernel tells them in files. Each takes the folder where
// the kernel's files begin, so that a test may give its own.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tinyshard::cli {

// Returns the bytes of memory that a process holds in RAM; nothing where that cannot be read.
std::optional<int64_t> resident_bytes(int64_t pid, const std::filesystem::path& proc = "/proc");

struct Temperature {
  std::string name;  // "coretemp", "amdgpu"
  double celsius = 0;
};
// Returns the hottest sensor of each chip that the kernel knows, by name. Empty in most containers.
std::vector<Temperature> temperatures(const std::filesystem::path& sys = "/sys");

// Returns the files ending in .jsonl that a process has open, as a training has its log.
std::vector<std::filesystem::path> open_logs(int64_t pid,
                                             const std::filesystem::path& proc = "/proc");

// Returns the last whole line of a file, of at most 64 KiB; empty where there is none.
std::string last_line(const std::filesystem::path& path);

}  // namespace tinyshard::cli
