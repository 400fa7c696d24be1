// Text to train on: a file, or all text files of a folder, as one string of bytes. The same files
// give the same string on every machine: the order is that of the paths' bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tinyshard::io {

struct CorpusOptions {
  uint64_t max_bytes = 64 << 20;  // reading stops here, in the middle of a file if need be
};

struct Corpus {
  std::string text;
  std::vector<std::filesystem::path> files;  // those the text was read from, in order
  bool truncated = false;                    // max_bytes left something out
};

// A file is taken as it is. In a folder, files count that hold text (no zero byte in the first 8
// KiB) and have no hidden name; links to folders are not followed; files are joined without a
// separator. IoError if something is missing or unreadable, UserError if there is no text; both
// name the path.
Corpus read_corpus(const std::filesystem::path& path, const CorpusOptions& options = {});

// The headers of the newest C++ standard library of this machine: text that every compiler brings
// along. UserError if there is none under `includes`.
std::filesystem::path default_corpus(const std::filesystem::path& includes = "/usr/include/c++");

}  // namespace tinyshard::io
