// A file of a folder is text if its first 8 KiB hold no zero byte; hidden files and folders are
// left out. A file that was named itself is always taken. The limit of bytes cuts the last file.
#include "io/corpus.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "core/base/file.h"

namespace tinyshard::io {
namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) { return path.filename().native().starts_with("."); }

// Regular files below `folder`, sorted by the bytes of their paths.
std::vector<fs::path> files_below(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error), end;
  if (error) throw IoError("list folder", folder, error.value());
  while (it != end) {
    const fs::path path = it->path();
    std::error_code ignored;  // a link that leads nowhere is no file
    if (is_hidden(path)) {
      it.disable_recursion_pending();
    } else if (it->is_regular_file(ignored)) {
      files.push_back(path);
    }
    it.increment(error);
    if (error) throw IoError("list folder", path, error.value());
  }
  std::sort(files.begin(), files.end(),
            [](const fs::path& a, const fs::path& b) { return a.native() < b.native(); });
  return files;
}

// Appends the file, up to the limit. A file that looks like something else than text is passed over
// if it was not named itself.
void append(Corpus& corpus, const fs::path& path, bool text_only, uint64_t max_bytes) {
  constexpr size_t kProbe = 8 << 10;
  const OpenFile file = open_to_read(path);
  if (file.size == 0) return;
  const size_t before = corpus.text.size();
  const auto take = static_cast<size_t>(std::min<uint64_t>(file.size, max_bytes - before));
  corpus.text.resize(before + take);
  const auto bytes = std::as_writable_bytes(std::span(corpus.text)).subspan(before);
  const auto probe = bytes.first(std::min(take, kProbe));
  read_at(file, 0, probe, path);
  if (text_only && std::find(probe.begin(), probe.end(), std::byte{0}) != probe.end()) {
    corpus.text.resize(before);
    return;
  }
  read_at(file, probe.size(), bytes.subspan(probe.size()), path);
  corpus.truncated |= take < file.size;
  corpus.files.push_back(path);
}

}  // namespace

Corpus read_corpus(const fs::path& path, const CorpusOptions& options) {
  if (options.max_bytes == 0) throw UserError("corpus: max_bytes is 0");
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found || error) {
    throw IoError("read corpus", path, error ? error.value() : ENOENT);
  }
  Corpus corpus;
  if (status.type() != fs::file_type::directory) {
    append(corpus, path, false, options.max_bytes);
    if (corpus.text.empty()) throw UserError(fmt::format("corpus {} is empty", path.native()));
    return corpus;
  }
  const std::vector<fs::path> files = files_below(path);
  for (const fs::path& file : files) {
    if (corpus.text.size() == options.max_bytes) {
      corpus.truncated = true;
      break;
    }
    append(corpus, file, true, options.max_bytes);
  }
  if (corpus.text.empty()) {
    throw UserError(
        fmt::format("corpus {} holds no text ({} files below it)", path.native(), files.size()));
  }
  return corpus;
}

fs::path default_corpus(const fs::path& includes) {
  fs::path newest;
  int newest_version = -1;
  std::error_code error;
  for (fs::directory_iterator it(includes, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().native();
    int version = -1;
    std::from_chars(name.data(), name.data() + name.size(), version);  // "12", "13.2.0"
    std::error_code ignored;
    if (version > newest_version && fs::exists(it->path() / "vector", ignored)) {
      newest = it->path();
      newest_version = version;
    }
  }
  if (newest.empty()) {
    throw UserError(fmt::format(
        "no headers of a C++ standard library under {}: name a corpus, a file or a folder of text",
        includes.native()));
  }
  return newest;
}

}  // namespace tinyshard::io
