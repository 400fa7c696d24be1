#include "core/runtime/file_cache.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <span>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/options.h"

namespace tinyshard::file_cache {
namespace {

constexpr size_t kLargest = 64 << 20;  // guards against reading a foreign file

struct Header {                   // then the key, then the bytes
  uint64_t magic = 0x3143465354;  // "TSFC1"
  uint64_t key_size = 0, size = 0, digest = 0;
};

std::string file_name(std::string_view key, std::string_view extension) {
  return fmt::format("{:016x}{:016x}.{}", hash_text(key, 1), hash_text(key, 2), extension);
}

using Folder = std::shared_ptr<const Fd>;

// Creates `path` and what is missing above it, for this user alone.
bool make_folders(const std::string& path) {
  for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    if (::mkdir(path.substr(0, end).c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (end == std::string::npos) return true;
  }
}

// The folder at `path`, or null and what is wrong with it.
Folder open_folder(const std::string& path, std::string& why) {
  struct stat status;
  int fd = make_folders(path) ? ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
  if (fd < 0 || ::fstat(fd, &status) != 0) why = std::strerror(errno);
  auto folder = std::make_shared<const Fd>(fd);
  if (!why.empty()) return nullptr;
  if (status.st_uid != ::geteuid()) {
    why = fmt::format("belongs to user {}", status.st_uid);
  } else if ((status.st_mode & 022) != 0) {
    why = fmt::format("can be written by others (mode {:o})", status.st_mode & 0777);
  }
  return why.empty() ? folder : nullptr;
}

// The folder that the options name, or null. Who uses it keeps it open when another thread meets
// changed options.
Folder current_folder() {
  struct Known {
    std::mutex mutex;
    std::string path;  // empty: none is wanted
    Folder folder;
  };
  static Known& known = *new Known;  // devices load kernels until the very end of the process
  const std::string wanted = options().cache ? options().cache_dir : std::string();
  std::string why;
  Folder folder;
  {
    std::lock_guard lock(known.mutex);
    if (known.path != wanted) {
      known.folder = wanted.empty() ? nullptr : open_folder(wanted, why);
      known.path = wanted;
    }
    folder = known.folder;
  }
  if (!why.empty())  // said without the lock: where lines go is the program's
    log_line(fmt::format("compiled kernels are not kept on disk: {} {}", wanted, why));
  return folder;
}

}  // namespace

std::optional<std::string> load(std::string_view key, std::string_view extension) {
  Folder folder = current_folder();
  if (!folder) return std::nullopt;
  const std::string name = file_name(key, extension);
  const OpenFile file{Fd(::openat(folder->get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW))};
  struct stat status;
  if (!file.fd || ::fstat(file.fd.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_uid != ::geteuid() || size_t(status.st_size) > kLargest ||
      size_t(status.st_size) < sizeof(Header))
    return std::nullopt;
  std::string bytes(size_t(status.st_size), '\0');
  try {
    read_at(file, 0, std::as_writable_bytes(std::span(bytes)), name);
  } catch (const IoError&) {
    return std::nullopt;
  }
  Header header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  std::string_view rest = std::string_view(bytes).substr(sizeof(header));
  if (header.magic != Header{}.magic || header.key_size != key.size() ||
      rest.size() - key.size() != header.size || !rest.starts_with(key) ||
      header.digest != hash_text(rest))
    return std::nullopt;
  return bytes.substr(sizeof(header) + key.size());
}

void store(std::string_view key, std::string_view extension, std::string_view bytes) {
  Folder folder = current_folder();
  if (!folder) return;
  static std::atomic<uint64_t> serial{0};
  std::string content(key);
  content.append(bytes);
  Header header{.key_size = key.size(), .size = bytes.size(), .digest = hash_text(content)};
  content.insert(0, reinterpret_cast<const char*>(&header), sizeof(header));
  std::string name = file_name(key, extension);
  std::string temporary = fmt::format("{}.{}.{}", name, ::getpid(), serial.fetch_add(1));
  Fd file(::openat(folder->get(), temporary.c_str(),
                   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return;
  bool written = true;
  try {
    write_all(file.get(), std::as_bytes(std::span(content)), name);
  } catch (const IoError&) {
    written = false;
  }
  if (!written || ::close(file.release()) != 0 ||
      ::renameat(folder->get(), temporary.c_str(), folder->get(), name.c_str()) != 0)
    ::unlinkat(folder->get(), temporary.c_str(), 0);
}

}  // namespace tinyshard::file_cache
