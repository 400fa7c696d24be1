// Bytes by key in the folder of compiled kernels (options().cache_dir), a file each: what a process
// would otherwise make again, as code, an image for a device or a choice among candidates. A file
// holds its whole key and a digest; anything that does not match is as if it were not there.
//
// The folder is created for this user alone and used only if its path is absolute, it belongs to
// this user, nobody else can write to it, and nobody else can put another in its place: folders
// above it, those that links lead through included, belong to this user or to root and are writable
// by others only with the sticky bit. That is checked when it is first used and when the option
// changed; what is wrong with it is one line of log. Later uses go to the folder that was checked,
// whatever its path leads to by then. Files appear under their name complete or not at all. Beyond
// options().cache_bytes the files that were not used for the longest time go; how full the folder is
// stands in a file of it ("tally"). Any thread, any number of processes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tinyshard::file_cache {

// Null without a usable folder, with TS_CACHE=0, or when the key is not there.
std::optional<std::string> load(std::string_view key, std::string_view extension);
// Does nothing where it cannot: a full or read-only disk costs time later, not correctness now.
void store(std::string_view key, std::string_view extension, std::string_view bytes);

struct Contents {
  std::string folder;   // as the options name it, in use or not
  std::string why_not;  // it cannot be used; empty if it can
  int64_t files = 0, bytes = 0;
};
// Counts what the folder holds, as far as its files have our names; makes no folder.
Contents contents();
// Deletes the files, and returns what they were. IoError for a file that cannot be deleted.
Contents clear();

}  // namespace tinyshard::file_cache
